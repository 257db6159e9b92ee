"""What the viewer shows of an experience, as rows of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.schema.sql_schema import ExperienceModel

LONGEST_CELL = 160


def overview(rows: Sequence[ExperienceModel]) -> list[dict[str, Any]]:
    """Return a line of the table of experiences for each row."""
    return [
        {
            "id": row.id,
            "task": row.task_id,
            "run": row.run_id,
            "turn": row.msg_id,
            "reward": row.reward,
            "state": row.state if not row.drop_reason else f"{row.state}: {row.drop_reason}",
            "weights": row.model_version,
            "explore step": row.explore_step,
            "trained step": row.trained_step,
            "prompt": _short(row.prompt_text),
            "response": _short(row.response_text),
        }
        for row in rows
    ]


def title(row: ExperienceModel) -> str:
    """Return a line that says which experience it is."""
    reward = "no reward" if row.reward is None else f"reward {row.reward:.6g}"
    return f"{row.id}: task {row.task_id}, run {row.run_id}, turn {row.msg_id or 0}, {reward}"


def token_rows(experience: Experience, text_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return a line for each token of prompt and response.

    Args:
        experience: with T tokens.
        text_of: text of a token id.
    """
    first = experience.prompt_length
    columns = {
        "log-prob": experience.logprobs,
        "advantage": experience.advantages,
        "return": experience.returns,
        "token reward": experience.token_level_reward,
        "teacher log-prob": experience.teacher_logprobs,
    }
    given = {name: values.tolist() for name, values in columns.items() if values is not None}
    mask = [] if experience.action_mask is None else experience.action_mask.tolist()
    lines = []
    for place, token in enumerate(experience.tokens.tolist()):
        line: dict[str, Any] = {"place": place, "token": token, "text": text_of(token)}
        own = place - first
        if own < 0:
            lines.append(line | {"part": "prompt"})
            continue
        line["part"] = "trained" if not mask or mask[own] else "not trained"
        line |= {name: values[own] for name, values in given.items()}
        if "log-prob" in given:
            line["probability"] = math.exp(min(0.0, given["log-prob"][own]))
        lines.append(line)
    return lines


def facts(row: ExperienceModel, experience: Experience | None) -> dict[str, Any]:
    """Return what is known of an experience beside texts and tokens."""
    known = {
        name: getattr(row, name)
        for name in ("uid", "run", "stage", "buffer", "producer", "state", "drop_reason", "reward", "model_version")
    }
    known |= {name: getattr(row, name) for name in ("explore_step", "trained_step", "use_count")}
    known["timestamp"] = str(row.timestamp)
    if experience is not None:
        known |= {"metrics": experience.metrics, "info": experience.info}
        known |= {"truncate_status": experience.truncate_status, "tools": experience.tools}
    return known


def _short(text: str | None) -> str:
    line = (text or "").replace("\n", "⏎")
    return line if len(line) <= LONGEST_CELL else f"{line[:LONGEST_CELL]}…"
