"""Agents of parallel sub-agents and of summaries, by the plain client: every response is trained once, in samples that
name what they follow, and a rollout of several samples counts once.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

import trinity
from tests.e2e.test_exact_tokens import Watch, call_of_history
from tests.e2e.tiny_run import TinyRun
from tests.loaded_plugins import forget_plugins
from trinity.buffer.schema.sql_schema import ExperienceModel
from trinity.common.experience import Experience
from trinity.launch.samples import Asked, samples_of

pytestmark = pytest.mark.slow

PLUGIN = '''
import asyncio
from collections import defaultdict
from itertools import count

from trinity.common.workflows import WORKFLOWS, Workflow

CALLS = []
ATTEMPTS = defaultdict(count)  # by task


def user(text):
    return {"role": "user", "content": text}


class Agent(Workflow):
    """Its attempts have one, two and three samples, if each answer can be written as it was said."""

    is_async = True

    async def run_async(self):
        number = next(ATTEMPTS[self.task.task_desc])
        self.client = self.model.get_openai_async_client()
        await self.act(number)
        CALLS.extend(self.model.extract_experience_from_history(clear_history=False))
        found = self.model.extract_trajectories_from_history()
        for experience in found:
            experience.reward = (0.0, 0.5, 2.0)[number]
            experience.metrics["number"] = number
        return found

    async def answered(self, messages, text):
        """Return the messages with a further question and its answer."""
        messages = [*messages, user(text)]
        made = await self.client.chat.completions.create(
            model=self.client.model_path, messages=messages, max_tokens=6, temperature=1.0
        )
        return [*messages, {"role": "assistant", "content": made.choices[0].message.content}]


@WORKFLOWS.register_module("parallel")
class Parallel(Agent):
    """Asks sub-agents at once, each of which has two turns of its own, and goes on with their answers."""

    async def act(self, number):
        plan = await self.answered([], self.task.task_desc)
        ended = await asyncio.gather(*(self.sub_agent(plan, name) for name in "ab"[:number]))
        await self.answered(plan, "they say " + " ".join(messages[-1]["content"] for messages in ended))

    async def sub_agent(self, plan, name):
        return await self.answered(await self.answered(plan, f"you are {name}"), "and?")


@WORKFLOWS.register_module("summaries")
class Summaries(Agent):
    """Replaces its messages by a summary and goes on, up to twice."""

    async def act(self, number):
        system = {"role": "system", "content": "solve:"}
        messages = await self.answered(await self.answered([system], self.task.task_desc), "and?")
        for _ in range(number):
            summary = user("so far " + messages[-1]["content"])
            messages = await self.answered(await self.answered([system, summary], "go on"), "and?")
'''


def rows_of(folder: Path) -> list[Experience]:
    with Session(create_engine(f"sqlite:///{folder}/kept.db")) as session:
        return [row.to_experience() for row in session.scalars(select(ExperienceModel))]


def links(samples: list[Experience]) -> list[tuple[Any, Any]]:
    return [(exp.info.get("trajectory"), exp.info.get("follows")) for exp in samples]


def is_sayable(sample: Experience) -> bool:
    """Return whether no token but the end of a turn is lost in the text."""
    return not {0, 2} & set(sample.tokens.tolist())


def check_links(agent: str, samples: list[Experience]) -> None:
    """Check the samples of a rollout, in their order."""
    if len(samples) == 1:
        assert links(samples) == [(None, None)]
        return
    chain = {"parallel": [(0, None), (1, 0), (2, 0)], "summaries": [(0, None), (1, 0), (2, 1)]}[agent]
    assert links(samples) == chain[: len(samples)]
    for sample in samples[1:]:
        followed, shared = samples[sample.info["follows"]], sample.info["shared_tokens"]
        assert sample.tokens[:shared].tolist() == followed.tokens[:shared].tolist()
        assert sample.tokens[shared] != followed.tokens[shared]
        assert (shared > sample.prompt_length) == (agent == "parallel"), "a branch shares a response, a summary none"


@pytest.mark.difference("Several sequences of a rollout in a group")
@pytest.mark.parametrize("agent", ["parallel", "summaries"])
def test_every_response_is_trained_once_in_linked_samples_of_rollouts_that_count_once(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_plugins()
    monkeypatch.chdir(tmp_path)
    run = TinyRun(tmp_path).change(
        model__max_model_len=256,
        model__max_prompt_tokens=200,
        algorithm__repeat_times=3,
        buffer__explorer_input__default_workflow_type=agent,
        buffer__trainer_input={"experience_buffer": {"name": "kept", "storage_type": "sql", "path": "sqlite:///kept.db"}},
        explorer__rollout_model={"dtype": "float32", "enable_openai_api": True, "enable_history": True},
    )  # fmt: skip
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "agents.py").write_text(PLUGIN)
    watch = Watch(monkeypatch)
    report = trinity.run(run.tree | {"plugin_dirs": ["plugins"]})
    assert report.stages[0].training_step == 2
    calls = sys.modules["trinity.plugins.agents"].CALLS
    sampled = Counter(watch.sampled)
    assert Counter(map(call_of_history, calls)) == sampled and len(calls) == len(watch.sampled) > 12 * 3
    assert Counter(watch.trained_calls()) == sampled

    groups: dict[str, dict[int, list[Experience]]] = defaultdict(lambda: defaultdict(list))
    for exp in sorted(rows_of(tmp_path), key=lambda exp: exp.eid.step):
        groups[exp.eid.tid][exp.eid.run].append(exp)
    actions = sum(int(exp.action_mask.sum()) for group in groups.values() for run in group.values() for exp in run)
    assert len(groups) == 4 and actions == sum(len(response) for _, response, *_ in watch.sampled)
    checked: list[int] = []
    for group in groups.values():
        rewards = [samples[0].reward for samples in group.values()]
        mean = sum(rewards) / 3
        std = (sum((reward - mean) ** 2 for reward in rewards) / 2) ** 0.5
        assert sorted(rewards) == [0.0, 0.5, 2.0] and sorted(group) == [0, 1, 2]
        for samples, reward in zip(group.values(), rewards, strict=True):
            assert all(exp.info["follows"] < number for number, exp in enumerate(samples) if number)
            if all(map(is_sayable, samples)):
                checked.append(len(samples))
                assert len(samples) == samples[0].metrics["number"] + 1
                check_links(agent, samples)
            for exp in samples:
                assert exp.reward == reward
                advantages = exp.advantages[exp.action_mask].tolist()
                assert advantages == pytest.approx([(reward - mean) / (std + 1e-6)] * len(advantages), rel=1e-5)
    assert {1, 2, 3} <= set(checked) and len(checked) >= 6
    shown = samples_of(Path(report.stages[0].job_dir), Asked(number=1000), url=f"sqlite:///{tmp_path}/kept.db")
    assert {(each["turn"], each.get("follows")) for each in shown if each.get("trajectory")} >= {("1", 0)}
