"""From recorded choices to the experiences of an explore step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sqlalchemy import Row

from trinity.common.experience import EID, Experience
from trinity.common.models.trajectories import trajectories
from trinity.explorer.proxy.models import MESSAGE_ID

MESSAGE_IDS = "message_ids"  # of `Experience.info`: the answers that a conversation consists of


def committed_experiences(rows: Sequence[Row[Any]], *, batch: str) -> list[Experience]:
    """Return the experiences of recorded choices.

    Calls of one run that continue from each other and have the same reward are one experience, in which every response
    is trained once. A call without a task is a task of its own, whose rollouts are its choices.

    Args:
        rows: of the table `proxy_history`, with rewards, in the order of the calls.
        batch: of their identities.
    """
    runs: dict[tuple[str, int], list[Experience]] = {}
    for row in rows:
        task, run = (row.message_id, row.choice) if row.task is None else (row.task, row.run_id)
        experience = Experience.deserialize(row.experience_bytes)
        experience.reward = float(row.reward)
        runs.setdefault((task, run), []).append(experience)
    found = []
    for (task, run), calls in runs.items():
        for step, experience in enumerate(_joined(calls)):
            experience.eid = EID(batch, task, run, step, str(experience.info[MESSAGE_ID]))
            found.append(experience)
    return found


def _joined(calls: list[Experience]) -> list[Experience]:
    """Return the conversations of a run; its calls, if their rewards differ."""
    is_one = all(call.reward == calls[0].reward for call in calls)
    found = trajectories(calls, is_joined=is_one)
    for place, conversation in enumerate(found):
        group = calls if is_one else [calls[place]]
        ids = [call.info[MESSAGE_ID] for call in group if _begins_with(conversation, call)]
        conversation.info = {**conversation.info, MESSAGE_IDS: list(dict.fromkeys(ids))}
        conversation.reward = group[0].reward
    return found


def _begins_with(conversation: Experience, call: Experience) -> bool:
    return torch.equal(conversation.tokens[: len(call.tokens)], call.tokens)
