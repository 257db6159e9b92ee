"""The turns of a conversation as experiences.

Dimension key: T = tokens of a turn's prompt and response, P = prompt tokens of the first turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trinity.common.experience import Experience


def join_turns(turns: Sequence[Experience]) -> list[Experience]:
    """Return the sampled tokens of turns in as few experiences as possible.

    Turns of which each prompt begins with all tokens of the turn before are one experience, whose action mask covers
    what was sampled. A turn whose prompt does not, as of a template that rewrites earlier turns, begins another one.
    Nothing is tokenised again.
    """
    groups: list[list[Experience]] = []
    for turn in turns:
        if groups and _continues(groups[-1][-1], turn):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [_joined(group) for group in groups]


def finished(turns: Sequence[Experience], *, reward: float, metrics: Mapping[str, float]) -> list[Experience]:
    """Return joined turns that all have the reward of the conversation.

    Args:
        turns: in order.
        reward: of the whole conversation.
        metrics: numbers of the conversation; also kept in `info`.
    """
    experiences = join_turns(turns)
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


def _continues(before: Experience, turn: Experience) -> bool:
    length = len(before.tokens)
    return turn.prompt_length >= length and torch.equal(turn.tokens[:length], before.tokens)


def _joined(turns: Sequence[Experience]) -> Experience:
    if len(turns) == 1:
        return turns[0]
    first, last = turns[0], turns[-1]
    start, length = first.prompt_length, len(last.tokens) - first.prompt_length
    mask = torch.zeros(length, dtype=torch.bool)
    logprobs = torch.zeros(length)
    for turn in turns:
        own = slice(turn.prompt_length - start, len(turn.tokens) - start)
        assert turn.action_mask is not None, "an experience makes its mask"
        mask[own] = turn.action_mask
        if turn.logprobs is not None:
            logprobs[own] = turn.logprobs
    versions = [turn.info["model_version"] for turn in turns if "model_version" in turn.info]
    info = {name: value for name, value in last.info.items() if name != "model_versions"}
    return Experience(
        eid=first.eid,
        tokens=last.tokens,
        prompt_length=start,
        logprobs=logprobs if all(turn.logprobs is not None for turn in turns) else None,
        action_mask=mask,
        truncate_status=last.truncate_status,
        info=info | ({"model_version": min(versions)} if versions else {}),
        metrics=dict(last.metrics),
        prompt_text=first.prompt_text,
        response_text=last.response_text,
    )
