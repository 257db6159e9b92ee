"""With `deterministic: true` neither timing nor failures of others change a sample."""

from __future__ import annotations

from typing import Any

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import Chatting, Jittery, make
from trinity.common.workflows import Task, Workflow

QUESTIONS = ["1+1=", "12+34=", "abc", "9*9=", "hello", "x", "5-4=?"]


def tasks(workflow: type[Workflow], repeats: int = 3, **row: Any) -> list[Task]:
    return [make(workflow, repeats, question=question, **row) for question in QUESTIONS]


def bits(rollouts: Rollouts, batch: list[Task], **settings: Any) -> list[tuple[Any, ...]]:
    """Return ids, tokens, exact log-probabilities and reward of every experience."""
    result = rollouts.run(batch, batch=4, is_deterministic=True, **settings)
    return [
        (e.eid.uid, e.tokens.tolist(), [x.hex() for x in e.logprobs.double().tolist()], e.reward)
        for e in result.experiences
    ]


def test_an_explore_step_is_the_same_bit_for_bit_whatever_the_timing(rollouts: Rollouts) -> None:
    first = bits(rollouts, tasks(Chatting))
    assert len(first) == len(QUESTIONS) * 3 * 2
    assert len({str(row[1]) for row in first}) > len(QUESTIONS)
    assert bits(rollouts, tasks(Jittery)) == first
    assert bits(rollouts, tasks(Jittery)) == first


def test_a_task_that_always_fails_takes_only_its_own_experiences(rollouts: Rollouts) -> None:
    batch = tasks(Jittery)
    batch[2] = make(Jittery, 3, question="abc", fails=True)
    first = bits(rollouts, batch, max_retry_times=1)
    assert {uid.split("/")[1] for uid, *_ in first} == {"0", "1", "3", "4", "5", "6"}
    assert bits(rollouts, batch, max_retry_times=1) == first


def test_a_batch_smaller_than_the_runners_does_not_wait_for_the_idle_ones(rollouts: Rollouts) -> None:
    assert len(bits(rollouts, tasks(Chatting, 1)[:2], num_runners=8)) == 4


def test_a_retry_draws_the_same_samples(rollouts: Rollouts) -> None:
    result = rollouts.run([make(Chatting, 1, question="12+34=")], batch=4)
    again = rollouts.run([make(Chatting, 1, question="12+34=")], batch=4)
    other = rollouts.run([make(Chatting, 1, question="12+34=")], batch=5)
    tokens = [[e.tokens.tolist() for e in r.experiences] for r in (result, again, other)]
    assert tokens[0] == tokens[1] != tokens[2]
