"""Curves of runs as charts of Streamlit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from trinity.manager.studio.words import word
from trinity.manager.widgets import plain
from trinity.summary.curves import GrowingCurves, Points, StageCurves, thinned

MOST_POINTS = 400
STEP, VALUE, RUN = "step", "value", "run"


def curves_of(job: Path) -> StageCurves:
    """Return the curves of a job; only what it has written since is read."""
    growing, lock = _growing(str(job.absolute()))
    with lock:
        return growing.read()


@st.cache_resource(max_entries=32, show_spinner=False)
def _growing(job: str) -> tuple[GrowingCurves, threading.Lock]:
    """Return what reads a job, and the lock for pages that show it at once."""
    return GrowingCurves(Path(job)), threading.Lock()


def named_curves(curves: StageCurves) -> dict[str, Points]:
    """Return the curves of a job that are not empty, by a name for a person."""
    found = {
        f"{word('reward')}: {curves.reward_name}": curves.reward,
        **{f"{word('evaluation')}: {name}": points for name, points in curves.evaluations.items()},
        f"{word('loss')}: {curves.loss_name}": curves.loss,
        word("length"): curves.length,
    }
    return {name: points for name, points in found.items() if points}


def show_curves(name: str, by_run: Mapping[str, Points]) -> None:
    """Show a metric over the steps, a line for each run."""
    rows = [
        {STEP: step, VALUE: value, RUN: run}
        for run, points in by_run.items()
        for step, value in thinned(points, MOST_POINTS)
    ]
    st.caption(plain(name))
    columns = {column: [row[column] for row in rows] for column in (STEP, VALUE, RUN)}
    st.line_chart(columns, x=STEP, y=VALUE, color=RUN, height=260)
