"""A conversation as one experience, with the tokens of what was sampled.

    every response was sampled   the tokens as sampled, in as many sequences as the calls form
    some were not                each of these is tokenised from its text, and stands among the others as a call does
    none was                     one sequence, which is tokenised as a whole

No text is tokenised without a mark: `info["retokenised_turns"]` is the number of such responses.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from trinity.common.constants import RETOKENISED, TRAJECTORY
from trinity.common.experience import Experience
from trinity.common.models.trajectories import trajectories
from trinity.utils.log import get_logger

logger = get_logger("explorer")

Messages = Sequence[dict[str, Any]]
_OF_CONVERSATION = ("follows", TRAJECTORY)


@dataclass(eq=False)
class Whole(Experience):
    """The last sequence of a conversation that is several.

    Attributes:
        earlier: the sequences before it, without a reward; see `unfolded`.
        of_model: the names that `info` had before a workflow added its own.
    """

    earlier: list[Experience] = field(default_factory=list)
    of_model: frozenset[str] = frozenset()


async def converted(
    messages: Messages,
    calls: Mapping[int, Experience | None],
    convert: Callable[[Messages], Awaitable[Experience]],
    score: Callable[[list[int]], Awaitable[Float[Tensor, "N"]]] | None,
) -> Experience:
    """Return a conversation as an experience whose actions are its responses.

    It is a `Whole` if the conversation is not one sequence.

    Args:
        messages: the conversation.
        calls: the call that gave the response at each place; None: it was not sampled here.
        convert: tokenises a conversation and scores it with the current weights.
        score: replaces the log-probabilities as sampled; None: they stay.
    """
    parts = await _parts(messages, calls, convert)
    unsampled = sum(call is None for call in calls.values()) if parts else len(calls)
    if parts:
        sequences = [replace(each, truncate_status=None, info=dict(each.info)) for each in trajectories(parts)]
        sequences[-1].messages = [dict(message) for message in messages]
    else:
        sequences = [await convert(messages)]
    if parts and score is not None:
        for each in sequences:
            each.logprobs = (await score(each.tokens.tolist()))[each.prompt_length - 1 :]
    if unsampled:
        sequences[-1].info[RETOKENISED] = unsampled
        _tell_of_retokenised()
    return sequences[0] if len(sequences) == 1 else _whole(sequences)


async def _parts(
    messages: Messages, calls: Mapping[int, Experience | None], convert: Callable[[Messages], Awaitable[Experience]]
) -> list[Experience]:
    """Return a call for each response, of the others one that is made.

    Nothing if no response was sampled, or one of the others is too long.
    """
    parts: list[Experience] = []
    if not any(calls.values()):
        return parts
    for place, call in calls.items():
        if call is None:
            made = await convert(messages[: place + 1])
            if made.truncate_status is not None:
                return []
            call = _last_turn(made)
        parts.append(call)
    return parts


def unfolded(experiences: Sequence[Experience]) -> list[Experience]:
    """Return the experiences of a rollout with all sequences of each.

    The earlier sequences of a conversation stand before its last, and have its reward and what a workflow added to its
    `info`. Their numbers (`trajectory`) are unique in the rollout.
    """
    made: list[Experience] = []
    first = 0
    for each in experiences:
        if not isinstance(each, Whole):
            made.append(each)
            continue
        added = {name: value for name, value in each.info.items() if name not in each.of_model}
        reward = each.reward
        if reward is None and each.token_level_reward is not None:
            reward = float(each.token_level_reward.sum())
        for other in each.earlier:
            info = _numbered({**added, **other.info}, first)
            made.append(replace(other, reward=reward, info=info, custom_fields=list(each.custom_fields)))
        last = {one.name: getattr(each, one.name) for one in fields(Experience)}
        made.append(Experience(**(last | {"info": _numbered(each.info, first)})))
        first += len(each.earlier) + 1
    return made


def _numbered(info: Mapping[str, Any], first: int) -> dict[str, Any]:
    return {name: value + first if name in _OF_CONVERSATION else value for name, value in info.items()}


def _whole(sequences: Sequence[Experience]) -> Whole:
    last = sequences[-1]
    values = {one.name: getattr(last, one.name) for one in fields(Experience)}
    return Whole(**values, earlier=list(sequences[:-1]), of_model=frozenset(last.info))


def _last_turn(made: Experience) -> Experience:
    """Return the last response of a conversation as a call of its own."""
    assert made.action_mask is not None and made.logprobs is not None, "a conversion has both"
    places = made.action_mask.nonzero().flatten()
    breaks = (places.diff() > 1).nonzero().flatten()
    start = int(places[int(breaks[-1]) + 1 if len(breaks) else 0])
    text, content = f"{made.prompt_text}{made.response_text}", (made.messages or [{}])[-1].get("content")
    cut = text.rfind(content) if isinstance(content, str) else -1
    return replace(
        made,
        prompt_length=made.prompt_length + start,
        logprobs=made.logprobs[start:],
        action_mask=made.action_mask[start:],
        prompt_text=text if cut < 0 else text[:cut],
        response_text="" if cut < 0 else text[cut:],
    )


@functools.cache
def _tell_of_retokenised() -> None:
    logger.warning(
        "a conversation that became an experience has responses that were not sampled in it, or came back in other "
        "words; they are tokenised from their text, trained with log-probabilities of the current weights, and counted "
        "(rollout/retokenised_turn_count, and info[%r] of the experience)",
        RETOKENISED,
    )
