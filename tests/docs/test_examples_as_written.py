"""The examples as a reader runs them: prepared, trained at their own size, and better afterwards. `make nightly`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import prepared
from tests.docs.followed import programs, run_lines
from tests.docs.pages import page
from tests.example_runs import job_of, metrics_of
from tests.examples import BY_SCRIPT, EXAMPLES, SINGLE, commands

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
# Losses, ten small steps, or 64 answers a step, to other questions in each, of which a tenth more becomes right.
SHORT = {*LOSSES, "grpo_gsm8k_experience_pipeline", "grpo_gsm8k_task_pipeline", "serve_sums"}
LONGEST_S = 1200


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the root of the repository, in which nothing is prepared yet."""
    made = tmp_path_factory.mktemp("nightly")
    (made / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    return made


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


def check(name: str, lines: list[dict[str, float]]) -> None:
    """Verify that an example has learned, and that its workflow has failed in no rollout."""
    assert gain(name, lines) > (SHORT_GAIN if name in SHORT else LEAST_GAIN)
    assert [line for line in lines if line.get("fate/failed/workflow")] == []


@pytest.mark.runs("examples/*/README.md", "python examples/", "trinity run", "export JUDGE_URL", "kill ")
@pytest.mark.parametrize("folder", SINGLE, ids=lambda path: path.name)
def test_an_example_trains_as_it_is_written(folder: Path, place: Path) -> None:
    run(commands(folder), place)
    check(folder.name, metrics_of(job_of(folder, place)))


@pytest.mark.runs("examples/README.md")
def test_the_commands_of_the_index_run(place: Path) -> None:
    """Behind those of the same example, whose finished run they leave as it is."""
    said = run(page("examples/README.md").lines(""), place)
    assert "grpo_gsm8k" in said[page("examples/README.md").lines("trinity status")[0]]


@pytest.mark.runs("examples/*/README.md", "bash examples/")
@pytest.mark.parametrize("name", sorted(BY_SCRIPT))
def test_a_script_trains_as_it_is_written(name: str, place: Path) -> None:
    run(commands(EXAMPLES / name), place)
    check(name, metrics_of(job_of(EXAMPLES / name, place)))


def run(lines: list[str], place: Path) -> dict[str, str]:
    """Run lines as a reader does; return what each printed."""
    with programs() as path:
        variables = prepared.variables_of(os.environ) | {"PATH": path}
        return run_lines(lines, place, variables, timeout_s=LONGEST_S)
