"""A tracker has one run for all actors, and gets everything, whatever happens on the way."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from trinity.monitor import MONITOR, Monitor, background, read_metrics, shipping
from trinity.monitor.tracker import Tracker, UnreachableError


class Recording(Tracker):
    """A tracker whose place is a list; `away` says what is wrong with it."""

    rows: list[dict[str, Any]] = []
    tables: list[tuple[str, int, list[dict[str, Any]]]] = []
    made: list[str] = []
    closed: list[str] = []
    away: dict[str, Exception] = {}
    run = "one"
    known: dict[str, float] | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._fail("start")
        self.identity = Recording.run
        Recording.made.append(self.role)

    def _fail(self, what: str) -> None:
        if what in Recording.away:
            raise Recording.away[what]

    def sent(self) -> Mapping[str, float] | None:
        return Recording.known

    def log_line(self, actor: str, step: int, time_s: float, data: Mapping[str, float]) -> None:
        self._fail("log")
        self._fail(f"log {step}")
        Recording.rows.append({"actor": actor, "step": step, "time_s": time_s, **data})

    def log_table(self, table_name: str, experiences_table: Any, step: int) -> None:
        self._fail("table")
        Recording.tables.append((table_name, step, experiences_table.to_dict("records")))

    def close(self) -> None:
        Recording.closed.append(self.role)


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Recording]]:
    MONITOR.register_module("recording", force=True)(Recording)
    Recording.rows, Recording.tables, Recording.made, Recording.closed = [], [], [], []
    Recording.away, Recording.run, Recording.known = {}, "one", None
    monkeypatch.setattr(shipping, "POLL_S", 0.02)
    monkeypatch.setattr(shipping, "PAUSES_S", (0.02, 0.05))
    monkeypatch.setattr(background, "CLOSE_S", 60.0)
    yield Recording
    MONITOR.contents.pop("recording")
    MONITOR.classes.pop("recording")


def make(job: Path, actor: str = "trainer", **settings: Any) -> Monitor:
    return Monitor(
        job, project="p", name="n", actor=actor, monitor_type="recording", hyperparameters={"seed": 1} | settings
    )


def values(name: str) -> list[Any]:
    return [row[name] for row in Recording.rows if name in row]


def wait_for(what: Any) -> None:
    for _ in range(6000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("waited for a minute")


def test_one_of_two_actors_sends_the_metrics_of_both(tmp_path: Path) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    for step in range(3):
        explorer.log({"e": step, "nan": math.nan}, step)
        trainer.log({"t": step}, step)
    trainer.log_table("rollout_examples", [{"prompt": "a"}, {"prompt": "b"}], 2)
    explorer.close()
    trainer.close()
    assert values("e") == [0, 1, 2] and values("t") == [0, 1, 2] and all(map(math.isnan, values("nan")))
    assert [row["step"] for row in Recording.rows if "t" in row] == [0, 1, 2]
    assert Recording.tables == [("rollout_examples", 2, [{"prompt": "a"}, {"prompt": "b"}])]
    assert Recording.made == Recording.closed  # on a busy machine the other may come to see that nothing is left
    assert explorer.num_failures == trainer.num_failures == 0


def test_the_other_actor_goes_on_where_the_first_has_ended(tmp_path: Path) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    explorer.log({"e": 0}, 0)
    explorer.close()
    trainer.log({"t": 1}, 1)
    trainer.close()
    assert (values("e"), values("t")) == ([0], [1])
    assert Recording.made == Recording.closed and Recording.made[-1] == "trainer"


def test_names_that_both_actors_log_are_told_apart(tmp_path: Path) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    explorer.log({"time/sync_weight": 1, "own": 1}, 0)
    trainer.log({"time/sync_weight": 2, "own": 2}, 0)
    explorer.close()
    trainer.close()
    assert values("explorer/time/sync_weight") == [1] and values("trainer/time/sync_weight") == [2]
    assert values("own") == [1] and values("trainer/own") == [2]
    later = make(tmp_path)
    later.log({"own": 3}, 1)
    later.close()
    assert values("trainer/own") == [2, 3], "the name of another actor does not become that of this one"


@pytest.mark.parametrize("what", ["start", "log"])
def test_a_place_that_was_away_gets_what_it_missed_in_order(tmp_path: Path, caught: list[str], what: str) -> None:
    Recording.away = {what: UnreachableError("no route")}
    monitor = make(tmp_path)
    for step in range(5):
        monitor.log({"x": step}, step)
    wait_for(lambda: caught)
    monitor.log({"x": 5}, 5)
    assert Recording.rows == []
    Recording.away = {}
    wait_for(lambda: len(Recording.rows) == 6)
    monitor.close()
    assert values("x") == [0, 1, 2, 3, 4, 5] and monitor.num_failures == 0
    assert len(caught) == 1
    assert (
        "monitor recording cannot be reached; the run continues, metrics.jsonl has every metric, and what is"
        in caught[0]
    )
    assert "no route" in caught[0]


def test_what_was_not_sent_by_the_end_is_told_and_sent_by_the_next_start(tmp_path: Path, caught: list[str]) -> None:
    first = make(tmp_path)
    first.log({"x": 0}, 0)
    wait_for(lambda: values("x") == [0])
    Recording.away = {"log": UnreachableError("no route"), "table": UnreachableError("no route")}
    for step in (1, 2, 3):
        first.log({"x": step}, step)
    first.log_table("t", [{"a": 1}], 3)
    first.close()
    assert [text for text in caught if "4 calls were not sent; metrics.jsonl has every metric, and the next" in text]
    Recording.away = {}
    second = make(tmp_path)
    second.truncate({"lines": 3, "samples": 1})
    second.log({"x": 3}, 3)
    second.close()
    assert values("x") == [0, 1, 2, 3] and len(Recording.tables) == 1


def live(job: Path, first: int, last: int, *, actor: str = "trainer", value: float = 0.0, **settings: Any) -> None:
    """Log what an actor logs from a checkpoint after `first` steps on, an evaluation at each second step."""
    monitor = make(job, actor, **settings)
    monitor.truncate({"lines": first + first // 2, "samples": first})
    for step in range(first + 1, last + 1):
        monitor.log({"x": step + value}, step)
        monitor.log_table("t", [{"a": step}], step)
        if step % 2 == 0:
            monitor.log({"eval": step + value}, step)
    monitor.close()
    assert monitor.num_failures == 0


def test_what_a_place_has_is_not_sent_again_by_a_resume(tmp_path: Path) -> None:
    for actor, (first, last) in {"explorer": (0, 5), "trainer": (0, 4)}.items():
        live(tmp_path, first, last, actor=actor)
    live(tmp_path, 2, 7, actor="trainer", value=0.5)
    live(tmp_path, 2, 8, actor="trainer", value=0.5)  # the checkpoint is the same one
    of_trainer = [row for row in Recording.rows if row["actor"] == "trainer"]
    shown = [(row["step"], row[name]) for name in ("trainer/x", "trainer/eval") for row in of_trainer if name in row]
    assert shown == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 5.5),
        (6, 6.5),
        (7, 7.5),
        (8, 8.5),
        (2, 2),
        (4, 4),
        (6, 6.5),
        (8, 8.5),
    ]
    assert [table[1] for table in Recording.tables if table[0] == "trainer/t"] == list(range(1, 9))
    assert values("x") == [1, 2, 3, 4, 5] and values("eval") == [2, 4]
    assert [line["x"] for line in read_metrics(tmp_path / "metrics.jsonl") if "x" in line][-6:] == [
        3.5,
        4.5,
        5.5,
        6.5,
        7.5,
        8.5,
    ]


def test_what_other_settings_give_is_sent_also_of_steps_that_are_there(tmp_path: Path) -> None:
    live(tmp_path, 0, 4)
    live(tmp_path, 2, 5, value=0.5, algorithm={"lr": 1.0})
    live(tmp_path, 4, 6, value=0.5, algorithm={"lr": 1.0}, log={"level": "debug"}, monitor={"monitor_type": "wandb"})
    assert values("x") == [1, 2, 3, 4, 3.5, 4.5, 5.5, 6.5]


@pytest.mark.parametrize("num_there", range(8))
def test_what_the_place_lost_is_sent_and_what_it_has_is_not(tmp_path: Path, num_there: int) -> None:
    """A client that was killed sent the first calls alone: x 1, x 2, eval 2, x 3, x 4, eval 4, x 5."""
    live(tmp_path, 0, 5)
    kept = Recording.rows = Recording.rows[:num_there]
    Recording.known = {"trainer": kept[-1]["time_s"]} if kept else {}
    live(tmp_path, 2, 6)
    number = Counter((row["step"], name) for row in Recording.rows for name in ("x", "eval") if name in row)
    assert number.keys() == {*((step, "x") for step in range(1, 7)), *((step, "eval") for step in (2, 4, 6))}
    # Where the place ends between two calls of a step, it is not known which metrics of that step it has. It gets the
    # first again, unless the thread has sent what came after it before the resume shortens the file.
    assert {each for each, times in number.items() if times > 1} <= ({(4, "x")} if num_there == 5 else set())
    assert max(number.values()) <= 2


def test_a_place_that_shows_the_last_values_gets_what_is_logged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "shows_last", True)
    live(tmp_path, 0, 4)
    live(tmp_path, 2, 4)
    assert values("x") == [1, 2, 3, 4, 3, 4]


def test_a_call_that_the_place_refuses_is_left_out_and_counted(tmp_path: Path, caught: list[str]) -> None:
    Recording.away = {"log 1": ValueError("no such name")}
    monitor = make(tmp_path)
    for step in range(3):
        monitor.log({"x": step}, step)
    monitor.close()
    assert values("x") == [0, 2] and monitor.num_failures == 1
    assert len(caught) == 1 and "ValueError: no such name" in caught[0]


def test_a_run_that_is_new_at_its_place_gets_everything(tmp_path: Path) -> None:
    first = make(tmp_path)
    first.log({"x": 0}, 0)
    first.close()
    Recording.run, Recording.rows = "two", []
    second = make(tmp_path)
    second.log({"x": 1}, 1)
    second.close()
    assert values("x") == [0, 1]


def test_a_place_that_says_what_it_has_gets_the_rest(tmp_path: Path) -> None:
    first = make(tmp_path)
    for step in range(4):
        first.log({"x": step}, step)
    first.close()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    Recording.known, Recording.rows = {"trainer": lines[1]["time"]}, []
    make(tmp_path).close()
    assert values("x") == [2, 3]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"metrics": 3}'])
def test_a_damaged_state_begins_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "monitor").mkdir(parents=True)
    (tmp_path / "monitor" / "recording.json").write_text(content)
    monitor = make(tmp_path)
    monitor.log({"x": 1}, 1)
    monitor.close()
    assert values("x") == [1]
    assert json.loads((tmp_path / "monitor" / "recording.json").read_text())["identity"] == "one"


@pytest.mark.timeout(50)  # less than what hangs
def test_a_place_that_hangs_keeps_neither_the_run_nor_its_end_waiting(
    tmp_path: Path, caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "START_S", 0.3)
    monkeypatch.setattr(background, "CLOSE_S", 0.3)
    released = threading.Event()
    monkeypatch.setattr(Recording, "log_line", lambda *_: released.wait(60))
    monitor = make(tmp_path)
    for step in range(3):
        monitor.log({"x": step}, step)
    monitor.close()
    released.set()
    assert [line["x"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert "monitor recording does not answer: the run ends without it, 3 calls were not sent" in caught[-1]
