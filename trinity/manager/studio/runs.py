"""The page of runs: their state, curves and health, and how to stop them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.common.errors import TrinityError
from trinity.launch.job import RUNNING
from trinity.launch.jobs import JobState, PartState, ask_to_stop, job_state, jobs_below, log_files
from trinity.manager.language import in_language
from trinity.manager.studio.live import show_progress, show_rollouts
from trinity.manager.studio.plots import curves_of, named_curves, show_curves
from trinity.manager.studio.processes import StartedRun, ended_badly, last_lines, resume_run
from trinity.manager.studio.settings import StudioSettings
from trinity.manager.studio.words import word
from trinity.manager.widgets import begin_with, keep, plain, say, show_said
from trinity.summary.curves import StageCurves
from trinity.summary.facts import changes
from trinity.summary.words import COUNTED, PARTS, STATES, Text
from trinity.summary.words import WORDS as SUMMARY
from trinity.utils.log import redact

EVERY_S = 2.0
SILENT_S = 300.0
LOG_LINES = 30


def runs_page(settings: StudioSettings) -> None:
    """Show the runs below a folder, and follow one of them."""
    show_said()
    jobs = jobs_of_folder(settings)
    awaited = st.session_state.get("_awaited")
    if awaited is not None:
        begun = begun_since(jobs, awaited)
        if begun is None:
            st.fragment(_wait, run_every=EVERY_S)(awaited)
        else:
            st.session_state["_job"] = begun
            del st.session_state["_awaited"]
    if not jobs:
        if awaited is None:
            st.info(word("no_runs"))
        return
    st.dataframe([_row(each) for each in jobs.values()], hide_index=True)
    if st.session_state.get("_job") not in jobs:
        st.session_state["_job"] = max(jobs, key=lambda name: jobs[name].updated)
    chosen = st.selectbox(word("run"), list(jobs), key="_job")
    st.fragment(_one_run, run_every=EVERY_S)(Path(chosen))


@dataclass(frozen=True)
class AwaitedRun:
    """A run that was started and has no folder yet.

    Attributes:
        process: of it.
        folder: below which its folder will be.
        since: when it was started, in seconds since 1970.
    """

    process: StartedRun
    folder: Path
    since: float


def begun_since(jobs: Mapping[str, JobState], awaited: AwaitedRun) -> str | None:
    """Return the run that has begun since then; None: it has not yet."""
    begun = [name for name, job in jobs.items() if job.status == "running" or job.updated >= awaited.since]
    return max(begun, key=lambda name: jobs[name].updated) if begun else None


def _wait(awaited: AwaitedRun) -> None:
    """Wait for the folder of a run, or for the end of its process."""
    if _show_bad_ends():
        del st.session_state["_awaited"]
        return
    st.info(word("starting"))
    if begun_since({str(each.folder): each for each in jobs_below(awaited.folder)}, awaited) is not None:
        st.rerun()
    if awaited.process.process.poll() is not None:  # it ended at once, and well: there was nothing left to do
        del st.session_state["_awaited"]
        st.rerun()


def _show_bad_ends() -> bool:
    """Show the runs that were started here and failed; return whether any did."""
    found = ended_badly()
    for started in found:
        st.error(plain(word("ended_badly", file=started.output, status=started.process.returncode)))
        st.code(redact(last_lines(started.output, LOG_LINES)), language=None, wrap_lines=True)
    return bool(found)


def jobs_of_folder(settings: StudioSettings) -> dict[str, JobState]:
    """Ask for a folder, and return the runs below it by their folders."""
    begin_with("_folder", settings.folder)
    folder = st.text_input(word("folder"), key="_folder", help=word("folder_help"))
    keep("_folder", folder)
    return {str(each.folder): each for each in jobs_below(Path(folder or "."))}


def _row(job: JobState) -> dict[str, Any]:
    return {
        word("run"): str(job.folder),
        word("status"): _status(job.status),
        word("step"): _step(job),
        word("checkpoints"): ", ".join(map(str, job.checkpoints)),
    }


def _step(job: JobState) -> int:
    """Return the last step that a record or a line of metrics has."""
    steps = [part.training_step or part.explore_step for part in job.parts]
    steps += [int(record.get("step") or 0) for record in job.metrics.values()]
    return max(steps, default=0)


def _status(status: str) -> str:
    return in_language(STATES.get(status, Text(status, status)))


def _one_run(folder: Path) -> None:
    """Show a run; again and again while the page is open."""
    show_said()
    _show_bad_ends()
    try:
        job = job_state(folder)
    except TrinityError as error:
        st.error(plain(str(error)))
        return
    st.subheader(plain(folder.name))
    for number, part in enumerate(job.parts):
        _show_part(job, part, number)
    curves = curves_of(folder)
    if job.status == RUNNING:
        show_progress(job, curves)
    _show_health(job, curves)
    named = named_curves(curves)
    st.subheader(word("curves"))
    if not named:
        st.info(word("no_curves"))
    for name, points in named.items():
        show_curves(name, {folder.name: points})
    rows = [
        {
            in_language(SUMMARY["metric"]): each.metric,
            in_language(SUMMARY["before"]): each.before,
            in_language(SUMMARY["after"]): each.after,
            word("step"): each.last_step,
        }
        for each in changes(curves)
    ]
    if rows:
        st.caption(in_language(SUMMARY["metrics"]))
        st.dataframe(rows, hide_index=True)
    show_rollouts(job, curves)
    files = log_files(folder)
    if files:
        with st.expander(word("log")):
            st.code(redact(last_lines(files[-1], LOG_LINES)), language=None, wrap_lines=True)


def _show_part(job: JobState, part: PartState, number: int) -> None:
    """Show a part of a job, with what can be done about it."""
    step = _step(job) if len(job.parts) == 1 else part.training_step or part.explore_step
    name = f"{part.name}: " if part.name else ""
    st.text(f"{name}{_status(part.status)}, {word('step')} {step}{', ' + part.holder if part.holder else ''}")
    if part.error:
        st.code(redact(part.error), language=None, wrap_lines=True)
    arguments = (job.folder, part.name or None, part.holder)
    if part.is_running:
        is_asked = st.session_state.get("_asked") == arguments
        if is_asked:
            st.info(word("stopping"))
        st.button(word("stop_now" if is_asked else "stop"), key=f"_stop_{number}", on_click=_stop, args=arguments)
    elif part.status != "done" and part.command:
        st.button(word("resume"), key=f"_resume_{number}", on_click=_resume, args=arguments[:2])


def _stop(folder: Path, part: str | None, holder: str) -> None:
    try:
        ask_to_stop(folder, part=part)
        st.session_state["_asked"] = (folder, part, holder)
    except TrinityError as error:
        say("error", str(error))


def _resume(folder: Path, part: str | None) -> None:
    try:
        started = resume_run(folder, part=part)
        say("success", word("resumed", file=started.output))
    except TrinityError as error:
        say("error", str(error))


def _show_health(job: JobState, curves: StageCurves) -> None:
    """Show what a person should know of a run that is running or has ended."""
    st.subheader(word("health"))
    silent = time.time() - job.updated
    if job.status == RUNNING and silent > SILENT_S:
        st.warning(word("silent", seconds=round(silent)))
    counted = [f"{number}: {in_language(COUNTED[name])}" for name, number in curves.counts.items()]
    st.text("\n".join(counted) or word("healthy"))
    times = {in_language(PARTS[part]): round(seconds, 1) for part, seconds in curves.seconds.items()}
    if times:
        st.caption(word("time"))
        st.dataframe([times], hide_index=True)
