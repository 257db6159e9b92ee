"""The memory of a run of the draft, as `trinity estimate` says it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.common.errors import TrinityError
from trinity.launch.estimation import StageEstimate, estimate
from trinity.manager.studio.words import word
from trinity.manager.widgets import keep, plain
from trinity.utils.memory import shown_bytes


def show_memory(values: dict[str, Any], text: str, plugin_dirs: Sequence[Path]) -> None:
    """Show the memory by process and part where it is asked for.

    Args:
        values: of a configuration without errors.
        text: the same as YAML; it is computed once for each.
        plugin_dirs: folders of plugins.
    """
    if not st.checkbox(word("memory"), key="_memory", help=word("memory_help")):
        return
    known: tuple[str, list[StageEstimate]] | None = st.session_state.get("_estimated")
    if known is None or known[0] != text:
        try:
            known = text, estimate(values, plugin_dirs=tuple(plugin_dirs))[0]
        except TrinityError as error:
            st.error(plain(str(error)))
            return
        keep("_estimated", known)
    for stage in known[1]:
        _show_stage(stage)


def _show_stage(stage: StageEstimate) -> None:
    if stage.stage:
        st.caption(plain(stage.stage))
    have = stage.limits.host_bytes
    st.text(word("memory_host", need=shown_bytes(stage.host_bytes), have=shown_bytes(have) if have else "?"))
    if stage.device_bytes:
        st.text(word("memory_gpus", need=shown_bytes(stage.device_bytes)))
    rows = [
        {
            word("process"): f"{place.count} x {place.process}" if place.count > 1 else place.process,
            word("part"): part.name,
            "MiB": round(part.num_bytes / 2**20, 1),
            word("reason"): f"{part.how}: {part.rule}" if part.rule else part.how,
        }
        for place in stage.places
        for part in place.parts
    ]
    st.dataframe(rows, hide_index=True)
    for each in stage.advice:
        st.info(plain(each.text))
