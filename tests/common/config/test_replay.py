"""Replay buffer and capacity: names and arguments with suggestions, what cannot be, what has no effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from trinity.buffer.priority import PRIORITY_CONTENTS
from trinity.common.config import Catalogue

OUTPUT = "buffer.trainer_input.experience_buffer"
REPLAY = f"{OUTPUT}.replay_buffer"
ON = (f"{REPLAY}.enable=true", f"{REPLAY}.reuse_cooldown_time=0")


def found(examined: Examine, *overrides: str) -> list[tuple[str, str, str | None]]:
    problems = examined(MINIMAL, *ON, *overrides)[1]
    return [(p.code, p.key, p.suggestion) for p in problems if REPLAY in p.key or p.key.startswith(OUTPUT)]


@pytest.fixture
def catalogue(catalogue: Catalogue) -> Catalogue:
    return replace(catalogue, tables={**catalogue.tables, "priority_fn": PRIORITY_CONTENTS})


@pytest.mark.parametrize("name", sorted(PRIORITY_CONTENTS))
def test_arguments_that_are_not_written_have_the_defaults_of_the_function(examined: Examine, name: str) -> None:
    plan, problems = examined(MINIMAL, *ON, f"{REPLAY}.priority_fn={name}", f"{REPLAY}.priority_fn_args.decay=0.5")
    assert not [p.render() for p in problems if p.is_error]
    buffer = plan.stages[0].config.buffer.trainer_input.experience_buffer
    assert buffer.replay_buffer.priority_fn_args == {**PRIORITY_CONTENTS[name].args, "decay": 0.5}
    assert buffer.capacity == 10000


@pytest.mark.difference("Replay without `reuse_cooldown_time`")
@pytest.mark.parametrize(
    ("override", "code", "key", "words"),
    [
        (f"{REPLAY}.priority_fn=linear_decai", "E1701", f"{REPLAY}.priority_fn", "linear_decay"),
        (f"{REPLAY}.priority_fn_args.deccay=1", "E1703", f"{REPLAY}.priority_fn_args.deccay", "decay"),
        (f"{REPLAY}.priority_fn_args.decay=fast", "E1704", f"{REPLAY}.priority_fn_args.decay", "2.0"),
        (f"{REPLAY}.priority_fn_args.decay=-1", "E1302", f"{REPLAY}.priority_fn_args.decay", "2.0"),
        (f"{REPLAY}.reuse_cooldown_time=-1", "E1302", f"{REPLAY}.reuse_cooldown_time", None),
        (f"{REPLAY}.reuse_cooldown_time=null", "W1902", f"{REPLAY}.enable", "reuse_cooldown_time: 0"),
        (f"{OUTPUT}.storage_type=sql", "E1867", f"{REPLAY}.enable", "storage_type: queue"),
        (f"{OUTPUT}.capacity=31", "E1865", f"{OUTPUT}.capacity", "capacity: 128"),
        (f"{OUTPUT}.capacity=0", "E1302", f"{OUTPUT}.capacity", None),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    examined: Examine, override: str, code: str, key: str, words: str | None
) -> None:
    problems = found(examined, override)
    assert [problem[:2] for problem in problems] == [(code, key)]
    assert words is None or words in str(problems[0][2])


def test_a_pause_and_a_deterministic_run_exclude_each_other(examined: Examine) -> None:
    (problem,) = found(examined, "deterministic=true", f"{REPLAY}.reuse_cooldown_time=5")
    assert problem == ("E1868", f"{REPLAY}.reuse_cooldown_time", "write `reuse_cooldown_time: 0`")


def test_arguments_of_a_buffer_that_is_not_enabled_have_no_effect(examined: Examine) -> None:
    problems = found(examined, f"{REPLAY}.enable=false", f"{REPLAY}.priority_fn=linear_decay")
    assert problems == [("W1902", REPLAY, "write `enable: true`")]


def test_only_a_queue_has_a_capacity(examined: Examine) -> None:
    problems = examined(MINIMAL, f"{OUTPUT}.storage_type=sql", f"{OUTPUT}.capacity=5")[1]
    assert [(p.code, p.key) for p in problems if p.key.startswith(OUTPUT)] == [("W1902", f"{OUTPUT}.capacity")]


def test_with_replay_the_trainer_may_take_more_than_the_explorer_makes(examined: Examine) -> None:
    assert not [p for p in examined(MINIMAL, *ON, "buffer.train_batch_size=64")[1] if p.is_error]
    codes = {p.code for p in examined(MINIMAL, "buffer.train_batch_size=64")[1]}
    assert "E1824" in codes
    fewer = [p for p in examined(MINIMAL, *ON, "buffer.train_batch_size=16")[1] if p.code == "E1824"]
    assert [p.rule for p in fewer] == ["the trainer's number is at least the explorer's"]
