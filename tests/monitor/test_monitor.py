"""`Monitor`: what reaches the files, and what a failure does not do."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trinity.common.errors import ConfigError, EnvironmentProblem, WorkflowError
from trinity.monitor import MONITOR, Monitor, MonitorBackend, read_metrics
from trinity.monitor.backend import BackendConfig
from trinity.utils.log import log_to_console, logged_to_file
from trinity.utils.monitor import MONITOR as PUBLISHED_MONITOR
from trinity.utils.monitor import Monitor as PublishedBase


class FailingMonitor(MonitorBackend):
    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        raise ConnectionError("the server is away")


class OldStyleMonitor(PublishedBase):
    """Written as a published plugin is: its own constructor with the five published arguments."""

    last: dict[str, Any] = {}

    def __init__(self, project: str, group: str, name: str, role: str, config: BackendConfig) -> None:
        self.who = f"{project}/{group}/{name}/{role}"
        self.colour = config.monitor.monitor_args["colour"]

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        OldStyleMonitor.last = {"who": self.who, "colour": self.colour, "step": step, "commit": commit, **data}

    def log_table(self, table_name: str, experiences_table: Any, step: int) -> None:
        OldStyleMonitor.last = {"table": table_name, "rows": experiences_table.to_dict("records")}


class MonitorWithDefaults(OldStyleMonitor):
    """Says what its arguments are where nothing is written."""

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {"colour": "red", "size": 1}


@pytest.fixture
def plugins() -> Iterator[None]:
    made = {"failing": FailingMonitor, "old_style": OldStyleMonitor, "with_defaults": MonitorWithDefaults}
    for name, cls in made.items():
        MONITOR.register_module(name, force=True)(cls)
    yield
    for name in made:
        MONITOR.contents.pop(name)
        MONITOR.classes.pop(name)


def make(job_dir: Path, monitor_type: str | None = None, **arguments: Any) -> Monitor:
    arguments.setdefault("actor", "trainer")
    return Monitor(job_dir, project="p", name="n", monitor_type=monitor_type, **arguments)


def scalars(job_dir: Path, actor: str, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(job_dir / "monitor" / "tensorboard" / actor), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_every_call_is_one_line_with_its_step_and_number(tmp_path: Path) -> None:
    monitor = make(tmp_path)
    monitor.log({"actor/loss": 0.5, "sample/task_count": 3}, 1)
    monitor.log({"actor/loss": 0.25}, 2)
    first, second = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first.pop("time") > 1e9
    assert first == {"actor": "trainer", "seq": 0, "step": 1, "actor/loss": 0.5, "sample/task_count": 3}
    assert (second["seq"], second["step"], second["actor/loss"]) == (1, 2, 0.25)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_null(tmp_path: Path, value: float) -> None:
    make(tmp_path).log({"rollout/reward/mean": value}, 1)
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["rollout/reward/mean"] is None


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(2), torch.tensor(0.25), True])
def test_numbers_of_other_libraries_are_accepted(tmp_path: Path, value: Any) -> None:
    make(tmp_path).log({"x": value}, 1)
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["x"] == float(value)


@pytest.mark.parametrize("value", ["0.5", None, [1.0], torch.zeros(2)])
def test_what_is_no_number_is_refused_by_name_and_nothing_is_written(tmp_path: Path, value: Any) -> None:
    monitor = make(tmp_path)
    with pytest.raises(WorkflowError, match=r"\[E5190\] metric 'rollout/x' must be a number, got .*log_table"):
        monitor.log({"actor/loss": 0.5, "rollout/x": value}, 1)
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_reserved_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match=r"\[E5191\] metric name 'step' is reserved"):
        make(tmp_path).log({"step": 1.0}, 1)


def test_resume_cuts_to_the_state_and_the_same_lines_follow(tmp_path: Path) -> None:
    explorer, trainer = make(tmp_path, actor="explorer"), make(tmp_path)
    for step in (1, 2, 3):
        explorer.log({"e": step}, step)
        trainer.log({"t": step}, step)
        trainer.log_table("rollout_examples", [{"prompt": f"p{step}"}], step)
        if step == 2:
            state = trainer.state_dict()
    assert state == {"lines": 2, "samples": 2}
    again = make(tmp_path)
    again.truncate(state)
    again.log({"t": 30}, 3)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [(r["seq"], r["t"]) for r in records if r["actor"] == "trainer"] == [(0, 1), (1, 2), (2, 30)]
    assert [r["e"] for r in records if r["actor"] == "explorer"] == [1, 2, 3]
    samples = read_metrics(tmp_path / "monitor" / "samples.jsonl")
    assert [sample["row"]["prompt"] for sample in samples] == ["p1", "p2"]


def test_a_resume_without_checkpoint_starts_anew(tmp_path: Path) -> None:
    make(tmp_path).log({"t": 1}, 1)
    again = make(tmp_path)
    again.truncate({"lines": 0})
    again.log({"t": 2}, 1)
    assert [(r["seq"], r["t"]) for r in read_metrics(tmp_path / "metrics.jsonl")] == [(0, 2)]


def test_lines_that_the_disk_lost_are_reported(tmp_path: Path, caught: list[str]) -> None:
    monitor = make(tmp_path)
    monitor.log({"t": 1}, 1)
    monitor.truncate({"lines": 4})
    assert "holds 1 lines of trainer and the checkpoint counts 4" in caught[0]


def test_tensorboard_gets_the_scalars_of_each_actor(tmp_path: Path) -> None:
    for actor in ("explorer", "trainer"):
        monitor = make(tmp_path, "tensorboard", actor=actor)
        monitor.log({"x": 0.5}, 1)
        monitor.log({"x": 1.5}, 2)
        monitor.close()
        monitor.close()
        assert scalars(tmp_path, actor, "x") == [(1, 0.5), (2, 1.5)]


def test_tensorboard_forgets_what_the_resume_cut(tmp_path: Path) -> None:
    first = make(tmp_path, "tensorboard")
    for step, value in [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]:
        first.log({"x": value}, step)
    first.log({"y": 4.0}, 4)
    first.close()
    # Event files are read in the order of their names: the second they were begun in, then a counter without zeros.
    time.sleep(1.0 - time.time() % 1.0)
    second = make(tmp_path, "tensorboard")
    second.truncate({"lines": 2})
    second.log({"x": 30.0}, 3)
    second.close()
    assert scalars(tmp_path, "trainer", "x") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_tables_are_lines_and_text_in_tensorboard(tmp_path: Path) -> None:
    monitor = make(tmp_path, "tensorboard")
    monitor.log_table("rollout_examples", [{"prompt": "1+1", "reward": 1.0, "extra": {2}, "nan": math.nan}], 7)
    monitor.close()
    sample = read_metrics(tmp_path / "monitor" / "samples.jsonl")[0]
    assert (sample["table"], sample["step"]) == ("rollout_examples", 7)
    assert sample["row"] == {"prompt": "1+1", "reward": 1.0, "extra": "{2}", "nan": "nan"}
    events = EventAccumulator(str(tmp_path / "monitor" / "tensorboard" / "trainer"))
    events.Reload()
    text = events.Tensors("rollout_examples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "1+1" in text


@pytest.mark.usefixtures("plugins")
def test_a_failing_backend_is_counted_and_told_once(tmp_path: Path, caught: list[str]) -> None:
    monitor = make(tmp_path, "failing")
    for step in range(3):
        monitor.log({"x": 1.0}, step)
    monitor.close()
    assert monitor.num_failures == 3
    assert len(caught) == 1
    assert "ConnectionError: the server is away" in caught[0]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3


def test_a_metrics_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caught: list[str]) -> None:
    monitor = make(tmp_path)
    monitor.log({"x": 1.0}, 1)
    (tmp_path / "metrics.jsonl").rename(tmp_path / "moved")
    (tmp_path / "metrics.jsonl").mkdir()
    monitor.log({"x": 2.0}, 2)
    monitor.log({"x": 3.0}, 3)
    assert monitor.num_failures == 2
    assert [message for message in caught if "metrics.jsonl failed" in message] == caught[:1]


@pytest.mark.usefixtures("plugins")
def test_a_published_plugin_runs_unchanged(tmp_path: Path) -> None:
    assert PUBLISHED_MONITOR is MONITOR
    monitor = make(tmp_path, "old_style", monitor_args={"colour": "red"})
    monitor.log({"x": 1.0}, 4)
    monitor.close()
    assert OldStyleMonitor.last == {"who": "p/n/n/trainer", "colour": "red", "step": 4, "commit": True, "x": 1.0}
    monitor = make(tmp_path, "old_style", monitor_args={"colour": "red"})
    monitor.log_table("t", [{"a": 1}], 5)
    monitor.close()
    assert OldStyleMonitor.last == {"table": "t", "rows": [{"a": 1}]}


def test_a_listener_hears_every_call(tmp_path: Path) -> None:
    heard: list[tuple[str, int, dict[str, float]]] = []

    def listen(actor: str, step: int, data: Mapping[str, float]) -> None:
        heard.append((actor, step, dict(data)))

    make(tmp_path, listener=listen).log({"x": 1.0}, 4)
    assert heard == [("trainer", 4, {"x": 1.0})]


def test_an_unknown_monitor_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown monitor 'wanbd'; did you mean 'wandb'"):
        make(tmp_path, "wanbd")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "swanlab"])
def test_a_missing_package_names_its_extra(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.entities", None)
    with pytest.raises(EnvironmentProblem, match=rf"\[E3301\] .*pip install 'trinity-rft\[{name}\]'"):
        make(tmp_path, name)


def test_default_arguments_are_those_of_the_table_of_contents() -> None:
    for name in ("tensorboard", "wandb", "mlflow", "swanlab", "prometheus"):
        assert MONITOR.get(name).default_args() == MONITOR.contents[name].args


def test_the_log_file_has_a_line_for_each_step_and_the_console_has_not(tmp_path: Path) -> None:
    printed: list[str] = []
    log_to_console(write=printed.append)
    try:
        with logged_to_file("trainer", tmp_path / "trainer.log"):
            monitor = make(tmp_path)
            monitor.log({"actor/loss": 0.5, "rollout/reward/mean": 0.25, "perf/other": 3.0}, 7)
            monitor.log({"perf/other": 3.0}, 8)
    finally:
        for handler in [h for h in logging.getLogger("trinity").handlers if h.get_name() == "console"]:
            logging.getLogger("trinity").removeHandler(handler)
    lines = (tmp_path / "trainer.log").read_text().splitlines()
    assert [line.split("monitor: ")[1].strip() for line in lines] == ["step 7  loss 0.5000  reward 0.250", "step 8"]
    assert printed == []


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(("written", "colour"), [(None, "red"), ({"size": 2}, "red"), ({"colour": "blue"}, "blue")])
def test_the_default_arguments_of_a_plugin_are_its_arguments(
    tmp_path: Path, written: dict[str, Any] | None, colour: str
) -> None:
    monitor = make(tmp_path, "with_defaults", monitor_args=written)
    monitor.log({"a": 1.0}, 1)
    monitor.close()
    assert OldStyleMonitor.last["colour"] == colour


# ------------------------------------------------------------------ veRL's names, several monitors
def test_metrics_are_also_under_verls_names_where_a_run_asks_for_them(tmp_path: Path) -> None:
    metrics = {
        "time/update_actor": 0.5, "time/train_step": 2.0, "time/read_experience": 1.0, "time/sync_weight": 0.25,
        "perf/total_num_tokens": 100.0, "actor/final_loss": 0.125, "actor/pg_loss": 0.75,
        "global_seqlen/max": 9.0, "global_seqlen/min": 4.0,
    }  # fmt: skip
    lines = {}
    for wanted in (False, True):
        folder = tmp_path / str(wanted)
        monitor = Monitor(
            folder, project="p", name="n", actor="trainer", monitor_type=None, verl_names=wanted
        )  # fmt: skip
        monitor.log(metrics, step=3)
        monitor.close()
        (lines[wanted],) = read_metrics(folder / "metrics.jsonl")
    added = {name: value for name, value in lines[True].items() if name not in lines[False]}
    assert added == {
        "timing_s/update_actor": 0.5, "timing_s/step": 3.25, "timing_s/update_weights": 0.25,
        "timing_per_token_ms/update_actor": 5.0, "actor/loss": 0.125, "training/global_step": 3.0,
        "global_seqlen/minmax_diff": 5.0,
    }  # fmt: skip


def test_several_monitors_get_the_same_metrics_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    got: dict[str, list[float]] = {"first": [], "second": []}

    def made(place: str) -> type[MonitorBackend]:
        class Kept(MonitorBackend):
            is_local = True

            def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
                if place == "first" and step == 2:
                    raise OSError("no place")
                got[place].append(data["loss"])

        return Kept

    for place in got:
        MONITOR.register_module(f"kept_{place}", force=True)(made(place))
    monitor = Monitor(tmp_path, project="p", name="n", actor="trainer", monitor_type=["kept_first", "kept_second"])
    for step in (1, 2):
        monitor.log({"loss": float(step)}, step=step)
    monitor.close()
    for place in got:
        MONITOR.contents.pop(f"kept_{place}")
        MONITOR.classes.pop(f"kept_{place}")
    assert got == {"first": [1.0], "second": [1.0, 2.0]} and monitor.num_failures == 1
