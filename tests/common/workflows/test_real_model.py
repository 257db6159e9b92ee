"""The built-in workflows on a real engine with a tiny model, in the forms in which a runner calls them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine, run
from trinity.common.config.buffer import FormatConfig, GenerationConfig
from trinity.common.experience import Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.workflows import WORKFLOWS, Task, describe, reset_workflow

NAMES = ["simple_workflow", "async_simple_workflow", "math_workflow", "async_math_workflow"]


def make_task(name: str, question: str, **rollout: Any) -> Task:
    format_args = {"prompt_key": "question", "response_key": "answer", "system_prompt": ""}
    return Task(
        workflow=WORKFLOWS.get(name),
        format_args=FormatConfig.model_validate(format_args),
        rollout_args=GenerationConfig.model_validate({"max_tokens": 6, **rollout}),
        reward_fn=REWARD_FUNCTIONS.get("accuracy_reward"),
        raw_task={"question": question, "answer": "#### 7"},
        batch_id=1,
        task_id=0,
    )


async def attempt(workflow: Any) -> list[Experience]:
    return await (workflow.run_async() if describe(workflow).is_async else asyncio.to_thread(workflow.run))


@pytest.mark.parametrize("name", NAMES)
def test_n_repeats_are_n_experiences_of_the_prompt(model_path: Path, name: str) -> None:
    async def main() -> list[Experience]:
        async with engine(model_path) as model:
            workflow = make_task(name, "3+4=", temperature=1.0).to_workflow(ModelWrapper(model).for_run(1, 0, 4, "r"))
            workflow.set_repeat_times(4, 4)
            return await attempt(workflow)

    experiences = run(main())
    assert [experience.eid.run for experience in experiences] == [4, 5, 6, 7]
    assert {experience.prompt_text for experience in experiences} == {"3+4="}
    assert len({tuple(experience.tokens.tolist()) for experience in experiences}) > 1
    for experience in experiences:
        assert experience.reward == experience.metrics["accuracy"]
        assert experience.logprobs is not None and len(experience.logprobs) == experience.response_length <= 6
        assert experience.info["model_version"] == 0


@pytest.mark.difference("`reset(task)`")
@pytest.mark.parametrize("name", NAMES)
def test_training_after_an_evaluation_samples_at_the_training_temperature(model_path: Path, name: str) -> None:
    async def main() -> tuple[list[Experience], list[Experience]]:
        async with engine(model_path) as model:
            workflow = make_task(name, "3+4=", temperature=0.0, max_tokens=3).to_workflow(ModelWrapper(model))
            workflow.set_repeat_times(6, 0)
            greedy = await attempt(workflow)
            reset_workflow(workflow, make_task(name, "3+4=", temperature=1.0))
            return greedy, await attempt(workflow)

    greedy, sampled = run(main())
    assert len({tuple(experience.tokens.tolist()) for experience in greedy}) == 1
    assert len({tuple(experience.tokens.tolist()) for experience in sampled}) > 1
    assert max(experience.response_length for experience in greedy) <= 3
    assert max(experience.response_length for experience in sampled) > 3


def test_a_group_in_one_run_equals_its_members_run_one_by_one(model_path: Path) -> None:
    async def main() -> tuple[list[Experience], list[Experience]]:
        async with engine(model_path) as model:
            task = make_task("async_simple_workflow", "3+4=", temperature=1.0)
            together = task.to_workflow(ModelWrapper(model).for_run(1, 0, 0, "a", num_runs=4))
            together.set_repeat_times(3, 0)
            group = await attempt(together)
            members: list[Experience] = []
            for index in range(3):
                alone = task.to_workflow(ModelWrapper(model).for_run(1, 0, index, "b"))
                alone.set_repeat_times(1, index)
                members += await attempt(alone)
            return group, members

    group, members = run(main())
    assert [experience.eid.run for experience in members] == [0, 1, 2]
    assert [experience.tokens.tolist() for experience in group] == [
        experience.tokens.tolist() for experience in members
    ]
