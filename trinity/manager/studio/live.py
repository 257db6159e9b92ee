"""How a run is doing: time left, speed, age of the data and rollouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.common.errors import TrinityError
from trinity.launch.job import SAVED_CONFIG
from trinity.launch.jobs import JobState
from trinity.launch.samples import LatestRollout, latest_rollouts, place_of
from trinity.manager.language import in_language
from trinity.manager.studio.words import word
from trinity.manager.widgets import plain
from trinity.monitor import headline
from trinity.monitor.monitor import METRICS_FILE
from trinity.summary.curves import StageCurves
from trinity.summary.words import LIVE

MOST_CHARACTERS = 400
Seen = tuple[str, int]
"""A job, and the size of its metrics: what was read then need not be read again."""


def show_progress(job: JobState, curves: StageCurves) -> None:
    """Show the figures of a live run."""
    planned = {actor: steps for part in job.parts for actor, steps in part.planned.items()}
    left = time_left_s(job, curves)
    steps = ", ".join(f"{_step(job, actor)} / {total}" for actor, total in planned.items())
    shown = {
        "planned": steps,
        "left": "" if left is None else f"{int(left) // 60}:{int(left) % 60:02d}",
        "trained_speed": _shown(job, headline.tokens_per_second, "{:.0f}"),
        "sampled_speed": _shown(job, headline.rollout_tokens_per_second, "{:.0f}"),
        "staleness": _shown(job, headline.staleness, "{:.1f}"),
        "mismatch": _shown(job, headline.mismatch, "{:.1e}"),
    }
    known = {name: text for name, text in shown.items() if text}
    if known:
        for column, (name, text) in zip(st.columns(len(known)), known.items(), strict=True):
            column.metric(word(name), text, help=word(f"{name}_help"))


def time_left_s(job: JobState, curves: StageCurves) -> float | None:
    """Return the seconds until the last planned step, at the present pace.

    None while the number of steps or the pace is not known.
    """
    for part in job.parts:
        for actor, total in part.planned.items():
            if actor in curves.pace:
                return max(0, total - _step(job, actor)) * curves.pace[actor]
    return None


def show_rollouts(job: JobState, curves: StageCurves) -> None:
    """Show the latest rollouts, or why they cannot be shown."""
    if not curves.has_fates:
        return
    st.subheader(in_language(LIVE["latest"]))
    try:
        found = _latest(job.folder)
    except TrinityError as error:
        st.warning(plain(in_language(LIVE["unread"]).format(error)))
        return
    rows = [
        {
            in_language(LIVE["reward_of"]): each.reward,
            in_language(LIVE["advantage"]): each.advantage,
            in_language(LIVE["prompt"]): each.prompt[:MOST_CHARACTERS],
            in_language(LIVE["response"]): each.response[:MOST_CHARACTERS],
            word("weights"): each.version,
        }
        for each in found
    ]
    if rows:
        st.dataframe(rows, hide_index=True)


def _latest(folder: Path) -> list[LatestRollout]:
    """Return the latest rollouts; read again once the run wrote metrics."""
    file = folder / METRICS_FILE
    seen: Seen = str(folder), file.stat().st_size if file.exists() else 0
    known: tuple[Seen, list[LatestRollout]] | None = st.session_state.get("_rollouts")
    if known is None or known[0] != seen:
        place, run = _place(str(folder), (folder / SAVED_CONFIG).stat().st_mtime_ns)
        known = seen, latest_rollouts(place, run)
        st.session_state["_rollouts"] = known
    return known[1]


@st.cache_data(max_entries=32, show_spinner=False)
def _place(job: str, written: int) -> tuple[str, str]:
    return place_of(Path(job))


def _step(job: JobState, actor: str) -> int:
    return int(job.metrics.get(actor, {}).get("step") or 0)


def _shown(job: JobState, figure: Callable[[dict[str, Any]], float | None], form: str) -> str:
    """Return a figure of the actor that has it, as text; empty: none has."""
    found = [value for record in job.metrics.values() if (value := figure(record)) is not None]
    return form.format(found[0]) if found else ""
