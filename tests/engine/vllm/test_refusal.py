"""A model of vLLM that does not take every new weight is refused at the start, before anything is sampled."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import torch

from tests.engine.vllm.conftest import settings
from tests.tiny import tiny_model
from trinity.common.errors import EngineError, EnvironmentProblem
from trinity.engine.vllm.engine import VLLMEngine
from trinity.engine.vllm.settings import TORCH_INSTEAD
from trinity.engine.vllm.start import difference

PLUGIN = "tests.engine.vllm.forgetful"


@pytest.mark.slow
def test_an_engine_of_a_model_that_loses_a_weight_at_a_reload_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = pytest.importorskip("vllm")
    model = tmp_path / "model"
    tiny_model(model, "llama", head_dim=32)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["ForgetfulLlama"]}))
    installed = tmp_path / "plugins/forgetful-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\nforgetful = {PLUGIN}:register\n")
    monkeypatch.syspath_prepend(str(installed.parent))

    made = VLLMEngine(settings(model, external_lib=PLUGIN))
    with pytest.raises(EnvironmentProblem) as caught:
        asyncio.run(made.prepare())
    reason = r"whose reload leaves 1 of \d+ tensors other than its start \(first model\.norm\.weight\)"
    begin = rf"\[E3226\] vLLM {re.escape(vllm.__version__)} cannot take new weights of this llama model, "
    assert re.fullmatch(f"{begin}{reason}; use {re.escape(TORCH_INSTEAD)}", str(caught.value)), str(caught.value)
    with pytest.raises(EngineError, match="not prepared"):
        asyncio.run(made.generate("1+1="))


@pytest.mark.parametrize(
    ("after", "dtype", "found"),
    [
        ([-1.0, -2.0], torch.float32, None),
        ([-1.0, -2.00009], torch.float32, None),
        ([-1.0, -2.00011], torch.float32, "0.00011"),
        ([-1.00011, -2.0], torch.float32, "0.00011"),
        ([-1.0, -1.91], torch.bfloat16, None),
        ([-1.0, -1.75], torch.bfloat16, "0.25"),
        ([-1.0, float("nan")], torch.float32, "nan"),
        ([float("nan"), -2.0], torch.float32, "nan"),
        ([-1.0, float("-inf")], torch.bfloat16, "inf"),
    ],
)
def test_the_trial_compares_log_probabilities_as_closely_as_the_number_type_allows(
    after: list[float], dtype: torch.dtype, found: str | None
) -> None:
    said = found and f"whose log-probabilities differ by {found} after a reload of the same"
    assert difference([-1.0, -2.0], after, dtype=dtype) == said
