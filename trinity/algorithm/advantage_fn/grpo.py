"""Group-normalised advantage (GRPO, arXiv:2402.03300v3, section 4.1.2)."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Sequence

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn.advantage_fn import (
    GroupAdvantage,
    by_rollout,
    reward_of,
    rollouts_of,
    set_advantage,
    summarise_groups,
)
from trinity.algorithm.statistics import group_mean, group_std
from trinity.algorithm.utils import masked_mean
from trinity.common.errors import DataError
from trinity.common.experience import Experience

_COPY = re.compile(r"copy\d+$")


@ADVANTAGE_FN.register_module("grpo")
class GRPOGroupedAdvantage(GroupAdvantage):
    """Rewards normalised within a task, one number per response.

        A_i = (r_i - mean) / (std + epsilon)

    All tokens of a response get A_i. Equal rewards give exactly 0. A group of one has mean 0 and std 1.

    Args:
        epsilon: added to the standard deviation.
        std_threshold: drop groups whose standard deviation is at or below it, and groups of one; None keeps all.
        duplicate_experiences: repeat a surviving group for each dropped one, so that the batch keeps its size.
        rank_penalty: p; within a group, rank k of n by mean log-probability (0 is the least likely) turns the reward r
            into r (1 - k/n p) for mean and standard deviation; the numerator keeps the raw reward.
        std_cal_level: standard deviation of the `group`, or of the whole `batch`.

    Raises:
        ValueError: an unknown `std_cal_level`.
    """

    summary = "(reward - group mean) / (group standard deviation + epsilon) (arXiv:2402.03300v3, section 4.1.2)"
    formula = (
        "(R - mean(R)) / (std(R) + {epsilon})"
        "\n?std_cal_level=batch std is over all rollouts of the batch"
        "\n?std_threshold tasks with std <= {std_threshold} or one rollout are dropped"
        "\n?duplicate_experiences surviving tasks are repeated in place of dropped ones"
        "\n?rank_penalty mean and std are those of R (1 - k/n {rank_penalty}), k the rank by mean log-probability"
    )
    ranges = {"std_cal_level": ("group", "batch")}

    def __init__(
        self,
        epsilon: float = 1e-6,
        std_threshold: float | None = None,
        duplicate_experiences: bool = False,
        rank_penalty: float | None = None,
        std_cal_level: str = "group",
    ) -> None:
        if std_cal_level not in ("group", "batch"):
            raise ValueError(f"std_cal_level must be group or batch, got {std_cal_level!r}")
        self.epsilon = epsilon
        self.std_threshold = std_threshold
        self.duplicate_experiences = duplicate_experiences
        self.rank_penalty = rank_penalty
        self.std_cal_level = std_cal_level

    def calculate_group_advantage(
        self, group_id: str, exps: list[Experience], batch_std: float | None = None
    ) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of one group.

        Return no experience if `std_threshold` drops the group.

        Raises:
            DataError: an experience has no reward.
        """
        each, rollouts = [reward_of(exp) for exp in exps], rollouts_of(exps)
        rewards, shaped = by_rollout(each, rollouts), by_rollout(self._penalised(exps, each), rollouts)
        mean, std = group_mean(shaped), group_std(shaped)
        metrics = {"reward_mean": mean, "reward_std": std}
        if self.std_threshold is not None and (len(rewards) == 1 or std <= self.std_threshold):
            return [], metrics
        divisor = (std if batch_std is None else batch_std) + self.epsilon
        for exp, rollout in zip(exps, rollouts, strict=True):
            set_advantage(exp, (rewards[rollout] - mean) / divisor)
        return exps, metrics

    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        """Set the advantages of all experiences; see `GroupAdvantage.process`."""
        # `batch_std` is passed only where it is needed: a derived class may define the method without it.
        is_of_batch = self.std_cal_level == "batch" and bool(exps)
        of_batch = (group_std(by_rollout([reward_of(exp) for exp in exps], rollouts_of(exps))),) if is_of_batch else ()
        survivors: list[list[Experience]] = []
        rows: list[dict[str, float]] = []
        groups = self.group_experiences(exps)
        for group_id, group in groups.items():
            kept, metrics = self.calculate_group_advantage(group_id, group, *of_batch)
            rows.append(metrics)
            if kept:
                survivors.append(kept)
        result = [exp for group in survivors for exp in group]
        metrics = summarise_groups(rows) | {"filtered_count": float(len(exps) - len(result))}
        if self.duplicate_experiences and survivors:
            result.extend(_duplicates(survivors, len(groups) - len(survivors)))
        return result, metrics

    def _penalised(self, exps: Sequence[Experience], rewards: list[float]) -> list[float]:
        if self.rank_penalty is None:
            return rewards
        likelihood = [_mean_logprob(exp) for exp in exps]
        order = sorted(range(len(exps)), key=lambda i: likelihood[i])
        rank = {index: position for position, index in enumerate(order)}
        return [reward * (1.0 - rank[i] / len(exps) * self.rank_penalty) for i, reward in enumerate(rewards)]


def _mean_logprob(exp: Experience) -> float:
    if exp.logprobs is None:
        raise DataError(f"experience {exp.eid.uid}: rank_penalty needs logprobs, got None", code="E4602")
    assert exp.action_mask is not None, "Experience fills action_mask"
    return masked_mean(exp.logprobs.double(), exp.action_mask).item()


def is_repeated(experience: Experience) -> bool:
    """Return whether an experience repeats another one of its batch."""
    return bool(_COPY.search(experience.eid.suffix))


def _duplicates(survivors: list[list[Experience]], count: int) -> list[Experience]:
    """Return copies of `count` surviving groups, chosen at random.

    The generator is seeded with the survivors' ids.
    """
    digest = hashlib.sha256("\n".join(group[0].eid.tid for group in survivors).encode()).digest()
    generator = random.Random(int.from_bytes(digest[:8], "big"))
    copies: list[Experience] = []
    for number in range(count):
        for exp in generator.choice(survivors):
            eid = dataclasses.replace(exp.eid, suffix=f"{exp.eid.suffix}copy{number}")  # see `_COPY`
            copies.append(dataclasses.replace(exp, eid=eid))
    return copies
