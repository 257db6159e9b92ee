"""Rewards of the policies: their range, and who gets the most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trinity.launch.env_check.findings import CheckFinding
from trinity.launch.env_check.policies import Named
from trinity.launch.trial.rollouts import Rollout


def reward_findings(policies: Sequence[Named], seen: Mapping[str, Sequence[Rollout]]) -> Iterator[CheckFinding]:
    """Yield what the rewards of all policies show."""
    means = {name: mean for name, rollouts in seen.items() if (mean := _mean(rollouts)) is not None}
    every = [each.reward for rollouts in seen.values() for each in rollouts if each.reward is not None]
    if not every:
        yield CheckFinding("rewards", "error", "no rollout of any policy has a reward")
        return
    low, high = min(every), max(every)
    if low == high:
        text = f"every rollout of every policy has the reward {low:g}, from which nothing can be learned"
        yield CheckFinding("rewards", "warning", text)
    else:
        yield CheckFinding("rewards", "ok", f"finite, {low:g} to {high:g}")
    oracles = [policy.name for policy in policies if policy.has_truth and policy.name in means]
    if not oracles:
        yield CheckFinding("rewards", "ok", "the rows have no truth to compare with")
        return
    best = max(oracles, key=lambda name: means[name])
    others = [name for name in means if name not in oracles]
    highest = max(others, key=lambda name: means[name], default=None)
    if highest is not None and means[best] <= means[highest]:
        yield CheckFinding(
            "rewards",
            "warning",
            f"the truth of the row, as a response, gets {means[best]:.4g} on average, not more than "
            f"{highest}, which gets "
            f"{means[highest]:.4g}; look whether the reward function reads the response and compares it with the truth",
        )
    else:
        yield CheckFinding("rewards", "ok", f"{best} gets the most, {means[best]:.4g} on average")


def _mean(rollouts: Sequence[Rollout]) -> float | None:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
