"""A workflow whose policy is its own judge, and is trained to judge."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows.judge import ask, listed_scores, said
from trinity.common.workflows.math_ruler_workflow import Ruler, rewarded
from trinity.common.workflows.registry import WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.workflows.task import Task

# What `math_reward` gives: -0.1 for neither answer nor form, 1.1 for both.
GOLD_MIN, GOLD_MAX = -0.1, 1.1
JUDGE_GROUP = "ruler"


@WORKFLOWS.register_module("math_trainable_ruler_workflow")
class MathTrainableRULERWorkflow(Ruler):
    """Responses compared by the policy itself, which learns to judge.

    For some tasks the truth counts as known: their responses have the reward of the reward function, and the policy
    gives as many verdicts on them, each rewarded with 1 - the mean error of its scores; one that has no scores gets 0.
    These are experiences of turn 1 that are compared with each other, apart from the responses. For all other tasks one
    verdict gives the responses their rewards, as in `MathRULERWorkflow`. An evaluation has the reward function's.

    Arguments of the taskset's `workflow_args`: `ground_truth_probability`, the share of tasks of the first kind, drawn
    from the run's seed and the task's place; `gold_min` and `gold_max`, the range of the reward function.
    """

    needs = frozenset({"prompt", "reward_fn"})
    arguments = {"ground_truth_probability": 0.2, "gold_min": GOLD_MIN, "gold_max": GOLD_MAX}
    ranges = {"ground_truth_probability": "[0, 1]", "gold_min": "(-inf, inf)", "gold_max": "(gold_min, inf)"}

    def reset(self, task: Task) -> None:
        """Prepare for another task; see `SimpleWorkflow.reset`."""
        super().reset(task)
        self.probability = float(self.workflow_args.get("ground_truth_probability", 0.2))
        self.gold_min = float(self.workflow_args.get("gold_min", GOLD_MIN))
        self.gold_max = float(self.workflow_args.get("gold_max", GOLD_MAX))

    @property
    def knows_truth(self) -> bool:
        """Whether the truth of the task counts as known; the same in a rerun."""
        seed = self.model.config.seed if self.model.config is not None else 0
        return random.Random(f"{seed}/{self.task.batch_id}/{self.task.task_id}").random() < self.probability

    def run(self) -> list[Experience]:
        """Return the responses, and with a known truth the verdicts.

        Raises:
            RewardError: without a known truth, the verdict cannot be read (E5125); or a reward is outside of its range
                (E5128).
        """
        scored = self.with_gold(self.model.chat(self.format_messages(), **self._tools(), **self.rollout_args))
        if self.task.is_eval:
            return scored
        if self.knows_truth:
            return scored + self._verdicts(scored)
        own = {name: value for name, value in self.rollout_args.items() if name != "n"}
        return rewarded(scored, ask(self.model, self.comparison(scored), **own))

    def _verdicts(self, responses: list[Experience]) -> list[Experience]:
        gold = [self._scaled(float(response.reward or 0.0)) for response in responses]
        verdicts = self.model.chat(self.comparison(responses), **{**self.rollout_args, "n": len(responses)})
        successes = 0
        for response, verdict in zip(responses, verdicts, strict=True):
            verdict.eid.run, verdict.eid.step = response.eid.run, 1
            verdict.info["advantage_group"] = JUDGE_GROUP
            try:
                scores = listed_scores(said(verdict), len(responses))
            except RewardError as error:  # the policy's own failure to judge, as a wrong answer is one to solve
                if verdict.truncate_status == "prompt_truncated":
                    raise
                self.logger.debug("a verdict has no scores: %s", error)
                verdict.reward = 0.0
            else:
                successes += 1
                verdict.reward = 1.0 - sum(abs(s - g) for s, g in zip(scores, gold, strict=True)) / len(gold)
        for experience in [*responses, *verdicts]:
            experience.metrics["judge_success"] = successes / len(verdicts)
        for verdict in verdicts:
            verdict.metrics["reward_for_judge"] = float(verdict.reward or 0.0)
        return verdicts

    def _scaled(self, gold: float) -> float:
        """Return a reward as a score from 0 to 1."""
        if not self.gold_min <= gold <= self.gold_max:
            raise RewardError(
                f"the reward function gave {gold:g}, outside of [{self.gold_min:g}, {self.gold_max:g}]; set "
                "workflow_args.gold_min and gold_max to its range",
                code="E5128",
            )
        return (gold - self.gold_min) / (self.gold_max - self.gold_min)
