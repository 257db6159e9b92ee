"""An agent with a tool: it calls a calculator until it knows the result, and writes the result after `#`."""

import re

from trinity.common.workflows import WORKFLOWS, Workflow

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = [{"type": "function", "function": {"name": "calculate", "parameters": PARAMETERS}}]
SYSTEM = "Work the problem out with the calculator, one operation a call. Then write the result after #, such as #42."
EXPRESSION = re.compile(r"(\d{1,4})([-+*])(\d{1,4})")


def calculate(expression: str) -> int | None:
    """Return the value of `a+b`, `a-b` or `a*b`; None for anything else."""
    found = EXPRESSION.fullmatch(expression)
    if found is None:
        return None
    left, sign, right = int(found[1]), found[2], int(found[3])
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


@WORKFLOWS.register_module("calculator_workflow")
class CalculatorWorkflow(Workflow):
    """Calls of the tool and an answer; the reward is 1 for the right result, 0.1 for another."""

    is_async = True
    can_reset = True

    async def run_async(self):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.task.task_desc}]
        reward, calls = 0.0, 0
        for _ in range(self.task.workflow_args["max_turns"]):
            (said,) = await self.model.chat_async(messages, tools=TOOLS, **(self.rollout_args | {"n": 1}))
            message = said.info.get("message", {})  # there is one where the answer has calls
            if not message.get("tool_calls"):
                _, mark, result = said.response_text.rpartition("#")
                reward = 1.0 if mark and result == self.task.truth else 0.1 if mark else 0.0
                break
            call = message["tool_calls"][0]
            value = calculate(str(call["function"]["arguments"].get("expression", "")))
            if value is None:
                break
            calls += 1
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": str(value % 10_000)}]
        experiences = (
            self.model.extract_trajectories_from_history()
        )  # the conversation, with the tokens that were sampled
        for experience in experiences:
            experience.reward = reward
            experience.metrics = {"success": float(reward == 1.0), "calls": float(calls)}
        return experiences
