"""The examples as a reader runs them: prepared, trained at their own size, and better afterwards. `make nightly`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.example_runs import job_of, metrics_of, place_of_runs, prepare, train
from tests.examples import FOLDERS

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

LOSSES = {"sft_gsm8k": "actor/sft_loss", "dpo_gsm8k": "actor/dpo_loss"}
SUCCESS = {
    "grpo_tools": "success",
    "own_workflow": "success",
    "verl_gsm8k": "score",
    "modelarts_gsm8k": "score",
}
BY_ROLLOUTS = {  # greedy answers are as good as they get before, or ten steps are too few for them
    "async_gsm8k": "rollout/accuracy/mean",
    "serve_sums": "rollout/reward/mean",
    "grpo_multi_turn": "rollout/success/mean",
    "grpo_frozen_lake": "rollout/test_score/mean",
    "grpo_email_search": "rollout/reward/mean",
    "grpo_gsm8k_experience_pipeline": "rollout/reward/mean",
    "grpo_gsm8k_task_pipeline": "rollout/reward/mean",
}
LEAST_GAIN, SHORT_GAIN = 0.1, 0.0
SHORT = {*LOSSES, "grpo_gsm8k_experience_pipeline", "grpo_gsm8k_task_pipeline"}  # losses, or ten small steps
LONGEST_S = 1200


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place_of_runs(tmp_path_factory.mktemp("nightly") / "root")


def gain(name: str, lines: list[dict[str, float]]) -> float:
    """Return by how much a figure of the example rose, or the loss fell."""
    if name in LOSSES:
        losses = [line[LOSSES[name]] for line in lines if LOSSES[name] in line]
        return losses[0] - losses[-1]
    if name in BY_ROLLOUTS:
        values = [line[BY_ROLLOUTS[name]] for line in lines if BY_ROLLOUTS[name] in line]
        part = max(len(values) // 4, 1)
        return (sum(values[-part:]) - sum(values[:part])) / part
    wanted = f"/{SUCCESS.get(name, 'accuracy')}/mean@1"
    values = [
        value for line in lines for key, value in line.items() if key.startswith("eval/") and key.endswith(wanted)
    ]
    return values[-1] - values[0]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_an_example_trains_as_it_is_written(folder: Path, place: Path) -> None:
    prepare(folder, place, timeout_s=LONGEST_S)
    train(folder, place, timeout_s=LONGEST_S)
    assert gain(folder.name, metrics_of(job_of(folder, place))) > (SHORT_GAIN if folder.name in SHORT else LEAST_GAIN)
