"""Workflows as a plugin writes them, which do what their task's row says."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trinity.common.experience import EID, Experience
from trinity.common.rewards import FormatReward
from trinity.common.rewards.reward_fn import RewardFn
from trinity.common.workflows import WORKFLOWS, SimpleWorkflow, Task, Workflow

ATTEMPTS: Counter[str] = Counter()
INSTANCES: Counter[str] = Counter()
STARTS: Counter[str] = Counter()
THREADS: dict[str, set[str]] = {}
PEAK: Counter[str] = Counter()
HANG_S = 600.0
_at_work: Counter[str] = Counter()
_lock = threading.Lock()

REWARDS: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "huge": 1e30,
    "none": None,
    "text": "1.0",
    "truth": True,
    "list": [1.0],
}
SCORERS = {
    "scorer_fails": FormatReward(pattern="[", deadline_s=60),
    "scorer_hangs": FormatReward(pattern=r"(a+)+$", deadline_s=0.5),
}
RETURNS: dict[str, Any] = {"nothing": None, "number": 1.0, "empty": [], "wrong": ["an experience"]}


def experience(reward: Any = 1.0, **fields: Any) -> Experience:
    """Return an experience of two prompt and three response tokens."""
    return Experience(tokens=[5, 6, 7, 8, 9], prompt_length=2, logprobs=[-0.1, -0.2, -0.3], reward=reward, **fields)


def act(task: Task) -> list[Experience]:
    """Do what `raw_task["act"]` says; count the attempt under `raw_task["name"]`."""
    row = task.raw_task or {}
    what, name = row["act"], row.get("name", "")
    ATTEMPTS[name] += 1
    THREADS.setdefault(name, set()).add(threading.current_thread().name)
    if what == "raise" or (what == "flaky" and ATTEMPTS[name] == 1):
        raise ZeroDivisionError("the plugin divides by zero")
    if what == "exit":
        sys.exit(7)
    if what in SCORERS:
        SCORERS[what]("a" * 60 + "!")
    if what in RETURNS:
        return RETURNS[what]
    if what == "turns":
        return [experience(0.5), experience(1.0)]
    if what in REWARDS:
        return [experience(REWARDS[what])]
    return [experience(float(row.get("reward", 1.0)), metrics={"accuracy": float(row.get("reward", 1.0))})]


class Scripted(Workflow):
    """Synchronous, built again for every attempt."""

    def __init__(self, *, task: Task, model: Any, auxiliary_models: list[Any] | None = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        INSTANCES[type(self).__name__] += 1
        if (task.raw_task or {}).get("act") == "broken_init":
            raise LookupError("no such environment")

    def run(self) -> list[Experience]:
        if (self.task.raw_task or {})["act"] == "hang":
            ATTEMPTS[(self.task.raw_task or {}).get("name", "")] += 1
            time.sleep(HANG_S)
        return act(self.task)


class Resettable(Scripted):
    """Used again for the next task."""

    can_reset = True


@contextmanager
def counted(name: str) -> Iterator[int]:
    """Keep how many of this name are at work, and the most there ever were, in `PEAK`; yield how many began before."""
    with _lock:
        STARTS[name] += 1
        _at_work[name] += 1
        PEAK[name] = max(PEAK[name], _at_work[name])
        before = STARTS[name] - 1
    try:
        yield before
    finally:
        with _lock:
            _at_work[name] -= 1


class Asynchronous(Workflow):
    """Runs on the event loop."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        row = self.task.raw_task or {}
        with counted(row.get("name", "")) as before:
            if row["act"] == "hang" or (row["act"] == "once" and before):
                await asyncio.sleep(HANG_S)
            if row["act"] == "cancel":
                raise asyncio.CancelledError
            await asyncio.sleep(float(row.get("delay", 0.0)))
        return act(self.task)


class Repeating(Workflow):
    """One run returns the experiences of all repeats; `eid.run` is set where the row asks for it."""

    can_repeat = True

    def run(self) -> list[Experience]:
        row = self.task.raw_task or {}
        ATTEMPTS[row.get("name", "")] += 1
        rewards = row["rewards"][self.run_id_base : self.run_id_base + self.repeat_times]
        numbered = enumerate(rewards, start=self.run_id_base)
        if row.get("positional"):
            return [experience(reward) for reward in rewards]
        return [experience(reward, eid=EID(run=run)) for run, reward in numbered if reward != "skip"]


class Scoring(SimpleWorkflow):
    """One response a repeat, scored by the base class as the row's list of acts says."""

    default_reward_fn = "accuracy_reward"

    def run(self) -> list[Experience]:
        acts = (self.task.raw_task or {})["acts"][self.run_id_base : self.run_id_base + self.repeat_times]
        return self.score([experience(None, response_text=what) for what in acts])

    def scores(self, experience: Experience) -> dict[str, float]:
        what = experience.response_text or ""
        return SCORERS[what]("a" * 60 + "!") if what in SCORERS else {"accuracy": 1.0}


class Chatting(Workflow):
    """Two turns with the model; the reward is the length of the answers modulo 3."""

    def run(self) -> list[Experience]:
        messages = [{"role": "user", "content": (self.task.raw_task or {})["question"]}]
        turns = []
        for _ in range(2):
            (answer,) = self.model.chat(messages, n=1, temperature=1.0, max_tokens=6)
            messages = [*messages, {"role": "assistant", "content": answer.response_text}]
            answer.reward = float(len(answer.response_text or "") % 3)
            turns.append(answer)
        return turns


def make(workflow: type[Workflow], repeats: int = 1, **row: Any) -> Task:
    """Return a task for `workflow` with this row."""
    return Task(workflow=workflow, repeat_times=repeats, raw_task=row, index={"index": 7, "taskset_id": 0})


class Jittery(Chatting):
    """`Chatting` that pauses for a time that no seed decides, and fails where the row says so."""

    def run(self) -> list[Experience]:
        time.sleep(int.from_bytes(os.urandom(1)) / 255 * 0.05)
        if (self.task.raw_task or {}).get("fails"):
            raise OSError("the tool is down")
        return super().run()


@WORKFLOWS.register_module("test_chatting")
class RegisteredChatting(Chatting):
    """`Chatting` under a name that a taskset can give."""


@WORKFLOWS.register_module("test_scripted")
class RegisteredScripted(Scripted):
    """`Scripted` under a name that a taskset can give."""


@WORKFLOWS.register_module("test_asynchronous")
class RegisteredAsynchronous(Asynchronous):
    """`Asynchronous` under a name that a taskset can give."""


class HangingReward(RewardFn):
    """A scorer that does not return in time."""

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **_: Any) -> dict[str, float]:
        time.sleep(HANG_S)
        return {"accuracy": 1.0}


class ChecksumReward(RewardFn):
    """Tells texts apart."""

    def __call__(self, response: str, prompt: str | None = None, truth: Any = None, **_: Any) -> dict[str, float]:
        return {"checksum": zlib.crc32(response.encode()) % 1009}
