"""The turns of a conversation as experiences of one rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trinity.common.experience import Experience
from trinity.common.models.trajectories import trajectories


def finished(turns: Sequence[Experience], *, reward: float, metrics: Mapping[str, float]) -> list[Experience]:
    """Return joined turns that all have the reward of the conversation.

    Args:
        turns: in order.
        reward: of the whole conversation.
        metrics: numbers of the conversation; also kept in `info`.
    """
    experiences = trajectories(turns)
    for step, experience in enumerate(experiences):
        experience.eid.step = step
        experience.reward = float(reward)
        experience.info |= metrics
        experience.metrics |= {name: float(value) for name, value in metrics.items()}
    return experiences


def without_actions(experiences: Sequence[Experience]) -> list[Experience]:
    """Return experiences from which nothing is learned.

    Their metrics count.
    """
    for experience in experiences:
        experience.action_mask = torch.zeros(experience.response_length, dtype=torch.bool)
    return list(experiences)
