"""Mode serve killed at random moments: what it acknowledged is in the store, once."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.serving import Serving
from tests.prepared import DEADLINE_S
from trinity.explorer.proxy.client import ServeError, TrinityClient

pytestmark = pytest.mark.slow

KILLS = 5
CALLERS = 3
LEAST = 11  # answers before a kill


class _Caller(threading.Thread):
    """Calls, rewards and commits until the service is gone."""

    def __init__(self, serving: Serving, number: int, rewarded: dict[str, float]) -> None:
        super().__init__(daemon=True)
        self.client: TrinityClient = serving.client(f"caller{number}-{time.monotonic_ns()}")
        self.serving, self.number, self.rewarded = serving, number, rewarded
        self.asked = 0

    def run(self) -> None:
        gone = (ServeError, openai.APIConnectionError, httpx.HTTPError)
        with contextlib.suppress(*gone):
            while True:
                self.client.run_id += 1
                answer = self.serving.ask(self.client, max_tokens=2)
                reward = self.number + self.asked / 1000
                self.asked += 1
                self.client.feedback(reward, [answer.id])
                self.rewarded[answer.id.removeprefix("chatcmpl-")] = reward
                if self.asked % 3 == 0:
                    self.client.commit()


def test_random_kills_lose_and_repeat_nothing(tmp_path: Path):
    serving, chance = Serving(tmp_path / "run"), random.Random(7)
    rewarded: dict[str, float] = {}
    try:
        for _ in range(KILLS):
            serving.start()
            callers = [_Caller(serving, number, rewarded) for number in range(CALLERS)]
            for caller in callers:
                caller.start()
            enough = len(rewarded) + chance.randint(LEAST, 5 * LEAST)
            while len(rewarded) < enough and any(caller.is_alive() for caller in callers):
                time.sleep(0.005)
            time.sleep(chance.uniform(0.0, 0.1))  # at any point of a call
            serving.kill()
            for caller in callers:
                caller.join(DEADLINE_S)
                assert not caller.is_alive()
        serving.start().commit()
        serving.stop()
    finally:
        serving.kill()
    found: dict[str, float] = {}
    for experience in serving.stored():
        for message_id in experience.info["message_ids"]:
            assert message_id not in found, "an answer is in the store twice"
            assert experience.reward is not None
            found[message_id] = experience.reward
    assert len(rewarded) >= LEAST * KILLS, json.dumps(rewarded)
    # What is in addition was rewarded, and the service died before it said so.
    assert {each: found.get(each) for each in rewarded} == rewarded
    assert len(found) <= len(rewarded) + KILLS * CALLERS
    steps = serving.parts.query("select explore_step, count(*) from experience group by 1 order by 1")
    assert [step for step, _ in steps] == list(range(1, len(steps) + 1))
    assert serving.parts.query("select finished_step, is_open from producer") == [(len(steps), 0)]
