"""The greedy run beside the sampled ones: how it is sampled, what it gives them, and what its failure costs."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import Chatting, Repeating, make
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.workflows import WORKFLOWS, Task
from trinity.explorer.advantage_inputs import attach_baselines, run_reward
from trinity.explorer.metrics import rollout_metrics
from trinity.explorer.outcome import BatchResult
from trinity.trainer.batch import collate


def _greedy_tokens(rollouts: Rollouts, prompt: list[int], count: int) -> list[int]:
    """Return what the model itself thinks most probable, token by token."""
    model = AutoModelForCausalLM.from_pretrained(rollouts.model_path, dtype=torch.float32)
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens


def _run(rollouts: Rollouts, tasks: list[Task], **settings: object) -> BatchResult:
    async def scenario() -> BatchResult:
        async with rollouts.scheduler(**settings) as scheduler:
            return await scheduler.schedule(tasks, batch=1, with_baseline=True)

    return asyncio.run(scenario())


def _simple(question: str, repeats: int) -> Task:
    return Task(
        workflow=WORKFLOWS.get("simple_workflow"),
        repeat_times=repeats,
        raw_task={"question": question, "response": "1"},
        format_args={"prompt_key": "question"},
        rollout_args={"temperature": 1.0, "max_tokens": 6},
        reward_fn=REWARD_FUNCTIONS.get("accuracy_reward"),
        index={"index": 0, "taskset_id": 0},
    )


def test_the_run_beside_the_samples_is_greedy_whatever_the_workflow_asks_for(rollouts: Rollouts) -> None:
    tasks = [make(Chatting, 2, question="12+34="), _simple("9*9=", 1)]
    for is_deterministic in (False, True):
        result = _run(rollouts, tasks, is_deterministic=is_deterministic)
        assert [(r.task, r.run) for r in result.results] == [(0, 0), (0, 1), (1, 0)]
        for turns in result.completed_baselines.values():
            for turn in turns:
                prompt = turn.tokens[: turn.prompt_length].tolist()
                assert turn.tokens.tolist() == _greedy_tokens(rollouts, prompt, turn.response_length)
        assert [e.eid.uid for e in result.completed_baselines[0]] == ["1/0/2/0/", "1/0/2/1/"]
        assert [e.eid.uid for e in result.completed_baselines[1]] == ["1/1/1/0/"]
        greedy = [e.tokens.tolist() for e in result.completed_baselines[0]]
        assert any(e.tokens.tolist() not in greedy for e in result.experiences if e.eid.task == 0)


@pytest.mark.difference("ReMax")
def test_samples_carry_the_reward_of_their_tasks_greedy_run(rollouts: Rollouts) -> None:
    tasks = [make(Repeating, 2, rewards=[1.0, 0.0, 0.25]), make(Repeating, 2, rewards=[0.5, 0.5, -1.0])]
    result = _run(rollouts, tasks)
    metrics = attach_baselines(result)
    assert metrics == {
        "rollout/baseline_reward/mean": -0.375, "rollout/baseline_reward/max": 0.25,
        "rollout/baseline_reward/min": -1.0, "rollout/failed_baseline_count": 0.0,
    }  # fmt: skip
    assert [e.info["reward_baseline"] for e in result.experiences] == [0.25, 0.25, -1.0, -1.0]
    assert collate(result.experiences).values["reward_baselines"].tolist() == [0.25, 0.25, -1.0, -1.0]


@pytest.mark.difference("ReMax")
def test_a_task_without_its_greedy_run_is_dropped_and_counted(rollouts: Rollouts) -> None:
    rewards = ([1.0, 0.0, 0.5], [1.0, 0.0, "skip"], [1.0, 0.0, float("nan")])
    result = _run(rollouts, [make(Repeating, 2, name="lost", rewards=each) for each in rewards], max_retry_times=1)
    assert [e.eid.task for e in result.experiences] == [0, 0]
    metrics = rollout_metrics(result) | attach_baselines(result)
    counted = {name: metrics[f"rollout/{name}_count"] for name in ("finished_task", "dropped_group", "failed_baseline")}
    assert counted == {"finished_task": 1, "dropped_group": 2, "failed_baseline": 2}
    assert (metrics["rollout/failed_run_count"], metrics["rollout/retry_count"]) == (0, 1), "a bad reward comes again"
    assert metrics["rollout/baseline_reward/mean"] == 0.5 and metrics["rollout/reward/mean"] == 0.5
    assert result.reasons() == [
        "Repeating returned no experience for the rollout",
        "Repeating: reward must be a finite number of at most 1e+09, got nan (float)",
    ]


def test_without_greedy_runs_nothing_is_counted(rollouts: Rollouts) -> None:
    result = rollouts.run([make(Repeating, 2, rewards=[1.0, 0.0, 0.5])])
    assert attach_baselines(result) == {} and len(result.experiences) == 2
    assert all("reward_baseline" not in e.info for e in result.experiences)


def test_the_reward_of_a_run_is_the_mean_over_its_experiences_of_their_rewards(rollouts: Rollouts) -> None:
    (turns,) = _run(rollouts, [make(Chatting, 1, question="abc")]).completed_baselines.values()
    turns[0].reward, turns[1].reward = 1.0, 9.0
    tokens = torch.zeros(turns[1].response_length)
    tokens[:2] = torch.tensor([2.0, 5.0])
    turns[1].token_level_reward = tokens
    turns[1].action_mask = torch.arange(turns[1].response_length) != 1
    assert run_reward(turns) == pytest.approx((1.0 + 7.0) / 2), "those of tokens that the policy did not say, too"
