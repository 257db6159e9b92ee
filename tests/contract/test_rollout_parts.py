"""A selector, an operator, a group advantage and a monitor of one's own, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.operators import create_operators
from trinity.buffer.selector import SELECTORS, BaseSelector
from trinity.buffer.task_reader import TaskReader
from trinity.common.config import DataSelectorConfig, OperatorConfig, TasksetConfig
from trinity.common.errors import WorkflowError

pytestmark = pytest.mark.slow

PLUGIN = '''
import json
import pathlib

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn import GroupAdvantage
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.selector import SELECTORS, BaseSelector
from trinity.common.experience import group_by
from trinity.utils.monitor import MONITOR, Monitor


@SELECTORS.register_module("mine")
class MySelector(BaseSelector):
    """Hands out the rows from the last one on, and counts what it hears."""

    def __init__(self, data_source, config):
        super().__init__(data_source, config)
        self.dataset_size = data_source.dataset_size
        self.order = sorted(range(self.dataset_size), key=lambda row: data_source.dataset["question"][row])[::-1]
        self.current_index = 0
        self.heard = []
        assert data_source.dataset[0]["answer"] == "1" and len(data_source.dataset) == 4

    def get_indices(self, batch_size, return_extra_info=False):
        start = self.current_index
        self.current_index += batch_size
        pathlib.Path("chosen.txt").open("a").write(json.dumps([start, self.heard]) + chr(10))
        return [self.order[(start + i) % self.dataset_size] for i in range(batch_size)]

    def feedback(self, indices, values):
        assert len(indices) == len(values)
        self.heard.append(list(indices))

    def state_dict(self):
        return {"current_index": self.current_index, "heard": self.heard}

    def load_state_dict(self, state_dict):
        self.current_index = state_dict.get("current_index", 0)
        self.heard = state_dict["heard"]


@EXPERIENCE_OPERATORS.register_module("mine")
class MyOperator(ExperienceOperatorV1):
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    async def prepare(self):
        self.names = sorted(self.auxiliary_models)

    async def process(self, exps):
        (answer,) = await self.auxiliary_models["judge"].chat_async([{"role": "user", "content": "2+2="}])
        for exp in exps:
            exp.reward += self.bonus
        return exps, {"judged": len(answer.tokens), "models": len(self.names)}


@EXPERIENCE_OPERATORS.register_module("old")
class OldOperator(ExperienceOperator):
    def process(self, exps):
        return exps, {"tasks": len(group_by(exps, "task"))}


@ADVANTAGE_FN.register_module("mine")
class MyGroupAdvantage(GroupAdvantage):
    def __init__(self, shift=0.0):
        self.shift = shift

    def group_experiences(self, exps):
        return group_by(exps, id_type="task")

    def calculate_group_advantage(self, group_id, exps):
        for exp in exps:
            exp.advantages = (exp.reward - self.shift) * exp.action_mask
            exp.returns = exp.advantages.clone()
        return exps, {"shift": self.shift}

    @classmethod
    def default_args(cls):
        return {"shift": 0.25}


@MONITOR.register_module("mine")
class MyMonitor(Monitor):
    def __init__(self, project, group, name, role, config=None):
        self.role, self.word = role, config.monitor.monitor_args["word"]

    def log_table(self, table_name, experiences_table, step):
        pass

    def log(self, data, step, commit=False):
        with open(f"{self.role}.txt", "a") as file:
            file.write(f"{step} {self.word} {len(data) > 3}" + chr(10))

    @classmethod
    def default_args(cls):
        return {"word": "hello"}
'''
SETTINGS: dict[str, Any] = {
    "algorithm__advantage_fn": "mine",
    "buffer__explorer_input__taskset__data_selector": {"selector_type": "mine"},
    "data_processor__experience_pipeline__operators": [
        {"name": "mine", "args": {"bonus": 1.0}},
        {"name": "old"},
        {"name": "pass_rate_calculator"},
    ],
    "explorer__auxiliary_models": [{"model_path": "model", "name": "judge", "dtype": "float32"}],
    "monitor__monitor_type": "mine",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return run_plugin(tmp_path_factory.mktemp("parts"), PLUGIN, **SETTINGS)


def test_a_selector_chooses_and_hears_how_the_tasks_went(run: TinyRun) -> None:
    chosen = [json.loads(line) for line in (run.folder / "chosen.txt").read_text().splitlines()]
    assert chosen[:2] == [[0, []], [2, [[3, 2]]]]


def test_operators_find_the_auxiliary_models_by_name(run: TinyRun) -> None:
    first, second = run.lines("explorer")[:2]
    for line in (first, second):
        assert line["experience_pipeline/mine/judged"] > 0 and line["experience_pipeline/mine/models"] == 1
        assert line["experience_pipeline/old/tasks"] == 2
        assert line["experience_pipeline/pass_rate_calculator/selection/>0_ratio"] == 1.0
    lines = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert all(line["critic/score/min"] >= 1.0 for line in lines), "the operator added 1 to each reward"


def test_a_group_advantage_has_the_defaults_that_it_declares(run: TinyRun) -> None:
    assert run.lines("explorer")[0]["experience_pipeline/group_advantages/shift/max"] == 0.25
    line = next(line for line in run.lines("trainer") if "actor/pg_loss" in line)
    assert line["critic/returns/mean"] == line["critic/advantages/mean"]
    assert line["critic/advantages/max"] == pytest.approx(line["critic/score/max"] - 0.25)


def test_a_monitor_has_the_defaults_that_it_declares(run: TinyRun) -> None:
    for role in ("explorer", "trainer"):
        lines = (run.folder / f"{role}.txt").read_text().splitlines()
        assert {"1 hello True", "2 hello True"} <= set(lines)


def test_what_a_selector_knows_outlives_a_kill(tmp_path: Path) -> None:
    changes = SETTINGS | {"buffer__total_steps": 4, "monitor__monitor_type": "tensorboard"}
    whole = run_plugin(tmp_path / "whole", PLUGIN, **changes)
    run = prepared_plugin(tmp_path / "parts", PLUGIN, **changes)
    assert run.finish(failpoints="train.before_step=kill@3").status != 0
    assert run.finish().status == 0
    chosen = [set((each.folder / "chosen.txt").read_text().splitlines()) for each in (whole, run)]
    assert chosen[0] == chosen[1] and "[6, [[3, 2], [1, 0], [3, 2]]]" in chosen[0]
    assert len((run.folder / "chosen.txt").read_text().splitlines()) >= 5, "a step was read again after the kill"
    assert [line["experience_pipeline/experience_count"] for line in run.lines("explorer")] == [4.0] * 4


class Wrong(BaseSelector):
    """Returns what no dataset has."""

    given: Any = [99]

    def __init__(self, data_source: Any, config: Any) -> None:
        """Remember nothing, and call no base."""

    def get_indices(self, batch_size: int, return_extra_info: bool = False) -> Any:
        return self.given


@pytest.mark.parametrize("given", [[99], [0, 1], [-1], None, ["a"]])
def test_rows_that_there_are_not_name_the_selector(tmp_path: Path, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrong, "given", given)
    monkeypatch.setitem(SELECTORS.classes, "wrong", Wrong)
    with pytest.raises(WorkflowError, match=r"E5160.*get_indices\(1\) of the selector Wrong"):
        _reader(tmp_path, "wrong").read(1)


def test_a_state_that_is_no_json_names_the_selector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SELECTORS.classes, "wrong", Wrong)
    monkeypatch.setattr(Wrong, "state_dict", lambda self: {"seen": {1, 2}})
    with pytest.raises(WorkflowError, match=r"E5161.*state_dict of the selector Wrong"):
        _reader(tmp_path, "wrong").state_dict()


def _reader(folder: Path, selector: str) -> TaskReader:
    file = folder / "tasks.jsonl"
    file.write_text('{"question": "1+1=", "answer": "2"}\n')
    return TaskReader(
        TasksetConfig(
            path=str(file),
            default_workflow_type="simple_workflow",
            format={"prompt_key": "question"},
            data_selector=DataSelectorConfig(selector_type=selector),
        )
    )


def test_operators_are_made_with_auxiliary_models() -> None:
    (operator,) = create_operators([OperatorConfig(name="pass_rate_calculator")], {"judge": 1})
    assert operator.auxiliary_models == {"judge": 1}
