"""The calls of a conversation as one experience.

    call 1   prompt ......... response
    call 2   prompt ......... ........ tool response
    joined   prompt           response      response      the actions; what stands between them is masked

Dimension key: R = tokens after the first prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trinity.common.constants import LINK, TRAJECTORY
from trinity.common.experience import Experience


def trajectories(calls: Sequence[Experience], *, is_joined: bool = True) -> list[Experience]:
    """Return the trajectories of a rollout, one experience for each.

    A call continues from another if its prompt begins with all tokens of that. The calls are a tree, and each of its
    leaves is one experience. Every response is trained once: what branches have in common is an action in the first of
    them, and context in the others.

    Of several trajectories, `info` has the number of each (`trajectory`), the one that it follows (`follows`, none for
    the first), and how many first tokens they have in common (`shared_tokens`). A branch follows the trajectory that
    trains the response from which it continues. One that begins with other messages, such as a summary, follows
    the one with which it has most first tokens in common, the latest of equals.

    Args:
        calls: in the order in which they were made.
        is_joined: false makes each call an experience of its own.
    """
    parents = [_parent(place, calls) for place in range(len(calls))]
    ends = [place for place in range(len(calls)) if not is_joined or place not in parents]
    trainers: dict[int, int] = {}
    made: list[Experience] = []
    for number, end in enumerate(ends):
        path = _path(end, parents) if is_joined else [end]
        own = [place for place in path if place not in trainers]
        sample = joined([calls[place] for place in path], [place in own for place in path])
        if len(ends) > 1:
            parent = parents[own[0]]
            sample = _linked(sample, made, follows=None if parent is None else trainers[parent])
        made.append(sample)
        trainers.update(dict.fromkeys(own, number))
    return made


def _path(end: int, parents: Sequence[int | None]) -> list[int]:
    path, place = [end], parents[end]
    while place is not None:
        path.insert(0, place)
        place = parents[place]
    return path


def _linked(sample: Experience, earlier: Sequence[Experience], *, follows: int | None) -> Experience:
    """Return a copy of a trajectory that says which one it follows."""
    info = {name: value for name, value in sample.info.items() if name not in LINK} | {TRAJECTORY: len(earlier)}
    if earlier:
        if follows is None:
            follows = max(range(len(earlier)), key=lambda number: (_shared_tokens(sample, earlier[number]), number))
        info |= {"follows": follows, "shared_tokens": _shared_tokens(sample, earlier[follows])}
    return replace(sample, eid=replace(sample.eid), info=info, metrics=dict(sample.metrics))


def _shared_tokens(one: Experience, other: Experience) -> int:
    """Return how many first tokens two experiences have in common."""
    length = min(len(one.tokens), len(other.tokens))
    return int((one.tokens[:length] == other.tokens[:length]).cumprod(0).sum())


def joined(calls: Sequence[Experience], is_trained: Sequence[bool] | None = None) -> Experience:
    """Return calls, each of which continues from the one before it, as one.

    It has the tokens of the last call and the log-probabilities [R] as sampled, if all calls have them; its actions are
    the responses.
    `info` says of how many calls it consists and, if they differ, which version of the weights sampled each token.

    Args:
        calls: at least one.
        is_trained: which responses are actions; None: all.
    """
    first, last = calls[0], calls[-1]
    if len(calls) == 1 and (is_trained is None or is_trained[0]):
        return first
    start = first.prompt_length
    count = len(last.tokens) - start
    mask, logprobs = torch.zeros(count, dtype=torch.bool), torch.zeros(count)
    versions = [int(first.info.get("model_version", 0))] * count
    for call, trained in zip(calls, is_trained or [True] * len(calls), strict=True):
        begin, end = call.prompt_length - start, len(call.tokens) - start
        assert call.action_mask is not None, "an experience makes its mask"
        mask[begin:end] = call.action_mask if trained else False
        if call.logprobs is not None:
            logprobs[begin:end] = call.logprobs
        own = int(call.info.get("model_version", 0))
        versions[begin:end] = call.info.get("model_versions") or [own] * (end - begin)
    info = {**last.info, "model_version": versions[0], "call_count": len(calls)}
    for name in ("model_versions", *LINK):
        info.pop(name, None)
    if len(set(versions)) > 1:
        info["model_versions"] = versions
    return Experience(
        eid=replace(first.eid),  # branches from one call are numbered apart
        tokens=last.tokens,
        prompt_length=start,
        logprobs=logprobs if all(call.logprobs is not None for call in calls) else None,
        action_mask=mask,
        truncate_status=last.truncate_status,
        info=info,
        metrics=dict(last.metrics),
        prompt_text=first.prompt_text,
        response_text=(last.prompt_text or "").removeprefix(first.prompt_text or "") + (last.response_text or ""),
        messages=last.messages,
        tools=last.tools,
    )


def goes_on_from(call: Experience, earlier: Experience) -> bool:
    """Return whether the prompt of a call begins with all of another.

    One with images never does: tokens do not tell which images they stand for.
    """
    if call.multi_modal_inputs is not None or earlier.multi_modal_inputs is not None:
        return False
    length = len(earlier.tokens)
    return length <= call.prompt_length and torch.equal(call.tokens[:length], earlier.tokens)


def _parent(place: int, calls: Sequence[Experience]) -> int | None:
    """Return the longest earlier call that a call continues from."""
    found = [earlier for earlier in range(place) if goes_on_from(calls[place], calls[earlier])]
    return max(found, key=lambda earlier: len(calls[earlier].tokens), default=None)
