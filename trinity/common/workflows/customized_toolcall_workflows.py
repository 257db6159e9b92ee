"""A workflow of tool calls.

It is the next turn of a conversation with tools, as datasets of Tool-N1 hold them (arXiv:2505.00024).
"""

from __future__ import annotations

import json
from typing import Any

from trinity.common.errors import WorkflowError
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.task import Task
from trinity.common.workflows.workflow import AsyncSimpleWorkflow
from trinity.utils.nested import as_written

TOOL_PROMPT = """\
# Tools
You can call the functions that are described here, one JSON object a line:
<tools>
{tools}
</tools>

# Form of every reply
First think between <think> and </think> about what is asked and which functions help. Then write the calls as a JSON \
list between <tool_call> and </tool_call>, in the same reply. Each call is an object with "name" and with "arguments", \
an object whose values have the types that the function describes. Without a function that helps the list is empty.
For example:
<think>They want the weather of two cities, so I look up both.</think>
<tool_call>[{{"name": "weather", "arguments": {{"city": "Rome"}}}}, {{"name": "weather", "arguments": \
{{"city": "Oslo"}}}}]</tool_call>"""
ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "function_call": "assistant", "observation": "tool", "tool": "tool",
}  # fmt: skip


@WORKFLOWS.register_module("tool_call_workflow")
class ToolCallWorkflow(AsyncSimpleWorkflow):
    """The next turn of a conversation with tools, scored by its tool calls.

    Columns of the row: `raw_system`, what stands before the tools in the system prompt, unless
    `workflow_args.system_prompt` says it for all rows; `tools`, a list of functions or its JSON; `conversations`, turns
    with `from` (human, gpt, function_call, observation, or the roles user, assistant and tool) and `value`; `answer`,
    the right calls, unless `format.response_key` names a column of the row. The default reward function is
    `tool_call_reward`. Prompt and calls are plain text, for any chat template.
    """

    needs = frozenset({"reward_fn"})
    reads_format = False
    arguments = {}
    default_reward_fn = "tool_call_reward"

    def reset(self, task: Task) -> None:
        """Prepare for another task; see `SimpleWorkflow.reset`."""
        super().reset(task)
        if self.truth is None:
            self.truth = self.raw_task.get("answer")

    def format_messages(self) -> list[dict[str, Any]]:
        """Return the conversation so far, the tools in its system prompt.

        Raises:
            WorkflowError: a column is missing or of another form (E5129).
        """
        tools, turns = (as_written(self.raw_task.get(name)) for name in ("tools", "conversations"))
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise self._wrong("tools", "a list of functions, or its JSON", tools)
        if not isinstance(turns, list) or not turns:
            raise self._wrong("conversations", "a list of {'from': ..., 'value': ...}", turns)
        lines = [json.dumps(tool if "function" in tool else {"type": "function", "function": tool}) for tool in tools]
        system = f"{self.system_prompt or ''}{TOOL_PROMPT.format(tools=chr(10).join(lines))}"
        return [{"role": "system", "content": system}, *map(self._message, turns)]

    def _choose_system_prompt(self) -> str | None:
        return self.workflow_args.get("system_prompt", self.raw_task.get("raw_system"))

    def _message(self, turn: Any) -> dict[str, Any]:
        role = ROLES.get(str(turn.get("from"))) if isinstance(turn, dict) else None
        if role is None or "value" not in turn:
            raise self._wrong("conversations", f"turns with a value, from one of {', '.join(ROLES)}", turn)
        value = turn["value"]
        return {"role": role, "content": value if isinstance(value, str) else json.dumps(value)}

    def _wrong(self, column: str, wanted: str, got: Any) -> WorkflowError:
        return WorkflowError(
            f"the column {column!r} must hold {wanted}, got {got!r:.160}; the row's columns: "
            f"{', '.join(map(str, self.raw_task))}; correct the row",
            code="E5129",
        )

    def _tools(self) -> dict[str, Any]:
        """Return nothing: the tools are in the system prompt."""
        return {}
