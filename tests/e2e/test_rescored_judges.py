"""Stored rollouts whose judges are asked again, and what happens to those without a verdict."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_judges import made, outside
from tests.e2e.tiny_run import TinyRun
from tests.engine.external.openai_server import Service, answering
from trinity.common.errors import ConfigError, DataError, WorkflowError
from trinity.common.experience import Experience
from trinity.launch.reuse import rescoring
from trinity.launch.reuse.past_run import PastRun
from trinity.launch.reuse.rescoring import Rescored, rescored
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

NAMES = ["rubric_judge_workflow", "math_ruler_workflow", "rubric_judge_openai_workflow"]
ROLLOUTS = 2 * 2 * len(NAMES)  # steps, repeats


def ask(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    for name in ("JUDGE_URL", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, service.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyRun]:
    """A finished run of two steps in whose folder this process works."""
    folder = tmp_path_factory.mktemp("judged")
    args = {"judge_model_name": "grader"}
    run = made(
        folder, NAMES, buffer__explorer_input__taskset__workflow_args=args, explorer__auxiliary_models=[outside()]
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    with pytest.MonkeyPatch.context() as patch, answering('{"rating": 7}\n[0.25, 0.75]') as service:
        patch.chdir(folder)
        ask(patch, service)
        assert run_plan(plan_run(folder / "run.yaml", RunOptions()), RunOptions()).error is None
        yield run


def again(run: TinyRun, place: Path, *overrides: str, reward: str | None = None) -> Rescored:
    return rescored(PastRun.of(run.job), f"sqlite:///{place}", reward=reward, overrides=overrides)


def rows_of(place: Path) -> list[tuple[str, Experience]]:
    """Return the workflow and the experience of each row."""
    query = "select experience_bytes from experience_blob"
    with closing(sqlite3.connect(place)) as database:
        found = [Experience.deserialize(payload) for (payload,) in database.execute(query)]
    return [(NAMES[each.info["task_index"]["index"] % len(NAMES)], each) for each in found]


def test_other_verdicts_are_other_rewards(judged: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering('{"rating": 2}\n[1.0, 0.0]') as service:
        ask(monkeypatch, service)
        found = again(judged, tmp_path / "other.db")
    assert len(found.rewards) == ROLLOUTS and not found.unscored
    assert len(service.requests) == 2 * (2 + 1 + 2), "a rating for each response, a comparison for both"
    rows = rows_of(tmp_path / "other.db")
    for name, each in rows:
        old = each.info["rescored"]
        if name == "math_ruler_workflow":
            assert (each.reward, old["reward"]) in {(1.0, 0.25), (0.0, 0.75)} and "gold_reward" in each.metrics
        else:
            assert (each.reward, old["reward"]) == (pytest.approx(0.2), pytest.approx(0.7))
            assert each.metrics["rating"] == each.reward and each.metrics["judge_success"] == 1.0
    signs = [float(each.advantages[0]) for name, each in rows if name == "math_ruler_workflow"]
    assert sorted(sign > 0 for sign in signs) == [False, False, True, True]


def test_responses_without_a_verdict_are_counted_and_never_get_a_reward(
    judged: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with answering("[1.0, 0.0]") as service:
        ask(monkeypatch, service)
        found = again(judged, tmp_path / "half.db")
    assert found.unscored == Counter({"E5125": 8}) and len(found.rewards) == 4
    assert {name for name, _ in rows_of(tmp_path / "half.db")} == {"math_ruler_workflow"}
    assert sum("others with E5125 are counted" in each.getMessage() for each in caplog.records) == 1
    with answering("") as service:
        ask(monkeypatch, service)
        service.faults = ["wait"] * 100
        with pytest.raises(DataError, match="no rollout of tiny/run could be scored") as caught:
            again(judged, tmp_path / "late.db", "explorer.max_timeout=0.2")
    assert caught.value.code == "E4070"
    assert any(f"ended in {code}" in str(caught.value) for code in ("E5112", "E5301"))


def test_judges_that_are_not_there_are_not_asked_for_every_rollout(
    judged: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescoring, "FUTILE", 4)
    with answering("") as service:
        ask(monkeypatch, service)
        service.faults = ["wait"] * 100
        with pytest.raises(DataError) as caught:
            again(judged, tmp_path / "late.db", "explorer.max_timeout=0.2")
    numbers = [int(number) for number in re.findall(r"(\d+) ended in", str(caught.value))]
    assert caught.value.code == "E4070" and sum(numbers) == ROLLOUTS // 2, "after the first of two explore steps"


def test_judges_may_be_others_and_a_named_reward_asks_none(
    judged: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")  # nobody is there
    found = again(judged, tmp_path / "named.db", reward="accuracy_reward")
    assert len(found.rewards) == ROLLOUTS and {
        name for _, each in rows_of(tmp_path / "named.db") for name in each.metrics
    } == {"accuracy"}
    none = "explorer.auxiliary_models=[]"
    with pytest.raises(ConfigError, match="E1923|auxiliary_models"):
        again(judged, tmp_path / "named2.db", none, reward="accuracy_reward")
    with pytest.raises(WorkflowError, match="needs a judge") as caught:
        again(judged, tmp_path / "none.db", none)
    assert caught.value.code == "E5124"
    own = "explorer.auxiliary_models=[{model_path: model, dtype: float32}]"
    with answering('{"rating": 9}') as service:
        monkeypatch.setenv("OPENAI_BASE_URL", service.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
        found = again(judged, tmp_path / "own.db", own)
    assert found.unscored == Counter({"E5125": 8}), "the tiny model does not judge"
    assert [after for _, after in found.rewards] == [pytest.approx(0.9)] * 4
