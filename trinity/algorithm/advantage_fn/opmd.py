"""Online policy mirror descent: the reward minus a baseline of the task.

The baseline is the mean, or tau ln(mean(exp(r / tau))), the value of the KL-regularised problem (Kimi k1.5,
arXiv:2501.12599v4, section 2.3.2), which tends to the largest reward as tau goes to 0 and to the mean as it grows.
A group of one has baseline 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import RewardGroupAdvantage
from trinity.algorithm.advantage_fn.token_advantage import GroupedTokenAdvantage
from trinity.algorithm.statistics import group_mean, log_mean_exp

BASELINES = ("mean", "logavgexp")


@ADVANTAGE_FN.register_module("opmd")
class OPMDGroupAdvantage(RewardGroupAdvantage):
    """Reward minus the baseline, in the experience pipeline. Name: `opmd`.

    Args:
        opmd_baseline: `mean` or `logavgexp`.
        tau: temperature of `logavgexp`, > 0, in units of the reward.

    Raises:
        ValueError: an unknown baseline, or tau <= 0.
    """

    summary = "reward - mean or log-mean-exp of the task (arXiv:2501.12599v4, section 2.3.2)"
    formula = (
        "R - baseline"
        "\n?opmd_baseline=mean baseline = mean(R)"
        "\n?opmd_baseline=logavgexp baseline = {tau} ln(mean(exp(R / {tau})))"
    )
    ranges = {"opmd_baseline": BASELINES, "tau": "(0, inf]"}

    def __init__(self, opmd_baseline: str = "mean", tau: float = 1.0) -> None:
        self.opmd_baseline, self.tau = _checked(opmd_baseline, tau)

    def compare(self, rewards: Sequence[float]) -> list[float]:
        """Return the rewards minus the baseline."""
        return opmd_advantages(rewards, self.opmd_baseline, tau=self.tau)


@ADVANTAGE_FN.register_module("opmd_verl")
class OPMDAdvantage(GroupedTokenAdvantage):
    """Score minus the baseline, in the trainer. Name: `opmd_verl`.

    The arguments are those of `OPMDGroupAdvantage`.
    """

    summary = "opmd, in the trainer"
    formula = OPMDGroupAdvantage.formula
    ranges = OPMDGroupAdvantage.ranges

    def __init__(self, opmd_baseline: str = "mean", tau: float = 1.0) -> None:
        self.opmd_baseline, self.tau = _checked(opmd_baseline, tau)

    def compare(self, scores: Sequence[float]) -> list[float]:
        """Return the scores minus the baseline."""
        return opmd_advantages(scores, self.opmd_baseline, tau=self.tau)


def opmd_advantages(rewards: Sequence[float], opmd_baseline: str, *, tau: float) -> list[float]:
    """Return the rewards of one group minus its baseline."""
    baseline = group_mean(rewards)
    if opmd_baseline == "logavgexp" and len(set(rewards)) > 1:
        baseline = tau * log_mean_exp([reward / tau for reward in rewards])
    return [reward - baseline for reward in rewards]


def _checked(opmd_baseline: str, tau: float) -> tuple[str, float]:
    if opmd_baseline not in BASELINES:
        raise ValueError(f"opmd_baseline must be one of {', '.join(BASELINES)}, got {opmd_baseline!r}")
    if tau <= 0:
        raise ValueError(f"tau must be > 0, got {tau}")
    return opmd_baseline, tau
