"""Attention by compiled kernels in bfloat16: what the library gives in every family that they serve.

Under autocast many families give queries and keys in float32, and values in bfloat16.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.families import CASES, SIZES, case_config, tiny_model
from tests.trainer.test_families import of_decoder, quiet
from trinity.common.errors import TrinityError
from trinity.trainer.verl import attention
from trinity.trainer.verl.decoder import make_decoder
from trinity.utils.fused import choice

pytest.importorskip("numba")
__all__ = ["quiet"]  # a fixture
# Of one data type; of two; by the project's own decoder.
IN_EVERY_RUN = ("olmo2", "glm4", "granite", "gemma", "stablelm", "qwen3")
HEAD_SIZE = 16
HEADS = ["head_dim", "dim_head", "attention_head_size", "kv_channels", "swa_head_dim", "d_head", "v_head_dim"]
HEADS += ["qk_head_dim"]
TOLERANCE = 0.15  # of the norm; what bfloat16 makes of other orders of sums is below 0.08


@pytest.fixture(autouse=True)
def sizes_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give heads a size that kernels serve."""
    width = SIZES["hidden_size"] * HEAD_SIZE // SIZES["head_dim"]
    for name, size in SIZES.items():
        if name in HEADS:
            monkeypatch.setitem(SIZES, name, HEAD_SIZE)
        elif size == SIZES["hidden_size"] and name != "hidden_size":
            monkeypatch.setitem(SIZES, name, width)
        elif "window" in name and not isinstance(size, bool) and name != "max_window_layers":
            monkeypatch.setitem(SIZES, name, 64)  # longer than the rows
    monkeypatch.setitem(SIZES, "hidden_size", width)


def of_both(monkeypatch: pytest.MonkeyPatch, family: str, variant: str) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Return log-probabilities and gradient [.] with kernels and without, and how often kernels were called."""
    num_calls, found, compiled = 0, [], attention.compiled_attend

    def counted(*args: Tensor, **options: bool) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return compiled(*args, **options)

    monkeypatch.setattr(attention, "compiled_attend", counted)
    model = tiny_model(case_config(family, variant))
    decoder = make_decoder(model, dtype=torch.bfloat16, recompute=False)
    for least in (10**12, 0):
        monkeypatch.setattr(choice, "LEAST_ELEMENTS", least)
        logprob, gradient = of_decoder(model, decoder)
        found.append((logprob, torch.cat([gradient[name].flatten() for name in sorted(gradient)])))
    return found, num_calls


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        pytest.param(*case, marks=[] if case in [(f, "") for f in IN_EVERY_RUN] else [pytest.mark.nightly])
        for case in CASES
    ],
)
def test_a_family_is_trained_by_kernels_as_by_the_library(
    family: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        (wanted, found), num_calls = of_both(monkeypatch, family, variant)
    except (TrinityError, ValueError, RuntimeError) as error:
        assert family not in IN_EVERY_RUN
        pytest.skip(f"refused, or not of these sizes: {error}")
    assert num_calls or family not in IN_EVERY_RUN
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).norm()) <= TOLERANCE * float(other.norm())
