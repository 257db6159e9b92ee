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

from trinity.common.experience import Experience


def trajectories(calls: Sequence[Experience]) -> list[Experience]:
    """Return one experience for each conversation of a rollout.

    A call continues from another if its prompt begins with all tokens of that. The calls are a tree, and each of its
    leaves is one experience. Every response is trained once: what branches have in common is an action in the first of
    them, and context in the others.

    Args:
        calls: in the order in which they were made.
    """
    parents = [_parent(place, calls) for place in range(len(calls))]
    leaves = [place for place in range(len(calls)) if place not in parents]
    trained: set[int] = set()
    joined_calls = []
    for leaf in leaves:
        path: list[int] = []
        place: int | None = leaf
        while place is not None:
            path.insert(0, place)
            place = parents[place]
        joined_calls.append(joined([calls[each] for each in path], [each not in trained for each in path]))
        trained.update(path)
    return joined_calls


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
    info.pop("model_versions", None)
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
