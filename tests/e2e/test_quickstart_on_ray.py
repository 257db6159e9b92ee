"""The quickstart's file with two vLLM engines and two training workers on Ray learns as it does in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import prepared
from tests.e2e.ray_run import own_cluster
from tests.e2e.short_run import ROOT
from trinity.quickstart.dataset import solution, write_jsonl
from trinity.quickstart.folder import prepare

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PAIRS = [(13 + 7 * i, 88 - 5 * i) for i in range(12)]  # all of them carry
SFT_STEPS, EXPLORE_STEPS = 70, 10
ONE_PROCESS: dict[str, Any] = {}
ON_RAY = {
    "deterministic": False,
    "stages[1].trainer.num_workers": 2,
    "stages[1].explorer.rollout_model.engine_type": "vllm",
    "stages[1].explorer.rollout_model.engine_num": 2,
    "stages[1].explorer.runner_isolation": "thread",
}


def learn(folder: Path, **options: Any) -> Path:
    """Run the quickstart's file on twelve sums; return the folder of its second stage."""
    made = prepare(folder, seed=1)
    rows = [
        {"question": f"{a}+{b}", "answer": solution(a, b, is_carrying=is_carrying)}
        for a, b in PAIRS
        for is_carrying in (True, False)
    ]
    write_jsonl(folder / "sft.jsonl", rows)
    write_jsonl(folder / "sums.jsonl", rows[::2])
    sizes = {
        "stages[0].buffer.trainer_input.experience_buffer.path": folder / "sft.jsonl",
        "stages[0].buffer.train_batch_size": 24,
        "stages[0].trainer.total_steps": SFT_STEPS,
        "stages[0].algorithm.optimizer.lr": 4e-3,
        "stages[1].buffer.explorer_input.taskset.path": folder / "sums.jsonl",
        "stages[1].buffer.explorer_input.eval_tasksets[0].path": folder / "sums.jsonl",
        "stages[1].buffer.batch_size": 12,
        "stages[1].buffer.train_batch_size": 48,
        "stages[1].buffer.total_steps": EXPLORE_STEPS,
        "stages[1].algorithm.optimizer.lr": 3e-4,
        "stages[1].explorer.runner_per_model": 48,
    }
    words = [word for key, value in (sizes | options).items() for word in ("--set", f"{key}={value}")]
    status, output = prepared.finish(["run", "--config", str(made.config), *words], cwd=ROOT, timeout_s=600)
    assert status == 0, output[-8000:]
    return folder / "checkpoints" / "quickstart" / "addition" / "rft"


def series(job: Path, actor: str, key: str) -> list[float]:
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if line["actor"] == actor and key in line]


def test_two_vllm_engines_and_two_workers_on_ray_learn_as_one_process(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("ray")
    alone = learn(tmp_path / "alone", **ONE_PROCESS)
    with own_cluster(num_cpus=4) as cluster:
        spread = learn(tmp_path / "ray", **ON_RAY, **{"cluster.ray_address": cluster.address})
    key = "eval/addition_test/accuracy/mean@1"
    before, after = series(spread, "explorer", key)[0], series(spread, "explorer", key)[-1]
    assert after >= min(before + 0.25, 1.0) > before, (before, after)
    assert abs(after - series(alone, "explorer", key)[-1]) <= 0.25, "within noise of the run in one process"
    assert series(spread, "explorer", "rollout/model_version") == [2.0 * step for step in range(EXPLORE_STEPS)]
    assert max(series(spread, "trainer", "training/rollout_logprobs_diff_max")) <= 1e-4
    assert all(series(spread, "explorer", f"perf/engine/{index}/answered_requests")[-1] > 0 for index in range(2))
    (last,) = spread.glob(f"global_step_{2 * EXPLORE_STEPS}/actor")
    assert {file.name for file in last.glob("model_*.pt")} == {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}
