"""GRPO for rollouts of several steps.

The last step's reward is compared between the rollouts of a task, and every step of a rollout gets the result.

    A = (r_last - mean over the rollouts) / (standard deviation + epsilon)

as in GRPO (arXiv:2402.03300v3, section 4.1.2), with rollouts in place of responses.
"""

from __future__ import annotations

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import GroupAdvantage, reward_of, set_advantage, summarise_groups
from trinity.algorithm.statistics import group_mean, group_std
from trinity.common.experience import Experience, group_by


@ADVANTAGE_FN.register_module("step_wise_grpo")
class StepWiseGRPOAdvantage(GroupAdvantage):
    """Normalised reward of a rollout's last step, on all of its steps.

    A task with one rollout has mean 0 and deviation 1.

    Args:
        epsilon: added to the standard deviation.
        enable_step_norm: divide by the number of steps of the rollout, so that long rollouts do not weigh more.
        std_threshold: drop tasks whose standard deviation is at or below it, and those of one rollout; None keeps all.
        std_cal_level: standard deviation over the rollouts of the task (`group`), or over all rollouts of the `batch`.

    Raises:
        ValueError: an unknown `std_cal_level`.
    """

    compares_steps = True
    summary = "grpo on the last step's reward, for all steps of a rollout (arXiv:2402.03300v3, section 4.1.2)"
    formula = (
        "(R - mean(R)) / (std(R) + {epsilon}), on every step of the rollout"
        "\nR is the reward of the rollout's last step"
        "\n?std_cal_level=batch std is over all rollouts of the batch"
        "\n?std_threshold tasks with std <= {std_threshold} or one rollout are dropped"
        "\n?enable_step_norm divided by the number of steps of the rollout"
    )
    ranges = {"std_cal_level": ("group", "batch")}

    def __init__(
        self,
        epsilon: float = 1e-6,
        enable_step_norm: bool = False,
        std_threshold: float | None = None,
        std_cal_level: str = "group",
    ) -> None:
        if std_cal_level not in ("group", "batch"):
            raise ValueError(f"std_cal_level must be group or batch, got {std_cal_level!r}")
        self.epsilon = epsilon
        self.enable_step_norm = enable_step_norm
        self.std_threshold = std_threshold
        self.std_cal_level = std_cal_level

    def calculate_group_advantage(
        self, group_id: str, exps: list[Experience], batch_std: float | None = None
    ) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of one task.

        Return no experience if `std_threshold` drops the task.

        Raises:
            DataError: the last step of a rollout has no reward.
        """
        runs = runs_of(exps)
        rewards = [reward_of(steps[-1]) for steps in runs]
        mean, std = group_mean(rewards), group_std(rewards)
        metrics = {"reward_mean": mean, "reward_std": std}
        if self.std_threshold is not None and (len(runs) == 1 or std <= self.std_threshold):
            return [], metrics
        divisor = (std if batch_std is None else batch_std) + self.epsilon
        for steps, reward in zip(runs, rewards, strict=True):
            share = len(steps) if self.enable_step_norm else 1
            for exp in steps:
                set_advantage(exp, (reward - mean) / divisor / share)
        return exps, metrics

    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of all experiences; see `GroupAdvantage.process`.

        The metric `skipped_group_ratio` is the share of tasks that were dropped.
        """
        is_of_batch = self.std_cal_level == "batch" and bool(exps)
        of_batch = (group_std([reward_of(steps[-1]) for steps in runs_of(exps)]),) if is_of_batch else ()
        kept: list[Experience] = []
        rows: list[dict[str, float]] = []
        skipped = 0
        for group_id, group in self.group_experiences(exps).items():
            group_kept, metrics = self.calculate_group_advantage(group_id, group, *of_batch)
            kept.extend(group_kept)
            rows.append(metrics)
            skipped += not group_kept
        counts = {
            "filtered_count": float(len(exps) - len(kept)),
            "skipped_group_ratio": skipped / len(rows) if rows else 0.0,
        }
        return kept, summarise_groups(rows) | counts


def runs_of(exps: list[Experience]) -> list[list[Experience]]:
    """Return the experiences of each rollout, sorted by step."""
    return [sorted(steps, key=lambda exp: exp.eid.step) for steps in group_by(exps, "run").values()]
