"""Every folder of `examples/` is short, told in both languages, and valid as written; some are run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests import prepared
from tests.docs.pages import Page
from tests.examples import (
    BY_SCRIPT,
    EXAMPLES,
    FOLDERS,
    ROOT,
    SINGLE,
    configuration,
    loaded,
    preparation,
    prepared_names,
)
from trinity.common.config import Config
from trinity.common.workflows.judge import listed_scores, rating, rubric_messages, ruler_messages
from trinity.launch.validation import check
from trinity.quickstart.dataset import solution

MOST_LINES, MOST_BYTES = 45, 40_000
MOST_CPU_S, MOST_CPU_S_OF_PARTS = 60, 100
TOPICS = {
    "async_gsm8k",
    "dpo_gsm8k",
    "grpo_email_search",
    "grpo_frozen_lake",
    "grpo_gsm8k",
    "grpo_gsm8k_experience_pipeline",
    "grpo_gsm8k_ruler",
    "grpo_gsm8k_task_pipeline",
    "grpo_images",
    "grpo_lora_gsm8k",
    "grpo_multi_turn",
    "grpo_replay_gsm8k",
    "grpo_rubric_as_reward",
    "grpo_tools",
    "mix_gsm8k",
    "modelarts_gsm8k",
    "opd_gsm8k",
    "opmd_gsm8k",
    "own_algorithm",
    "own_workflow",
    "ppo_gsm8k",
    "serve_sums",
    "sft_gsm8k",
    "verl_gsm8k",
}
IN_THE_SUITE = ("sft_gsm8k", "grpo_gsm8k", "own_workflow")
NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in ("dpo_gsm8k", "own_algorithm", "verl_gsm8k")]
SMALL = {"STEPS": "1", "BATCH_SIZE": "4", "JUDGE_URL": "http://127.0.0.1:9/v1"}
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
each_single = pytest.mark.parametrize("folder", SINGLE, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that `examples/prepare.py` makes, but the models have imitated nothing."""
    made = tmp_path_factory.mktemp("examples")
    (made / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    module = preparation()
    for name in module.NAMES:
        folder = made / "tiny" / name
        folder.mkdir(parents=True)
        lesson = module.written(name, folder)
        if lesson is not None:
            shutil.copytree(lesson.start, folder / "model")
    return made


def test_the_topics_are_there() -> None:
    names = {folder.name for folder in FOLDERS}
    assert names >= TOPICS


@each_folder
def test_a_folder_is_told_in_both_languages_with_its_curve(folder: Path) -> None:
    english, chinese = (Page(folder / f"README{end}") for end in (".md", ".zh.md"))
    assert english.blocks == chinese.blocks
    assert "curve.png" in english.links and "curve.png" in chinese.links
    curve = folder / "curve.png"
    assert curve.stat().st_size < MOST_BYTES
    with Image.open(curve) as image:
        assert min(image.size) >= 200


@each_single
def test_a_configuration_is_short(folder: Path) -> None:
    assert len(configuration(folder).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("language", ["README.md", "README.zh.md"])
def test_the_index_names_every_folder(language: str) -> None:
    linked = {link.partition("/")[0] for link in Page(EXAMPLES / language).links if link.endswith(language)}
    assert linked >= {folder.name for folder in FOLDERS}


def times(language: str) -> dict[str, int]:
    """Return the seconds of the processor of each example, as the index has them; 0: not measured."""
    text = (EXAMPLES / language).read_text(encoding="utf-8")
    rows = re.finditer(r"^\| \[(\w+)\]\(.*\| (?:(\d+) s|-) \|$", text, re.MULTILINE)
    return {row[1]: int(row[2] or 0) for row in rows}


def test_the_index_has_times_of_less_than_a_minute_on_two_cores() -> None:
    found = times("README.md")
    assert found == times("README.zh.md") and found.keys() == {folder.name for folder in FOLDERS}
    for name, seconds in found.items():
        assert seconds <= (MOST_CPU_S_OF_PARTS if name in BY_SCRIPT else MOST_CPU_S), name


def checked(folder: Path) -> Config:
    """Return the configuration of an example's last stage, which has no error."""
    plan, findings = check(configuration(folder).relative_to(ROOT))
    errors = [finding for finding in findings if finding.is_error]
    assert not errors, errors
    return plan.stages[-1].config


@each_single
def test_a_configuration_is_valid_as_written(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("JUDGE_URL", SMALL["JUDGE_URL"])
    assert {*prepared_names(folder)} <= {*preparation().NAMES}
    config = checked(folder)
    assert config.cluster.gpu_per_node == 0
    assert config.model.model_path.startswith("tiny/")
    assert Path(config.checkpoint_job_dir) == place / "checkpoints" / "examples" / folder.name


def test_what_is_prepared_is_left_alone(tmp_path: Path) -> None:
    module = preparation()
    assert module.prepare("judge", tmp_path)
    assert not module.prepare("judge", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["judge"]


def test_the_judge_prefers_what_is_right() -> None:
    verdict = loaded("judge").verdict
    right, forgetful = solution(47, 58), solution(47, 58, is_carrying=False)
    grades = listed_scores(verdict(ruler_messages("47+58", [forgetful, right, "?"])), 3)
    assert grades == pytest.approx([0.15, 1.0, 0.0]), "one of two columns; everything; nothing"
    ratings = [rating(verdict(rubric_messages("47+58", answer, [(3.0, "is right")]))) for answer in (right, "?")]
    assert ratings == [10.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IN_THE_SUITE, *NIGHTLY])
def test_a_configuration_runs_by_environment_variables(name: str, place: Path, tmp_path: Path) -> None:
    for part in ("examples", "tiny"):
        (tmp_path / part).symlink_to(place / part, target_is_directory=True)
    words = ("run", "--config", str(configuration(EXAMPLES / name).relative_to(ROOT)))
    status, output = prepared.finish(words, cwd=tmp_path, environment=SMALL, timeout_s=240)
    assert status == 0, output[-4000:]
    job = tmp_path / "checkpoints" / "examples" / name
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert max(line["step"] for line in lines if line["actor"] == "trainer") >= 1
    assert (job / "global_step_1").is_dir()
