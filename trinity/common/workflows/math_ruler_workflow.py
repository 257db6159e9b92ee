"""Workflows whose responses a judge compares with each other.

The judge gives each response of a task a score relative to the others, in one reply (RULER, of OpenPipe's ART).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinity.common.workflows.judge import ask, ask_async, judge_of, listed_scores, question_of, ruler_messages
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import MATH_SYSTEM_PROMPT, AsyncSimpleWorkflow, SimpleWorkflow
from trinity.runtime.worker_thread import call_in_thread

if TYPE_CHECKING:
    from trinity.common.experience import Experience


class Ruler(SimpleWorkflow):
    """What the workflows have in common: gold rewards as metrics, and prompts."""

    arguments = {}
    default_system_prompt = MATH_SYSTEM_PROMPT
    default_reward_fn = "math_reward"

    def with_gold(self, responses: list[Experience]) -> list[Experience]:
        """Return the responses that the reward function could score.

        The sum of its scores is their reward, and their metric `gold_reward`.

        Raises:
            RewardError: none of the responses could be scored.
        """
        scored = self.score(responses)
        for response in scored:
            response.metrics["gold_reward"] = float(response.reward or 0.0)
        return scored

    def comparison(self, responses: list[Experience]) -> list[dict[str, Any]]:
        """Return the conversation that asks for scores of the responses."""
        asked = self.format_messages()[: -1 if self.reply_prefix else None]
        return ruler_messages(question_of(asked), [response.response_text or "" for response in responses])


def rewarded(responses: list[Experience], verdict: str) -> list[Experience]:
    """Return the responses with the scores of a verdict as rewards.

    Raises:
        RewardError: the verdict has no such scores (E5125).
    """
    for response, score in zip(responses, listed_scores(verdict, len(responses)), strict=True):
        response.reward = score
        response.metrics["judge_success"] = 1.0
    return responses


@WORKFLOWS.register_module("math_ruler_workflow")
class MathRULERWorkflow(Ruler):
    """Responses to a mathematical problem, compared by a judge.

    The reward of a response is its score, from 0 to 1. The judge is the first auxiliary model; it does not see the
    truth. The scores of the reward function, `math_reward` by default, are metrics, and their sum is `gold_reward`.
    """

    needs = frozenset({"prompt", "reward_fn", "auxiliary_model"})
    arguments = {}

    def run(self) -> list[Experience]:
        """Return the responses with the judge's scores as rewards.

        Raises:
            WorkflowError: there is no judge (E5124).
            RewardError: its verdict cannot be read (E5125): no response of the task has a reward then.
        """
        judge = judge_of(self.auxiliary_model_wrappers, type(self))
        scored = self.with_gold(self.model.chat(self.format_messages(), **self._tools(), **self.rollout_args))
        return rewarded(scored, ask(judge, self.comparison(scored)))


@WORKFLOWS.register_module("async_math_ruler_workflow")
class AsyncMathRULERWorkflow(MathRULERWorkflow, AsyncSimpleWorkflow):
    """`MathRULERWorkflow` on the event loop."""

    arguments = {}

    async def run_async(self) -> list[Experience]:
        """Return the responses with the judge's scores; see `MathRULERWorkflow`."""
        judge = judge_of(self.auxiliary_model_wrappers, type(self))
        responses = await self.model.chat_async(self.format_messages(), **self._tools(), **self.rollout_args)
        scored = await call_in_thread(self.with_gold, responses)
        return rewarded(scored, await ask_async(judge, self.comparison(scored)))
