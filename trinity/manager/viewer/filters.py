"""The filters, as Streamlit's widgets."""

from __future__ import annotations

from typing import Any

import streamlit as st

from trinity.buffer.records import LARGEST_ID
from trinity.buffer.wanted import Wanted
from trinity.common.schema.sql_schema import storable_text
from trinity.manager.language import in_language
from trinity.manager.viewer.link import begin
from trinity.manager.viewer.words import STATES, word
from trinity.manager.widgets import keep


def ask_filters(buffer: str) -> Wanted:
    """Show the filters; return which experiences are asked for.

    Args:
        buffer: name of the experience buffer; empty: of all.
    """
    st.header(word("filters"))
    return Wanted(
        buffer=buffer,
        text=_text("text", is_whole=True),
        task=_text("task"),
        states=tuple(_states()),
        reason=_text("reason"),
        least_reward=_number("least"),
        most_reward=_number("most"),
        run=_text("run"),
        step=_whole("step", least=0),
        below=_whole("below", least=1),
    )


def _text(part: str, *, is_whole: bool = False) -> str:
    begin(part)
    text: str = st.text_input(word(f"ask_{part}"), key=part, help=word(f"ask_{part}_help"))
    keep(part, text)
    return storable_text(text if is_whole else text.strip()) or ""


def _states() -> list[str]:
    begin("state")
    names = {state: in_language(text) for state, text in STATES.items()}
    states: list[str] = st.multiselect(word("ask_state"), list(names), format_func=names.__getitem__, key="state")
    keep("state", states)
    return states


def _number(part: str) -> float | None:
    begin(part)
    number: float | None = st.number_input(word(f"ask_{part}"), value=None, key=part, format="%g")
    keep(part, number)
    return number


def _whole(part: str, *, least: int) -> int | None:
    begin(part)
    limits: dict[str, Any] = {"min_value": least, "max_value": LARGEST_ID, "step": 1}
    number: int | None = st.number_input(
        word(f"ask_{part}"), value=None, key=part, help=word(f"ask_{part}_help"), **limits
    )
    keep(part, number)
    return number
