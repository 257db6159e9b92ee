"""GRPO steps of a whole run whose engine is vLLM: what it samples, also after a sync, has the trainer's probability.

Usage: python -m tools.gpu.vllm_step OUT [--device cpu]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tests.e2e.plugin_texts import REWARD
from tests.e2e.tiny_run import Ended, TinyRun
from tests.tiny import tiny_model
from tools.gpu.records import write_json

STEPS = 2
MEAN_GOAL = {"float32": 1e-4, "bfloat16": 0.03}
SHAPE = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "tie_word_embeddings": False}


def make_run(folder: Path, dtype: str) -> TinyRun:
    """Return a run of `STEPS` GRPO steps over a model that vLLM has kernels for."""
    folder.mkdir(parents=True)
    run = TinyRun(folder, plugin=REWARD)
    tiny_model(folder / "model", "qwen2", seed=1, scale=2.0, **SHAPE)
    return run.change(
        algorithm__repeat_times=4,
        algorithm__optimizer__lr=0.001,
        buffer__total_steps=STEPS,
        buffer__explorer_input__default_reward_fn_type="share_of_digits",
        explorer__rollout_model__engine_type="vllm",
        explorer__rollout_model__dtype=dtype,
        explorer__rollout_model__enforce_eager=True,
        explorer__rollout_model__gpu_memory_utilization=0.3,
        explorer__max_timeout=120,
        synchronizer__sync_timeout=120,
        trainer__trainer_config={"actor_rollout_ref": {"actor": {"fsdp_config": {"dtype": dtype}}}},
    )


def figures_of(run: TinyRun, ended: Ended) -> dict[str, Any]:
    """Return what the run has measured."""
    found: dict[str, Any] = {"status": ended.status, "run_s": round(ended.seconds, 1)}
    if ended.status:
        return found
    trainer, explorer = run.lines("trainer"), run.lines("explorer")
    names = {"logprob_difference_max": "max", "logprob_difference_mean": "mean"}
    return found | {
        "steps": [line["step"] for line in trainer],
        "versions": [line["rollout/model_version"] for line in explorer],
        "grad_norms": [line["actor/grad_norm"] for line in trainer],
        **{name: [line[f"training/rollout_logprobs_diff_{end}"] for line in trainer] for name, end in names.items()},
    }


def problems(figures: dict[str, Any], dtype: str) -> list[str]:
    """Return what is not as it must be."""
    if figures["status"]:
        return [f"the run ended with {figures['status']}"]
    found = []
    if figures["steps"] != list(range(1, STEPS + 1)) or figures["versions"] != list(range(STEPS)):
        found.append(f"steps {figures['steps']} of versions {figures['versions']}")
    if not max(figures["grad_norms"]) > 1e-4:
        found.append("no step had a gradient")
    if max(figures["logprob_difference_mean"]) > MEAN_GOAL[dtype]:
        found.append(f"vLLM's log-probabilities are not the trainer's: {figures['logprob_difference_mean']}")
    return found


def main() -> None:
    """Run it; the exit status is 1 unless engine and trainer agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--timeout-s", type=float, default=120.0)
    arguments = parser.parse_args()
    dtype = "bfloat16" if arguments.device == "cuda" else "float32"
    run = make_run(arguments.out / "run", dtype)
    try:
        ended = run.finish(timeout_s=arguments.timeout_s)
    except AssertionError as error:
        write_json(arguments.out / "figures.json", {"status": "timeout"})
        sys.exit(str(error))
    figures = figures_of(run, ended)
    wrong = problems(figures, dtype)
    write_json(arguments.out / "figures.json", figures | {"problems": wrong})
    print("\n".join([*([ended.output[-6000:]] if wrong else []), *(wrong or ["engine and trainer agree"])]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
