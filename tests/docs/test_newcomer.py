"""A newcomer's first hour: the page about own data is followed as written, and then the pages that build on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.docs.followed import follow
from tests.docs.pages import page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = page("docs/own-data.md")


@dataclass
class Newcomer:
    """The folder that the page filled, and what its commands printed."""

    folder: Path
    said: dict[str, str]

    @property
    def job(self) -> Path:
        """Folder of the run."""
        return self.folder / "checkpoints" / "own" / "units"

    def output_of(self, command: str) -> str:
        """Return what the first command printed whose text has `command` in it."""
        return next(output for line, output in self.said.items() if command in line)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """Follow the page in an empty folder."""
    folder = tmp_path_factory.mktemp("newcomer")
    return Newcomer(folder, follow(PAGE, folder))


def metrics(job: Path, name: str) -> dict[int, float]:
    """Return the values of a metric by step."""
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


@pytest.mark.runs("docs/own-data.md")
def test_the_page_shows_its_first_row(newcomer: Newcomer) -> None:
    assert newcomer.output_of("head -n 1").strip() in PAGE.text


def test_a_model_of_another_family_is_trained_with_the_own_reward(newcomer: Newcomer) -> None:
    config = json.loads((newcomer.folder / "my-model" / "config.json").read_text())
    assert config["model_type"] == "gemma3_text"
    scores = metrics(newcomer.job, "rollout/digits/mean")
    assert sorted(scores) == list(range(1, 31))
    assert scores[20] > 1.3 * scores[1], scores
    assert {"rollout/right/mean", "rollout/unit/mean"} <= set(
        json.loads((newcomer.job / "metrics.jsonl").read_text().splitlines()[1])
    )


def test_the_samples_show_prompt_response_and_reward(newcomer: Newcomer) -> None:
    for command in ("show checkpoints/own/units --best 2", "--step 20 -n 4", "--eval test"):
        output = newcomer.output_of(command)
        assert "prompt" in output and "response" in output and "reward" in output, output
    assert "2 samples" in newcomer.output_of("--best 2")
    rows = [json.loads(line) for line in (newcomer.folder / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 20 * 16 * 8 and {"prompt_text", "response_text", "reward"} <= rows[0].keys()


def test_the_own_workflow_asks_with_the_column_of_the_row(newcomer: Newcomer) -> None:
    assert "0+0 in m unit m=" in newcomer.output_of("hint_workflow")


def test_the_run_resumes_with_the_other_learning_rate(newcomer: Newcomer) -> None:
    assert "continuing from step 20" in newcomer.output_of("--accept-change")
    rates = metrics(newcomer.job, "actor/lr")
    assert rates[20] == pytest.approx(2e-3) and rates[21] == rates[30] == pytest.approx(5e-4)


def test_the_exported_model_loads_and_is_the_trained_one(newcomer: Newcomer) -> None:
    assert len(newcomer.output_of("python load.py").splitlines()[-1]) <= 4
    trained, start = (
        AutoModelForCausalLM.from_pretrained(newcomer.folder / name).state_dict()
        for name in ("my-model", "models/tiny-gemma")
    )
    assert trained.keys() == start.keys()
    assert any(not torch.equal(trained[name].float(), start[name].float()) for name in trained)


@pytest.mark.runs("docs/monitoring.md", "trinity ", "tail ")
def test_the_page_on_monitoring_reads_the_run(newcomer: Newcomer) -> None:
    said = follow(page("docs/monitoring.md"), newcomer.folder, without=("tensorboard ", "wandb ", "mlflow "))
    assert "units" in said["trinity runs checkpoints"]
    assert json.loads(said["trinity status checkpoints/own/units --json"])["status"] == "done"
    assert "task 3/6" in said["trinity show checkpoints/own/units --task 3/6"]


@pytest.mark.runs("docs/evaluation.md")
def test_the_page_on_evaluation_evaluates_the_checkpoints(newcomer: Newcomer) -> None:
    """The unbiased pass@8 of eight answers is the share of tasks with a right one, and pass@1 the mean."""
    said = follow(page("docs/evaluation.md"), newcomer.folder)
    table = said["trinity run --config bench.yaml"]
    assert all(f"global_step_{step}" in table for step in (10, 20, 30)) and "initial model" in table
    answers = newcomer.job / "bench" / "test" / "explorer_step_30.jsonl"
    right: dict[int, list[bool]] = {}
    for line in answers.read_text().splitlines():
        answer = json.loads(line)
        right.setdefault(answer["task"], []).append(answer["metrics"]["unit"] > 0)
    assert {len(each) for each in right.values()} == {8} and len(right) == 20
    expected = {1: sum(sum(each) for each in right.values()) / 160, 8: sum(any(each) for each in right.values()) / 20}
    for k, value in expected.items():
        output = next(said[line] for line in said if line.endswith(f"unit {k}"))
        assert f"pass@{k} {value:.4f} over 20 tasks" in output
    assert "'unit'" in said["python evaluate.py"]


@pytest.mark.runs("docs/recipes.md", "bash")
@pytest.mark.runs("docs/troubleshooting.md", "bash")
@pytest.mark.parametrize("name", ["recipes", "troubleshooting"])
def test_the_commands_of_a_page_work_on_the_newcomers_file(newcomer: Newcomer, name: str) -> None:
    said = follow(page(f"docs/{name}.md"), newcomer.folder)
    assert said and all(output.strip() for output in said.values())
