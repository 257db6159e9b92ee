"""The page that compares runs: what was set differently, and the curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.common.config import ConfigErrors
from trinity.common.config.base import is_derived
from trinity.common.config.overrides import parse_path
from trinity.common.config.reading import read_file
from trinity.common.config.schema_index import field_at
from trinity.common.config.showing import redacted
from trinity.launch.job import SAVED_CONFIG, flatten
from trinity.manager.studio.plots import curves_of, named_curves, show_curves
from trinity.manager.studio.runs import jobs_of_folder
from trinity.manager.studio.settings import StudioSettings
from trinity.manager.studio.words import word
from trinity.manager.widgets import plain

_ITS_OWN = ("name", "ray_namespace", "written")
"""Keys that differ between any two runs, beside computed ones."""


def compare_page(settings: StudioSettings) -> None:
    """Show what differs between runs of a folder, and their curves together."""
    jobs = list(jobs_of_folder(settings))
    if len(jobs) < 2:
        st.info(word("no_runs") if not jobs else word("choose_two"))
        return
    chosen = st.multiselect(word("compared"), jobs, default=jobs[:2], key="_compared")
    if len(chosen) < 2:
        st.info(word("choose_two"))
        return
    names = short_names(chosen)
    st.subheader(word("settings"))
    rows = settings_that_differ({names[job]: saved_settings(Path(job)) for job in chosen})
    if rows:
        st.dataframe([{word("key"): key, **values} for key, values in rows.items()], hide_index=True)
    else:
        st.info(word("same_settings"))
    st.subheader(word("curves"))
    curves = {names[job]: named_curves(curves_of(Path(job))) for job in chosen}
    for metric in dict.fromkeys(name for found in curves.values() for name in found):
        show_curves(metric, {run: found[metric] for run, found in curves.items() if metric in found})


def short_names(folders: list[str]) -> dict[str, str]:
    """Return names of runs without the folders that all of them are in."""
    parts = [Path(each).parts for each in folders]
    shared = next(
        (depth for depth in range(min(map(len, parts))) if len({each[depth] for each in parts}) > 1),
        min(map(len, parts)) - 1,
    )
    return {folder: "/".join(each[shared:]) for folder, each in zip(folders, parts, strict=True)}


def saved_settings(job: Path) -> dict[str, Any]:
    """Return the complete settings of a run by key, without secrets.

    They are empty where the run has saved none that can be read.
    """
    try:
        return flatten(redacted(read_file(job / SAVED_CONFIG).values))
    except ConfigErrors as error:
        st.warning(plain(error.format()))
        return {}


def settings_that_differ(by_run: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the keys with unequal values, and the value in each run as text."""
    keys = sorted(key for key in {key for settings in by_run.values() for key in settings} if not _is_its_own(key))
    found = {}
    for key in keys:
        values = {run: "-" if key not in settings else str(settings[key]) for run, settings in by_run.items()}
        if len(set(values.values())) > 1:
            found[key] = values
    return found


def _is_its_own(key: str) -> bool:
    field = field_at(parse_path(key) or (key,))
    return key in _ITS_OWN or (field is not None and is_derived(field))
