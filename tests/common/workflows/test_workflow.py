"""Tasks and the built-in workflows, on a stand-in for the model that returns canned experiences."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from trinity.common.errors import ConfigError, WorkflowError
from trinity.common.experience import EID, Experience
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError, RewardFn
from trinity.common.workflows import WORKFLOW_CONTENTS, WORKFLOWS, Task, Workflow, describe, reset_workflow
from trinity.common.workflows.customized_math_workflows import THOUGHT_PROMPT
from trinity.common.workflows.workflow import (
    MATH_SYSTEM_PROMPT,
    MultiTurnWorkflow,
)

FORMAT = {"prompt_key": "question", "response_key": "answer"}
ROW = {"question": "3+4=", "answer": "#### 7"}
PACKAGE = "trinity.common.workflows"
# Those that ask one question of one model.
OTHERS = ("distill", "ruler", "judge", "tool_call", "agentscope", "as_react")
ONE_CHAT = [
    name
    for name, entry in sorted(WORKFLOW_CONTENTS.items())
    if ".envs." not in entry.path and not any(part in name for part in OTHERS)
]


class CannedModel:
    """Stands in for a language model: answers with the given texts in turn and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.calls: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []

    def chat(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[Experience]:
        self.calls.append((messages, kwargs))
        return [
            Experience(
                tokens=[1, 2, 3],
                prompt_length=1,
                response_text=self.texts[index % len(self.texts)],
                info={"model_version": 3},
            )
            for index in range(kwargs["n"])
        ]

    async def chat_async(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[Experience]:
        await asyncio.sleep(0)
        return self.chat(messages, **kwargs)

    def convert_messages_to_experience(self, messages: list[dict[str, Any]]) -> Experience:
        status = "response_truncated" if len(messages) > 4 else None
        return Experience(tokens=[1, 2, 3], prompt_length=1, truncate_status=status, info={"model_version": 3})

    async def convert_messages_to_experience_async(self, messages: list[dict[str, Any]]) -> Experience:
        return self.convert_messages_to_experience(messages)


def make_task(name: str = "simple_workflow", **changes: Any) -> Task:
    given: dict[str, Any] = {
        "workflow": WORKFLOWS.get(name),
        "repeat_times": 2,
        "format_args": FORMAT,
        "rollout_args": {"temperature": 1.0, "top_p": 0.9, "top_k": None, "max_tokens": 8},
        "reward_fn": REWARD_FUNCTIONS.get("accuracy_reward"),
        "raw_task": ROW,
    }
    return Task(**{**given, **changes})


def run(workflow: Workflow) -> list[Experience]:
    return asyncio.run(workflow.run_async()) if describe(workflow).is_async else workflow.run()


@pytest.mark.difference("`async_simple_workflow`")
@pytest.mark.parametrize("name", ONE_CHAT)
@pytest.mark.parametrize("repeats", [1, 5])
def test_a_run_returns_one_experience_a_repeat(name: str, repeats: int) -> None:
    model = CannedModel("#### 7", "#### 8")
    row = {**ROW, "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "7"}}  # as veRL's datasets have it
    workflow = make_task(name, raw_task=row).to_workflow(model)
    assert describe(workflow) == describe(type(workflow))
    assert describe(workflow).can_repeat and describe(workflow).can_reset
    assert describe(workflow).is_async == name.startswith("async_")
    workflow.set_repeat_times(repeats, run_id_base=10)
    experiences = run(workflow)
    assert [experience.eid.run for experience in experiences] == list(range(10, 10 + repeats))
    scores = [experience.metrics.get("accuracy", experience.metrics.get("score")) for experience in experiences]
    assert scores == [1.0, 0.0, 1.0, 0.0, 1.0][:repeats]
    assert len(model.calls) == 1
    assert model.calls[0][1] == {"temperature": 1.0, "top_p": 0.9, "max_tokens": 8, "n": repeats}


def test_the_reward_is_the_sum_of_the_scores() -> None:
    class Twofold(RewardFn):
        def __init__(self, bonus: float) -> None:
            self.bonus = bonus

        def __call__(self, response: str, prompt: Any = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
            assert (response, prompt, truth) == ("text", "3+4=", "#### 7")
            return {"base": 0.5, "bonus": self.bonus}

    workflow = make_task(reward_fn=Twofold, reward_fn_args={"bonus": 0.25}).to_workflow(CannedModel("text"))
    (experience,) = run(workflow)
    assert experience.reward == 0.75
    assert experience.metrics == {"base": 0.5, "bonus": 0.25}
    assert experience.info == {"model_version": 3}
    assert (experience.eid.batch, experience.eid.task) == (EID().batch, EID().task)  # the runner's to fill


def test_reset_takes_the_sampling_arguments_prompts_and_reward_of_the_new_task() -> None:
    model = CannedModel("#### 9")
    evaluation = make_task(rollout_args={"temperature": 0.0, "max_tokens": 99}, is_eval=True)
    workflow = evaluation.to_workflow(model)
    run(workflow)
    row = {"question": "4+5=", "answer": "#### 9"}
    workflow.reset(make_task(raw_task=row, rollout_args={"temperature": 0.7}, workflow_args={"system_prompt": "S"}))
    workflow.set_repeat_times(1, 0)
    (experience,) = run(workflow)
    assert model.calls[0][1] == {"temperature": 0.0, "max_tokens": 99, "n": 1}
    assert model.calls[1][1] == {"temperature": 0.7, "n": 1}
    assert model.calls[1][0] == [{"role": "system", "content": "S"}, {"role": "user", "content": "4+5="}]
    assert experience.reward == 1.0


def test_a_plugin_whose_reset_skips_the_base_class_still_gets_the_new_arguments() -> None:
    class Forgetful(Workflow):
        can_reset = True

        def __init__(self, *, task: Task, model: Any, auxiliary_models: Any = None) -> None:
            super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
            self.reset(task)
            self.rollout_args = {"temperature": 0.1}

        def reset(self, task: Task) -> None:
            self.question = task.raw_task["question"]

    workflow = Forgetful(task=make_task(), model=CannedModel(""))
    assert workflow.rollout_args.temperature == 0.1
    reset_workflow(workflow, make_task(raw_task={"question": "1+1="}, rollout_args={"temperature": 0.7}))
    assert (workflow.question, workflow.rollout_args.temperature) == ("1+1=", 0.7)


def test_sampling_arguments_read_as_mapping_and_as_attributes() -> None:
    workflow = make_task().to_workflow(CannedModel(""))
    workflow.set_repeat_times(3, 0)
    arguments = workflow.rollout_args
    assert (arguments.temperature, arguments["top_p"], arguments.n) == (1.0, 0.9, 3)
    assert arguments.top_k is None and "top_k" not in arguments
    with pytest.raises(AttributeError, match="no 'temprature'; set: max_tokens, n, temperature, top_p"):
        _ = arguments.temprature


@pytest.mark.parametrize(
    ("name", "changes", "system"),
    [
        ("simple_workflow", {}, None),
        ("simple_workflow", {"format_args": {**FORMAT, "system_prompt": "Add."}}, "Add."),
        ("simple_workflow", {"format_args": {**FORMAT, "system_prompt": "no", "system_prompt_key": "sys"}}, "Row."),
        ("math_workflow", {}, MATH_SYSTEM_PROMPT),
        ("async_math_workflow", {}, MATH_SYSTEM_PROMPT),
        ("math_workflow", {"format_args": {**FORMAT, "system_prompt": None}}, MATH_SYSTEM_PROMPT),
        ("math_workflow", {"format_args": {**FORMAT, "system_prompt": ""}}, None),
        ("math_boxed_workflow", {"format_args": {**FORMAT, "system_prompt": ""}}, None),
        ("math_boxed_workflow", {"workflow_args": {"with_think": True}}, THOUGHT_PROMPT),
        ("math_workflow", {"workflow_args": {"system_prompt": None}}, None),
        ("math_workflow", {"workflow_args": {"system_prompt": "Mine."}}, "Mine."),
    ],
)
def test_the_system_prompt(name: str, changes: dict[str, Any], system: str | None) -> None:
    model = CannedModel("7")
    run(make_task(name, raw_task={**ROW, "sys": "Row."}, **changes).to_workflow(model))
    user = {"role": "user", "content": "3+4="}
    assert model.calls[0][0] == ([{"role": "system", "content": system}] if system else []) + [user]


def test_a_row_of_messages_and_a_started_reply() -> None:
    model = CannedModel("7")
    messages = [{"role": "system", "content": "own"}, {"role": "user", "content": "3+4="}]
    format_args = {**FORMAT, "prompt_key": "chat", "reply_prefix": "It is", "system_prompt": "not used"}
    run(make_task(format_args=format_args, raw_task={"chat": messages, "answer": "7"}).to_workflow(model))
    assert model.calls[0][0] == [*messages, {"role": "assistant", "content": "It is"}]
    assert len(messages) == 2  # the row itself is left alone
    run(make_task(format_args={}, raw_task={"message": messages, "response": "7"}).to_workflow(model))
    row = {"prompt": "not this", "message": messages[1:], "response": "7"}
    run(make_task("math_workflow", format_args={"prompt_type": "messages"}, raw_task=row).to_workflow(model))
    assert [call[0] for call in model.calls[1:]] == [messages, messages[1:]]


def test_a_missing_prompt_column_is_named() -> None:
    workflow = make_task(raw_task={"query": "3+4=", "answer": "7"}).to_workflow(CannedModel("7"))
    with pytest.raises(WorkflowError, match=r"E5119.*'question'.*columns: query, answer.*format.prompt_key"):
        run(workflow)


def test_math_rewards_form_and_answer_by_default_and_simple_asks_for_a_reward() -> None:
    model = CannedModel("<think>3+4</think><answer>7</answer>", "7")
    workflow = make_task("math_workflow", reward_fn=None).to_workflow(model)
    workflow.set_repeat_times(2, 0)
    assert [experience.reward for experience in run(workflow)] == [1.1, 0.9]
    with pytest.raises(WorkflowError, match=r"E5118.*SimpleWorkflow needs a reward function.*default_reward_fn_type"):
        make_task(reward_fn=None).to_workflow(model)


class Picky(RewardFn):
    def __call__(self, response: str, prompt: Any = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
        if response == "bomb":
            raise RewardError("took too long")
        return {"accuracy": 1.0}


@pytest.mark.difference("A scorer that fails")
@pytest.mark.parametrize("name", ["simple_workflow", "async_simple_workflow"])
def test_a_response_that_cannot_be_scored_is_dropped_and_never_a_zero(name: str) -> None:
    workflow = make_task(name, reward_fn=Picky).to_workflow(CannedModel("fine", "bomb", "fine"))
    workflow.set_repeat_times(3, 0)
    experiences = run(workflow)
    assert [(experience.eid.run, experience.reward) for experience in experiences] == [(0, 1.0), (2, 1.0)]
    assert [str(error) for error in workflow.dropped] == ["[E5110] took too long"]
    workflow.reset(make_task(name, reward_fn=Picky))
    assert workflow.dropped == []
    workflow = make_task(name, reward_fn=Picky).to_workflow(CannedModel("bomb"))
    with pytest.raises(RewardError, match="none of 1 responses could be scored; first: .*took too long"):
        run(workflow)


def test_async_scoring_leaves_the_event_loop_free() -> None:
    scored_in: list[str] = []

    class Where(RewardFn):
        def __call__(self, response: str, prompt: Any = None, truth: Any = None, **kwargs: Any) -> dict[str, float]:
            scored_in.append(threading.current_thread().name)
            return {"accuracy": 1.0}

    run(make_task("async_simple_workflow", reward_fn=Where).to_workflow(CannedModel("7")))
    assert scored_in != [threading.main_thread().name]


def test_many_async_workflows_at_once_keep_their_own_tasks() -> None:
    async def attempt(index: int) -> Experience:
        row = {"question": f"{index}+0=", "answer": f"#### {index}"}
        workflow = make_task("async_simple_workflow", raw_task=row).to_workflow(CannedModel(f"#### {index}"))
        return (await workflow.run_async())[0]

    async def attempts() -> list[Experience]:
        return list(await asyncio.gather(*(attempt(index) for index in range(40))))

    assert [experience.reward for experience in asyncio.run(attempts())] == [1.0] * 40


@pytest.mark.parametrize("is_async", [False, True])
def test_a_conversation_becomes_one_rewarded_experience(is_async: bool) -> None:
    workflow = MultiTurnWorkflow(task=make_task(), model=CannedModel(""))

    def convert(messages: list[Any], *args: Any, **kwargs: Any) -> Experience:
        if is_async:
            return asyncio.run(workflow.process_messages_to_experience_async(messages, *args, **kwargs))
        return workflow.process_messages_to_experience(messages, *args, **kwargs)

    whole = convert([{}] * 4, 0.5, {"turns": 2, "done": True, "who": "me"})
    assert (whole.reward, whole.metrics, whole.truncate_status) == (0.5, {"turns": 2.0, "done": 1.0}, None)
    assert whole.info == {"model_version": 3, "turns": 2, "done": True, "who": "me"}
    assert convert([{}] * 5, 0.5).reward == 0.0  # cut by the model's length limit
    cut = convert([{}] * 4, 0.5, truncate_status="prompt_truncated")
    assert (cut.reward, cut.truncate_status) == (0.0, "prompt_truncated")


def test_an_unknown_workflow_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"E1701.*unknown workflow 'maths_workflow'; did you mean 'math_workflow'\?"):
        WORKFLOWS.get("maths_workflow")


def test_each_name_leads_to_its_class_at_its_published_place() -> None:
    own = {name: WORKFLOWS.get(name) for name in WORKFLOW_CONTENTS}
    places = {name: f"{cls.__module__}.{cls.__name__}".removeprefix(f"{PACKAGE}.") for name, cls in own.items()}
    assert (
        places.items()
        >= {
            "simple_workflow": "workflow.SimpleWorkflow",
            "async_simple_workflow": "workflow.AsyncSimpleWorkflow",
            "math_workflow": "workflow.MathWorkflow",
            "async_math_workflow": "workflow.AsyncMathWorkflow",
            "math_boxed_workflow": "customized_math_workflows.MathBoxedWorkflow",
            "async_math_boxed_workflow": "customized_math_workflows.AsyncMathBoxedWorkflow",
            "math_eval_workflow": "eval_workflow.MathEvalWorkflow",
            "async_math_eval_workflow": "eval_workflow.AsyncMathEvalWorkflow",
            "math_rm_workflow": "math_rm_workflow.MathRMWorkflow",
            "async_math_rm_workflow": "math_rm_workflow.AsyncMathRMWorkflow",
            "math_ruler_workflow": "math_ruler_workflow.MathRULERWorkflow",
            "async_math_ruler_workflow": "math_ruler_workflow.AsyncMathRULERWorkflow",
            "math_trainable_ruler_workflow": "math_trainable_ruler_workflow.MathTrainableRULERWorkflow",
            "rubric_judge_workflow": "rubric_judge_workflow.RubricJudgeWorkflow",
            "rubric_judge_openai_workflow": "rubric_judge_workflow.RubricJudgeWorkflowWithAPI",
            "agentscope_workflow_adapter": "agentscope_workflow.AgentScopeWorkflowAdapter",
            "agentscope_workflow_adapter_v1": "agentscope_workflow.AgentScopeWorkflowAdapterV1",
            "agentscope_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
            "agentscope_react_math_workflow": (
                "envs.agentscope.agentscopev1_react_workflow.AgentScopeReactMathWorkflow"
            ),
            "agentscope_v1_react_search_workflow": (
                "envs.agentscope.agentscopev1_search_workflow.AgentScopeV1ReactSearchWorkflow"
            ),
            "tool_call_workflow": "customized_toolcall_workflows.ToolCallWorkflow",
            "on_policy_distill_workflow": "on_policy_distill_workflow.OnPolicyDistillWorkflow",
            "on_policy_distill_math_workflow": "on_policy_distill_workflow.OnPolicyDistillMathWorkflow",
        }.items()
    )
    assert all(entry.doc and not entry.is_open for entry in WORKFLOW_CONTENTS.values())
