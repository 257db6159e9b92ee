"""Teacher log-probabilities and reward components: their values, and what is refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.engines import recomputed
from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import Chatting, Scripted, experience, make
from tests.tiny import CHARACTERS, tiny_model
from trinity.common.config import Config
from trinity.common.errors import ConfigError, WorkflowError
from trinity.common.experience import Experience
from trinity.common.models import create_auxiliary_models, create_inference_model
from trinity.common.rewards import RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow
from trinity.explorer.advantage_inputs import needed_inputs
from trinity.explorer.assembly import build_scheduler
from trinity.explorer.outcome import BatchResult, Failed, Rejected
from trinity.trainer.batch import collate

TEMPERATURE = 0.7


class Repeated(Workflow):
    """Says what its row says, with the teacher's scores of the row."""

    def run(self) -> list[Experience]:
        return [experience(teacher_logprobs=(self.task.raw_task or {})["scores"])]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    tiny_model(folder, "qwen2", seed=5)
    return folder


def _config(rollouts: Rollouts, *teachers: dict[str, Any], **algorithm: Any) -> Config:
    model = {"model_path": str(rollouts.model_path), "max_model_len": 240, "max_prompt_tokens": 200}
    return rollouts.config(
        model=model | {"max_response_tokens": 16, "temperature": TEMPERATURE},
        algorithm={"repeat_times": 2, "advantage_fn": "jsd"} | algorithm,
        explorer={
            "rollout_model": {"dtype": "float32", "seed": 3},
            "auxiliary_models": [{"dtype": "float32"} | each for each in teachers],
            "max_timeout": 30,
            "max_retry_times": 0,
        },
    )


def _run(config: Config, *tasks: Task) -> BatchResult:
    async def scenario() -> BatchResult:
        engines = [create_inference_model(config), *create_auxiliary_models(config)]
        try:
            for engine in engines:
                await engine.prepare()
            scheduler = build_scheduler(config, engines[0], auxiliary=engines[1:], needs=needed_inputs(config))
            return await scheduler.schedule(tasks, batch=1)
        finally:
            for engine in engines:
                await engine.shutdown()

    return asyncio.run(scenario())


def _question(workflow: str, **args: Any) -> Task:
    return Task(
        workflow=WORKFLOWS.get(workflow),
        repeat_times=2,
        raw_task={"question": "12+34=", "response": "46"},
        format_args={"prompt_key": "question"},
        rollout_args={"max_tokens": 6} | args.pop("rollout_args", {}),
        index={"index": 0, "taskset_id": 0},
        **args,
    )


@pytest.mark.difference("Teacher's log-probabilities")
def test_any_workflows_responses_are_scored_as_by_a_plain_forward_of_the_teacher(
    rollouts: Rollouts, teacher: Path
) -> None:
    other = {"temperature": 1.3}
    tasks = [make(Chatting, 2, question="12+34="), make(Chatting, 1, question="abc")]
    tasks[1].rollout_args = other
    result = _run(_config(rollouts, {"model_path": str(teacher)}), *tasks)
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    assert len(result.experiences) == 6
    for exp in result.experiences:
        temperature = TEMPERATURE if exp.eid.task == 0 else 1.3
        expected = recomputed(model, exp, temperature=temperature)
        torch.testing.assert_close(exp.teacher_logprobs, expected, atol=1e-5, rtol=0)
        assert exp.metrics["kl_divergence"] == pytest.approx(float((exp.logprobs - expected).sum()), abs=1e-4)
    assert "teacher_logprobs" in collate(result.experiences).columns


@pytest.mark.parametrize(
    ("name", "args", "temperature", "reward"),
    [
        ("on_policy_distill_workflow", {}, TEMPERATURE, {0.0}),
        ("on_policy_distill_workflow", {"rollout_args": {"temperature": 1.5}}, 1.5, {0.0}),
        ("on_policy_distill_math_workflow", {"workflow_args": {"temperature": 0.9}}, 0.9, {0.0, 1.0}),
    ],
)
def test_distillation_workflows_ask_the_teacher_themselves(
    rollouts: Rollouts, teacher: Path, name: str, args: dict[str, Any], temperature: float, reward: set[float]
) -> None:
    result = _run(_config(rollouts, {"model_path": str(teacher)}, advantage_fn="grpo"), _question(name, **args))
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    assert [e.eid.uid for e in result.experiences] == ["1/0/0/0/", "1/0/1/0/"], result.reasons()
    for exp in result.experiences:
        expected = recomputed(model, exp, temperature=temperature)
        torch.testing.assert_close(exp.teacher_logprobs, expected, atol=1e-5, rtol=0)
        assert exp.reward in reward and ("accuracy" in exp.metrics) == (len(reward) == 2)
        assert ("boxed" in (exp.prompt_text or "")) == (len(reward) == 2)


@pytest.mark.difference("Reward of `on_policy_distill_workflow`")
def test_a_distillation_workflow_has_the_reward_of_its_reward_function(rollouts: Rollouts, teacher: Path) -> None:
    config = _config(rollouts, {"model_path": str(teacher)}, advantage_fn="grpo")
    result = _run(config, _question("on_policy_distill_workflow", reward_fn=_Length))
    assert [exp.reward for exp in result.experiences] == [float(len(exp.response_text)) for exp in result.experiences]
    assert all(exp.reward > 0 and exp.teacher_logprobs is not None for exp in result.experiences)


class _Length(RewardFn):
    """The length of the response."""

    def __call__(self, response: str, truth: str | None = None) -> dict[str, float]:
        return {"length": float(len(response))}


def test_a_distillation_workflow_without_a_teacher_fails_with_what_to_write(rollouts: Rollouts) -> None:
    result = _run(_config(rollouts, advantage_fn="grpo"), _question("on_policy_distill_workflow"))
    assert "needs a teacher, the first of explorer.auxiliary_models, which is empty" in result.reasons()[0]
    assert result.count(Failed) == 2
    with pytest.raises(WorkflowError) as caught:
        WORKFLOWS.get("on_policy_distill_workflow")(task=_question("simple_workflow"), model=None)
    assert caught.value.code == "E5123"


def test_a_teacher_that_cannot_score_a_response_costs_its_run_only(rollouts: Rollouts, teacher: Path) -> None:
    config = _config(rollouts, {"model_path": str(teacher), "max_model_len": 12})
    result = _run(config, make(Chatting, 1, question="1+1="), make(Scripted, 1, act="ok"))
    assert [e.eid.task for e in result.experiences] == [1]
    assert result.count(Failed) == 1 and "logprobs takes 2 to 12 tokens" in result.reasons()[0]


@pytest.mark.parametrize("scores", [[-1.0, -2.0], [-1.0, float("nan"), -1.0], [-1.0, float("-inf"), -1.0]])
def test_scores_that_a_workflow_set_wrongly_are_rejected(rollouts: Rollouts, teacher: Path, scores: Any) -> None:
    fine = [-0.5, -0.25, -1.0]
    tasks = [make(Repeated, 1, scores=fine), make(Repeated, 1, scores=torch.tensor(scores))]
    result = _run(_config(rollouts, {"model_path": str(teacher)}), *tasks)
    (kept,) = result.experiences
    assert kept.teacher_logprobs is not None and kept.teacher_logprobs.tolist() == fine
    assert result.count(Rejected, Failed) == 1 and "teacher_logprobs" in result.reasons()[0]


def test_a_teacher_of_another_vocabulary_is_refused_with_both_sizes(rollouts: Rollouts, tmp_path: Path) -> None:
    tiny_model(tmp_path / "shorter", characters=CHARACTERS[:-1])
    tiny_model(tmp_path / "swapped", characters=CHARACTERS[1] + CHARACTERS[0] + CHARACTERS[2:])
    own = len(CHARACTERS) + 3
    for name, sizes, token in (("shorter", own - 1, "Z"), ("swapped", own, "0")):
        with pytest.raises(ConfigError) as caught:
            _run(_config(rollouts, {"model_path": str(tmp_path / name)}))
        message = str(caught.value)
        assert caught.value.code == "E1882" and f"({sizes} tokens) must be that of the student" in message
        assert f"({own} tokens); they differ in {token!r}" in message


def test_an_advantage_that_needs_a_teacher_and_finds_none_says_what_to_write(rollouts: Rollouts) -> None:
    with pytest.raises(ConfigError, match=r"needs a teacher.*write explorer.auxiliary_models: \[") as caught:
        _run(_config(rollouts))
    assert caught.value.code == "E1880"


def test_components_of_the_reward_are_columns_in_the_order_written(rollouts: Rollouts) -> None:
    args = {"gdpo_reward_keys": ["accuracy", "style"]}
    config = _config(rollouts, advantage_fn="gdpo", advantage_fn_args=args)

    class Two(Workflow):
        def run(self) -> list[Experience]:
            return [experience(1.0, metrics={"style": 0.25, "accuracy": 0.75, "other": 3.0})]

    result = _run(config, make(Two, 2), make(Scripted, 1, act="ok", reward=0.5))
    assert collate(result.experiences).values["reward_components"].tolist() == [[0.75, 0.25]] * 2
    assert result.count(Rejected) == 1
    assert "no reward component 'style' (gdpo_reward_keys) among its metrics: accuracy" in result.reasons()[0]


def test_components_without_names_are_refused(rollouts: Rollouts) -> None:
    with pytest.raises(ConfigError, match="needs the names of the reward's components") as caught:
        _run(_config(rollouts, advantage_fn="gdpo"))
    assert caught.value.code == "E1883"


class Judged(Workflow):
    """Lets an auxiliary model continue what the rollout model said, after a pause that no seed decides."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        await asyncio.sleep(int.from_bytes(os.urandom(1)) / 255 * 0.02)
        question = [{"role": "user", "content": (self.task.raw_task or {})["question"]}]
        (answer,) = await self.model.chat_async(question, n=1, temperature=1.0, max_tokens=3)
        said = await self.auxiliary_model_wrappers[0].chat_async(question, n=3, temperature=1.0, max_tokens=4)
        (second,) = await self.auxiliary_model_wrappers[1].chat_async(question, n=1, temperature=1.0, max_tokens=4)
        answer.reward, answer.info["said"] = 1.0, [e.tokens.tolist() for e in [*said, second]]
        return [answer]


def test_what_auxiliary_models_say_does_not_depend_on_timing(rollouts: Rollouts, teacher: Path) -> None:
    section = {"model_path": str(teacher), "extra_engine_args": {"max_num_seqs": 2}}
    config = _config(rollouts, section, section | {"seed": 9}, advantage_fn="grpo")
    config = config.model_copy(update={"deterministic": True})
    tasks = [make(Judged, 3, question=question) for question in ("1+1=", "12+34=", "abc")]
    said = [[e.info["said"] for e in _run(config, *tasks).experiences] for _ in range(2)]
    assert said[0] == said[1] and len(said[0]) == 9
    assert len({str(tokens) for answers in said[0] for tokens in answers}) > 20, "each run has noise of its own"
