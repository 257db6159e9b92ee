r"""Workflows of mathematics whose answer stands in `\boxed{}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trinity.common.rewards.format_reward import FORMAT_SCORE
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow, Task
from trinity.runtime.worker_thread import call_in_thread

if TYPE_CHECKING:
    from trinity.common.experience import Experience

BOXED_PROMPT = r"Think step by step, and give the final result within \boxed{}."
THOUGHT_PROMPT = (
    "You solve mathematical problems. First think the problem through between <think> and </think>. "
    r"Then answer; the final result stands within \boxed{}, in closed form."
)


class _Boxed(SimpleWorkflow):
    default_reward_fn = "math_boxed_reward"

    def reset(self, task: Task) -> None:
        """Prepare row, prompts, sampling arguments and reward function of a task."""
        own, of_reward = task.workflow_args or {}, task.reward_fn_args or {}
        self.with_think = bool(own.get("with_think") or of_reward.get("with_think"))
        self.default_system_prompt = THOUGHT_PROMPT if self.with_think else BOXED_PROMPT
        super().reset(task)
        self.use_base = bool(own.get("use_base", False))
        cost = own.get("format_score_coef")
        self.format_score_coef = float(of_reward.get("format_score_coef", FORMAT_SCORE) if cost is None else cost)

    def format_prompt(self) -> str:
        """Return system prompt and question as a text to continue."""
        system = f"System:{self.system_prompt}\n" if self.system_prompt else ""
        return f"{system}User:\n{self.task_desc}\nAssistant:\n{self.reply_prefix or ''}"

    def offered(self, experience: Experience) -> dict[str, Any]:
        """Return what the reward function may take, by argument name."""
        own = {"with_think": self.with_think, "format_score_coef": self.format_score_coef}
        return super().offered(experience) | own

    def score(self, responses: list[Experience]) -> list[Experience]:
        """Return the responses that could be scored; cut ones are not learned.

        Raises:
            RewardError: none of the responses could be scored.
        """
        scored = super().score(responses)
        for experience in scored:
            if experience.truncate_status == "response_truncated" and experience.action_mask is not None:
                experience.action_mask = torch.zeros_like(experience.action_mask)
        return scored


@WORKFLOWS.register_module("math_boxed_workflow")
class MathBoxedWorkflow(_Boxed):
    r"""One response with a `\boxed{}` answer, scored by `math_boxed_reward`.

    Arguments of the taskset's `workflow_args`: `use_base` continues a text instead of a chat, for models without a chat
    template; `with_think` asks for a thought, whose absence costs `format_score_coef` (0.1). The last two may stand in
    `reward_fn_args` instead.
    """

    arguments = {"system_prompt": None, "use_base": False, "with_think": False, "format_score_coef": None}
    ranges = {"format_score_coef": "[0, inf)"}

    def run(self) -> list[Experience]:
        """Return one scored experience per rollout."""
        if not self.use_base:
            return super().run()
        return self.score(self.model.generate([self.format_prompt()], **self.rollout_args))


@WORKFLOWS.register_module("async_math_boxed_workflow")
class AsyncMathBoxedWorkflow(_Boxed, AsyncSimpleWorkflow):
    """`MathBoxedWorkflow` on the event loop."""

    arguments = MathBoxedWorkflow.arguments
    ranges = MathBoxedWorkflow.ranges

    async def run_async(self) -> list[Experience]:
        """Return one scored experience per repeat, scored off the event loop."""
        if not self.use_base:
            return await super().run_async()
        responses = await self.model.generate_async([self.format_prompt()], **self.rollout_args)
        return await call_in_thread(self.score, responses)
