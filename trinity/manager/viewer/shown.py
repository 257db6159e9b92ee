"""What the viewer shows of experiences beside tokens, as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trinity.utils.printable import printable

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.schema.sql_schema import ExperienceModel

LONGEST_CELL = 160
METRIC = "metric: "
"""Before the name of a metric in the columns of `compared`."""
_COMPARED = ("id", "run", "turn", "reward", "state", "weights")


def overview(rows: Sequence[ExperienceModel]) -> list[dict[str, Any]]:
    """Return a line of the table of experiences for each row.

    Its columns are named as in `COLUMNS` of the words.
    """
    return [
        {
            "id": row.id,
            "task": printable(row.task_id),
            "run": row.run_id,
            "turn": printable(row.msg_id),
            "reward": row.reward,
            "state": (row.state, printable(row.drop_reason or "")),
            "weights": row.model_version,
            "explore_step": row.explore_step,
            "trained_step": row.trained_step,
            "prompt": _short(row.prompt_text),
            "response": _short(row.response_text),
        }
        for row in rows
    ]


def rewards(row: ExperienceModel, experience: Experience | None) -> list[dict[str, Any]]:
    """Return a line for the reward and one for each metric.

    Metrics that a reward function gave add up to the reward.
    """
    metrics = {} if experience is None else experience.metrics
    return [{"name": "", "value": row.reward}, *({"name": printable(n), "value": v} for n, v in metrics.items())]


def compared(
    rows: Sequence[ExperienceModel], experiences: Mapping[int, Experience]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a line for each experience of a group.

    With them come the names of the metrics that are columns.

    Args:
        rows: of the group.
        experiences: by id, of the rows that have a payload.
    """
    lines, names = list[dict[str, Any]](), dict[str, None]()
    for row in rows:
        experience = experiences.get(row.id)
        line = {name: value for name, value in overview([row])[0].items() if name in _COMPARED}
        if experience is not None:
            line["tokens"] = experience.response_length
            line["advantage"] = _mean_advantage(experience)
            found = {f"{METRIC}{printable(name)}": value for name, value in experience.metrics.items()}
            names |= dict.fromkeys(found)
            line |= found
        lines.append(line)
    return lines, list(names)


def _mean_advantage(experience: Experience) -> float | None:
    """Return the mean over the tokens that the policy produced."""
    values, mask = experience.advantages, experience.action_mask
    if values is None or mask is None or not bool(mask.any()):
        return None
    return float(values[mask].mean())


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
    line = printable((text or "")[: LONGEST_CELL + 1]).replace("\n", "⏎")
    return line if len(line) <= LONGEST_CELL else f"{line[:LONGEST_CELL]}…"
