"""A run with the vLLM engine learns what the same run with the torch engine learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import page
from tests.e2e.test_algorithms import STEPS, finish, make_run
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow


def learned(folder: Path, plugins: Path, engine: str, adapter: list[dict[str, int]] | None) -> TinyRun:
    """Return a finished GRPO run on a model that both engines have kernels for."""
    run = make_run(folder, {"algorithm_type": "grpo", "kl_loss_fn": "none"})
    tiny_model(folder / "model", "qwen2", seed=1, scale=3.0, head_dim=32, hidden_size=128, tie_word_embeddings=False)
    run.change(deterministic=False, model__temperature=1.1)
    run.change(model__lora_configs=adapter, algorithm__optimizer__lr=0.01)
    (line,) = page("docs/engines.md").lines("trinity run --config run.yaml --set ")
    documented = line.split()[-1]
    assert documented == "explorer.rollout_model.engine_type=vllm"
    finish(run, plugins, overrides=(documented if engine == "vllm" else "explorer.rollout_model.engine_type=torch",))
    return run


@pytest.mark.runs("docs/engines.md", "trinity run")
@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(None, id="all weights", marks=pytest.mark.nightly),
        pytest.param([{"lora_rank": 4, "lora_alpha": 8}], id="adapter"),
    ],
)
def test_a_run_on_vllm_is_that_on_the_torch_engine(
    tmp_path: Path, plugins: Path, adapter: list[dict[str, int]] | None
) -> None:
    pytest.importorskip("vllm")
    ours, theirs = (learned(tmp_path / engine, plugins, engine, adapter) for engine in ("vllm", "torch"))
    for run in (ours, theirs):
        assert [line["rollout/model_version"] for line in run.lines("explorer")] == list(range(STEPS))
        assert [line["step"] for line in run.lines("trainer")] == list(range(1, STEPS + 1))
        assert max(line["training/rollout_logprobs_diff_max"] for line in run.lines("trainer")) <= 1e-4
    keys = ("actor/pg_loss", "actor/grad_norm", "actor/entropy_loss")
    for one, other in zip(ours.lines("trainer"), theirs.lines("trainer"), strict=True):
        assert [one[key] for key in keys] == pytest.approx([other[key] for key in keys], rel=1e-3, abs=1e-6)
    assert max(line["actor/grad_norm"] for line in ours.lines("trainer")) > 1e-4
    last = ours.lines("explorer")[-1]
    assert last["perf/engine/generated_tokens"] > 0 and last["perf/engine/latency_s"] > 0
    assert last["perf/engine/model_version"] >= last["rollout/model_version"] and last["perf/engine/weight_age_s"] > 0
