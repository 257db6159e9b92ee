"""The workflow of tool calls: its conversation, and what counts as the right calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.common.workflows.test_judged_workflows import Spoken
from trinity.common.errors import WorkflowError
from trinity.common.experience import Experience
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError
from trinity.common.rewards.tool_reward import ToolCallReward
from trinity.common.workflows import WORKFLOWS, Task

CALL = {"name": "add", "arguments": {"a": 1, "b": [2, 3]}}
OTHER = {"name": "say", "arguments": {"text": "a {b}"}}
TOOL = {"name": "add", "parameters": {"type": "object"}}
TURNS = [
    {"from": "human", "value": "1+2?"},
    {"from": "function_call", "value": {"name": "add", "arguments": {}}},
    {"from": "observation", "value": "3"},
    {"from": "gpt", "value": "3."},
    {"from": "user", "value": "And {x}?"},
]
ROW: dict[str, Any] = {
    "raw_system": "Help. ", "tools": json.dumps([TOOL]), "conversations": TURNS, "answer": json.dumps([CALL]),
}  # fmt: skip


def said(calls: Any, thought: str = "<think>so</think>") -> str:
    return f"{thought} <tool_call>{calls if isinstance(calls, str) else json.dumps(calls)}</tool_call>"


def attempt(row: dict[str, Any], *answers: str, **changes: Any) -> tuple[Spoken, list[Experience]]:
    model = Spoken(*answers)
    task = Task(workflow=WORKFLOWS.get("tool_call_workflow"), raw_task=row, **changes)
    workflow = task.to_workflow(model)  # type: ignore[arg-type]
    workflow.set_repeat_times(len(answers), run_id_base=2)
    return model, asyncio.run(workflow.run_async())


def test_the_conversation_goes_on_with_the_tools_in_the_system_prompt() -> None:
    model, (right, wrong) = attempt(ROW, said([CALL]), said([]))
    messages, args = model.asked[0]
    assert args == {"n": 2}
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert messages[0]["content"].startswith("Help. ")
    assert json.dumps({"type": "function", "function": TOOL}) in messages[0]["content"]
    assert json.loads(messages[2]["content"])["name"] == "add" and messages[-1]["content"] == "And {x}?"
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.metrics == {"tool_call": 1.0} and [right.eid.run, wrong.eid.run] == [2, 3]


def test_a_list_of_turns_or_tools_means_the_same_as_its_text_and_a_response_column_comes_first() -> None:
    row = ROW | {"tools": [TOOL], "conversations": json.dumps(TURNS), "response": [OTHER]}
    model, (experience,) = attempt(row, said([OTHER]))
    assert model.asked[0][0] == attempt(ROW, "x")[0].asked[0][0]
    assert experience.reward == 1.0


@pytest.mark.difference("`tool_call_workflow`: rows of another form")
@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"tools": "none"}, "tools"),
        ({"tools": None}, "tools"),
        ({"conversations": []}, "conversations"),
        ({"conversations": [{"from": "narrator", "value": "a"}]}, "conversations"),
        ({"conversations": [{"from": "human"}]}, "conversations"),
    ],
)
def test_a_row_of_another_form_is_refused_by_its_column(changes: dict[str, Any], column: str) -> None:
    with pytest.raises(WorkflowError, match=f"E5129.*'{column}'"):
        attempt(ROW | changes, "x")


@pytest.mark.difference("`tool_call_workflow`: rows of another form")
@pytest.mark.parametrize("answer", [None, "say()", [{"name": "a"}], "3"])
def test_a_row_without_the_right_calls_has_no_reward(answer: Any) -> None:
    with pytest.raises(RewardError, match="E5114"):
        attempt(ROW | {"answer": answer}, said([CALL]))


@pytest.mark.parametrize(
    ("truth", "response", "score"),
    [
        ([CALL], said([CALL]), 1),
        ([CALL], said(CALL), 1),
        ([CALL], said(json.dumps(json.dumps([CALL]))), 1),
        ([CALL], said(json.dumps([CALL | {"id": 7}])), 1),
        ([CALL, OTHER], said([OTHER, CALL]), 1),
        (json.dumps(json.dumps([CALL])), said([CALL]), 1),
        ([], said([]), 1),
        ([CALL], said([{"name": "add", "arguments": {"b": [2, 3], "a": 1}}]), 1),
        ([CALL], said("[]") + said([CALL], ""), 1),  # the last block counts
        ([CALL, CALL], said([CALL]), 0),
        ([CALL], said([CALL, CALL]), 0),
        ([CALL], said([OTHER]), 0),
        ([CALL], said([{"name": "add", "arguments": {"a": "1", "b": [2, 3]}}]), 0),
        ([CALL], said([]), 0),
        ([], said([CALL]), 0),
        ([CALL], said([CALL], ""), 0),
        ([CALL], said([CALL], "<think>a</think><think>b</think>"), 0),
        ([CALL], f"{said([CALL], '')}<think>late</think>", 0),
        ([CALL], said("{broken"), 0),
        ([CALL], said("[1]"), 0),
        ([CALL], said('[{"name": "add"}]'), 0),
        ([CALL], said("[" * 100_000), 0),
        ([CALL], said("9" * 10_000), 0),
        ([CALL], "<tool_call>" * 50_000, 0),
        ([CALL], "</tool_call><tool_call>", 0),
        ([], "", 0),
    ],
)
def test_only_exactly_the_right_calls_after_a_thought_count(truth: Any, response: str, score: int) -> None:
    assert ToolCallReward()(response, truth=truth) == {"tool_call": float(score)}


def test_a_reward_function_of_the_taskset_scores_instead() -> None:
    taskset = {"reward_fn": REWARD_FUNCTIONS.get("format_reward"), "reward_fn_args": {"pattern": ".*"}}
    _, (experience,) = attempt(ROW, "anything", **taskset)
    assert set(experience.metrics) == {"format_score"}
