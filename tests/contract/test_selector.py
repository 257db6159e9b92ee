"""Selectors of one's own: what they see of the data, what they hear, and their state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.selector import SELECTORS, BaseSelector
from trinity.buffer.task_reader import TaskReader
from trinity.common.config import DataSelectorConfig, TasksetConfig
from trinity.common.errors import WorkflowError

pytestmark = pytest.mark.slow

PLUGIN = '''
import json
import pathlib

from trinity.buffer.selector import SELECTORS, BaseSelector
from trinity.buffer.selector.selector import SequentialSelector


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
        assert self.config.selector_type == "mine" and self.data_source is data_source

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


class Twice(SequentialSelector):
    """Every row two times, in the order of the shipped one."""

    def get_indices(self, batch_size, return_extra_info=False):
        rows = super().get_indices(batch_size // 2)
        pathlib.Path("twice.txt").open("a").write(json.dumps([int(row) for row in rows]) + chr(10))
        return [row for row in rows for _ in range(2)]


SELECTORS.register_module(module_name="twice", module_cls=Twice)
'''
SETTINGS: dict[str, Any] = {
    "buffer__explorer_input__taskset__data_selector": {"selector_type": "mine"},
    # Makes what selectors hear.
    "data_processor__experience_pipeline__operators": [{"name": "pass_rate_calculator"}],
}


def _chosen(run: TinyRun, name: str = "chosen.txt") -> list[Any]:
    return [json.loads(line) for line in (run.folder / name).read_text().splitlines()]


def test_a_selector_chooses_and_hears_how_the_tasks_went(tmp_path: Path) -> None:
    run = run_plugin(tmp_path, PLUGIN, **SETTINGS)
    assert _chosen(run)[:2] == [[0, []], [2, [[3, 2]]]]


def test_a_selector_may_build_on_a_shipped_one(tmp_path: Path) -> None:
    selector = {"buffer__explorer_input__taskset__data_selector": {"selector_type": "twice"}}
    run = run_plugin(tmp_path, PLUGIN, **selector)
    assert _chosen(run, "twice.txt")[:2] == [[0], [1]]
    assert run.lines("explorer")[0]["experience_pipeline/experience_count"] == 4


def test_what_a_selector_knows_outlives_a_kill(tmp_path: Path) -> None:
    changes = SETTINGS | {"buffer__total_steps": 4}
    whole = run_plugin(tmp_path / "whole", PLUGIN, **changes)
    run = prepared_plugin(tmp_path / "parts", PLUGIN, **changes)
    assert run.finish(failpoints="store.append.before_commit=kill@3").status != 0
    assert run.finish().status == 0
    chosen = [{json.dumps(line) for line in _chosen(each)} for each in (whole, run)]
    assert chosen[0] == chosen[1] and "[6, [[3, 2], [1, 0], [3, 2]]]" in chosen[0]
    assert len(_chosen(run)) >= 5, "a step was read again after the kill"
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
