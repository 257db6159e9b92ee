"""What the page shows, as the query of its address.

Who opens the address sees the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from trinity.buffer.records import LARGEST_ID
from trinity.common.schema.sql_schema import storable_text
from trinity.manager.language import LANGUAGES, default_language
from trinity.manager.viewer.tokens import QUANTITIES
from trinity.manager.viewer.words import STATES
from trinity.manager.widgets import begin_with, keep, kept

SECTIONS = ("trajectory", "tokens", "group", "facts")
LANGUAGE = "_language"


def _text(given: Sequence[str]) -> str:
    return storable_text(given[-1]) or ""


def _number(given: Sequence[str]) -> float:
    number = float(given[-1])
    if not math.isfinite(number):
        raise ValueError(given)
    return number


def _whole(given: Sequence[str]) -> int:
    text = given[-1]
    if not (text.isascii() and text.isdecimal() and int(text) <= LARGEST_ID):
        raise ValueError(given)
    return int(text)


def _positive(given: Sequence[str]) -> int:
    number = _whole(given)
    if not number:
        raise ValueError(given)
    return number


def _one_of(names: Sequence[str]) -> Callable[[Sequence[str]], str]:
    def read(given: Sequence[str]) -> str:
        if given[-1] not in names:
            raise ValueError(given)
        return given[-1]

    return read


def _states(given: Sequence[str]) -> list[str]:
    if not set(given) <= set(STATES):
        raise ValueError(given)
    return list(given)


PARTS: dict[str, Callable[[Sequence[str]], Any]] = {
    "text": _text,
    "task": _text,
    "state": _states,
    "reason": _text,
    "least": _number,
    "most": _number,
    "run": _text,
    "step": _whole,
    "below": _positive,
    "page": _positive,
    "id": _positive,
    "show": _one_of(SECTIONS),
    "colour": _one_of(QUANTITIES),
    "tokens": _positive,
    LANGUAGE: _one_of(tuple(LANGUAGES)),
}
"""What the query says, by the key of its widget, and what reads it."""

FIRST: dict[str, Any] = {
    **dict.fromkeys(("text", "task", "reason", "run"), ""),
    "state": [],
    "page": 1,
    "show": SECTIONS[0],
    "colour": QUANTITIES[0],
}
"""What a widget begins with, and the query leaves out; None where nothing is said here."""


def read(query: Mapping[str, Sequence[str]]) -> tuple[dict[str, Any], list[str]]:
    """Return what a query says, and the names in it that are not understood.

    Args:
        query: name -> its values.
    """
    said, unread = dict[str, Any](), []
    for name, given in query.items():
        part = LANGUAGE if name == "lang" else name
        try:
            said[part] = PARTS[part](given)
        except (KeyError, ValueError):
            unread.append(name)
    return said, unread


def query_of(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the query of what is shown; `read` understands it.

    Args:
        values: by the key of the widget; what it begins with is left out.
    """
    query = dict[str, list[str]]()
    for part in PARTS:
        value = values.get(part)
        if value is not None and value != (default_language() if part == LANGUAGE else FIRST.get(part)):
            name = "lang" if part == LANGUAGE else part
            query[name] = [str(each) for each in value] if isinstance(value, list) else [str(value)]
    return query


def open_link() -> list[str]:
    """Begin with what the address says.

    Return the names in it that are not understood.
    """
    if "_unread" not in st.session_state:
        said, unread = read({name: st.query_params.get_all(name) for name in st.query_params})
        st.session_state["_unread"] = unread
        for part, value in ({LANGUAGE: default_language()} | said).items():
            keep(part, value)
            st.session_state[part] = value
    return list(st.session_state["_unread"])


def write_link() -> str:
    """Say in the address what is shown; return the whole address."""
    query = query_of({part: kept(part) for part in PARTS})
    if query != {name: st.query_params.get_all(name) for name in st.query_params}:
        st.query_params.from_dict(query)
    return f"{st.context.url or ''}?{urlencode(query, doseq=True)}"


def begin(part: str) -> None:
    """Give a widget its value of the last time it was shown, or its first."""
    begin_with(part, FIRST.get(part))


def choose(part: str, value: Any) -> None:
    """Set what a widget shows, before it is shown."""
    keep(part, value)
    st.session_state[part] = value
