"""Two agents, each written twice: with the model that a workflow gets, and with the plain `openai` client."""

import asyncio
import math
import random
import re

from trinity.common.workflows import WORKFLOWS, Workflow

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]
CALCULATION = re.compile(r"(\d{1,4})([-+*])(\d{1,4})")
GUESS = re.compile(r"\d\d")


class Agent(Workflow):
    """Answers until the task is done; its experience is the conversation."""

    is_async = True
    tools = None

    async def run_async(self):
        """Return the experiences of one attempt."""
        messages = [{"role": "user", "content": self.task.task_desc}]
        reward = None
        for _ in range(self.task.workflow_args["max_turns"]):
            answer = await self.ask(messages)
            reply, reward = await self.react(answer)
            if reply is None:
                break
            messages += [answer, reply]
        experiences = self.model.extract_trajectories_from_history()
        for experience in experiences:
            experience.reward = reward or 0.0
            experience.metrics = {"success": float(reward == 1.0), "turns": float(len(messages) // 2 + 1)}
        return experiences

    async def react(self, answer):
        """Return the reply and no reward, or None and the reward."""
        return self.judge(answer)

    async def ask(self, messages):
        """Ask the model that the workflow got; return its message."""
        (said,) = await self.model.chat_async(messages, tools=self.tools, **(self.rollout_args | {"n": 1}))
        return said.info.get("message") or {"role": "assistant", "content": said.response_text}


class WithClient(Agent):
    """The same agent with the client that it had before."""

    async def run_async(self):
        """Return the experiences of one attempt."""
        async with self.model.get_openai_async_client() as self.client:
            return await super().run_async()

    async def ask(self, messages):
        """Ask over HTTP; return the message."""
        asked = {
            "model": self.model.model_path,
            "messages": messages,
            "max_tokens": self.task.workflow_args["max_tokens"],
        }
        if self.tools:
            asked["tools"] = self.tools
        answer = await self.client.chat.completions.create(temperature=self.rollout_args["temperature"], **asked)
        return answer.choices[0].message.model_dump(exclude_none=True)


class Calculator:
    """Works a problem out with a calculator, and writes the result after `#`."""

    tools = TOOLS

    def judge(self, answer):
        """Return the calculator's answer and no reward, or None and the reward."""
        calls = answer.get("tool_calls")
        if not calls:
            said = (answer.get("content") or "").rpartition("#")
            return None, 1.0 if said[1] and said[2] == self.task.truth else 0.1 if said[1] else 0.0
        (call, *_) = calls
        found = CALCULATION.search(str(call["function"]["arguments"]))
        if found is None:
            return None, 0.0
        left, sign, right = int(found[1]), found[2], int(found[3])
        result = left + right if sign == "+" else left - right if sign == "-" else left * right
        return {"role": "tool", "tool_call_id": call["id"], "content": str(result % 10_000)}, None


class Guesser:
    """Finds a number; each wrong guess is answered with the direction."""

    def judge(self, answer):
        """Return the direction and no reward, or None and the reward."""
        said, secret = answer.get("content") or "", self.task.truth
        if said == secret:
            return None, 1.0
        if GUESS.fullmatch(said) is None:
            return None, 0.0
        return {"role": "user", "content": "<" if secret < said else ">"}, None


@WORKFLOWS.register_module("calculator_by_workflow")
class CalculatorByWorkflow(Calculator, Agent):
    """The calculator, by the workflow's model."""


@WORKFLOWS.register_module("slow_calculator_by_workflow")
class SlowCalculator(CalculatorByWorkflow):
    """The calculator with a tool that takes as long as a log-normal draw, cut at 20 times its mean."""

    async def react(self, answer):
        """Return what the calculator does, after the tool's time where it was called."""
        reply, reward = self.judge(answer)
        if reply is not None:
            mean_s, sigma = self.task.workflow_args["tool_s"], self.task.workflow_args["tool_sigma"]
            drawn = math.exp(random.gauss(-(sigma**2) / 2, sigma))
            await asyncio.sleep(mean_s * min(drawn, 20.0))
        return reply, reward


@WORKFLOWS.register_module("calculator_by_client")
class CalculatorByClient(Calculator, WithClient):
    """The calculator, by the plain client."""


@WORKFLOWS.register_module("guesser_by_workflow")
class GuesserByWorkflow(Guesser, Agent):
    """The guessing game, by the workflow's model."""


@WORKFLOWS.register_module("guesser_by_client")
class GuesserByClient(Guesser, WithClient):
    """The guessing game, by the plain client."""
