"""Attention in bfloat16 in every family: with kernels and without, rows apart and sharing prefixes.

Under autocast many families give queries and keys in float32, and values in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.families import CASES, SIZES, VOCABULARY, case_config, tiny_model
from tests.trainer.test_families import quiet
from trinity.common.errors import EnvironmentProblem
from trinity.common.experience import EID, Experience
from trinity.common.models.families import REFUSED, families
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.verl import attention
from trinity.trainer.verl.decoder import PackedDecoder, make_decoder
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.logprob import logprob_and_entropy
from trinity.trainer.verl.packing import Packed, pack
from trinity.utils.fused import choice

pytest.importorskip("numba")
__all__ = ["quiet"]  # a fixture
# Of one data type; of two; with a soft cap and a window; by the project's own decoder.
IN_EVERY_RUN = ("olmo2", "glm4", "granite", "gemma", "gemma2", "stablelm", "qwen3")
COMPILED = set(IN_EVERY_RUN) - {"gemma2"}
# Whose sizes depend on each other in other ways than those below.
OTHER_SIZES = (
    "bamba",
    "cohere_compass_text",
    "granitemoehybrid",
    "longcat_flash",
    "mamba2",
    "qwen4_exp_text",
    "reformer",
)
# Whose own code adds float32 and bfloat16 under autocast, and fails.
NOT_IN_BFLOAT16 = ("dbrx",)
HEAD_SIZE = 16
HEADS = ["head_dim", "dim_head", "attention_head_size", "kv_channels", "swa_head_dim", "d_head", "v_head_dim"]
HEADS += ["qk_head_dim"]
TOLERANCE = 0.15  # of the norm; what bfloat16 makes of other orders of sums is below 0.08
ROUGH = {"hrm_text": 0.4}  # which passes its layers eight times


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


def batch() -> TrainBatch:
    """Return two groups of rows with a prompt that is long enough to be shared."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for task in range(2):
        prompt = torch.randint(5, VOCABULARY, (26,), generator=generator)
        for run in range(3):
            answer = torch.randint(5, VOCABULARY, (4 + 3 * run,), generator=generator)
            rows.append(Experience(EID(task=str(task), run=run), torch.cat([prompt, answer]), prompt_length=26))
    return collate(rows)


BATCH = batch()


def packings(decoder: PackedDecoder) -> Iterator[Packed]:
    yield pack(BATCH, share_prompts=False)
    if decoder.can_share_prompts:
        yield pack(BATCH, share_prompts=True)
    if decoder.can_share_prefixes:
        packed = pack(BATCH, share_prompts=False, share_prefixes=True)
        assert packed.forest is not None
        yield packed


def computed(model: PreTrainedModel, decoder: PackedDecoder, packed: Packed) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and the gradient of their mixture, each in one row."""
    model.zero_grad()
    with computing(packed):
        logprob, _ = logprob_and_entropy(decoder.hidden(packed), decoder.head(), packed.labels)
    (logprob * torch.randn(len(logprob), generator=torch.Generator().manual_seed(1))).sum().backward()
    parameters = sorted(model.named_parameters(), key=lambda item: item[0])
    return logprob.detach(), torch.cat([p.grad.flatten() for _, p in parameters if p.grad is not None])


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        pytest.param(*case, marks=[] if case in [(f, "") for f in IN_EVERY_RUN] else [pytest.mark.nightly])
        for case in CASES
        if case[0] not in OTHER_SIZES and case[0] not in NOT_IN_BFLOAT16
    ],
)
def test_a_family_is_trained_by_kernels_and_with_shared_prefixes_as_without(
    family: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = 0

    def counted(compiled: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return compiled(*args, **options)

    for name in ("compiled_attend", "compiled_attend_heads"):
        monkeypatch.setattr(attention, name, partial(counted, getattr(attention, name)))
    model = tiny_model(case_config(family, variant))
    try:
        decoder = make_decoder(model, dtype=torch.bfloat16, recompute=False)
    except EnvironmentProblem as problem:
        assert problem.code in ("E3130", "E3131") and families()[family].trainer == REFUSED
        return
    wanted = computed(model, decoder, pack(BATCH, share_prompts=False))
    for least in (10**12, 0):
        monkeypatch.setattr(choice, "LEAST_ELEMENTS", least)
        for packed in packings(decoder):
            for one, other in zip(computed(model, decoder, packed), wanted, strict=True):
                assert float((one - other).norm()) <= ROUGH.get(family, TOLERANCE) * float(other.norm())
    assert num_calls or family not in COMPILED
