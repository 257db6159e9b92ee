"""Fields of forms as Streamlit's widgets, which write to a draft.

An empty widget means that the key is not written, so that its default holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from trinity.common.config import Finding
from trinity.common.config.given import yaml_text
from trinity.common.config.reading import parse_value
from trinity.common.config.schema_index import holds_section
from trinity.common.errors import ConfigError
from trinity.manager.draft import MISSING, Draft
from trinity.manager.fields import FormField
from trinity.manager.language import language

WIDGET = "field:"
"""Before the name of a field, where Streamlit keeps what its widget shows; at the name is the value of a run."""

KEPT = "_kept"
_MARKS = re.compile(r"([!-/:-@\[-`{-~])")


def plain(text: str) -> str:
    """Return Markdown that shows a text as it is."""
    return _MARKS.sub(r"\\\1", text)


def show_field(
    field: FormField,
    draft: Draft,
    *,
    label: str = "",
    implied: Any = None,
    names: Sequence[str] = (),
    findings: Sequence[Finding] = (),
) -> None:
    """Show a key of a draft as a widget, and what is wrong with it.

    Args:
        field: of the schema.
        draft: what is edited.
        label: beside the key itself; empty: the key alone.
        implied: the value that holds while nothing is written.
        names: known names, of a field that takes one of a registry.
        findings: problems of this key.
    """
    key = f"{WIDGET}{field.name}"
    written = draft.get(field.path)
    shown = f"{label} ({field.key})" if label else field.key
    common: dict[str, Any] = {
        "key": key,
        "help": plain(field.help(language())) or None,
        "on_change": _changed,
        "args": (field, draft, key),
        "placeholder": _implied_text(field, implied),
    }
    if written is not MISSING and not field.holds(written):
        _show_as_yaml(shown, written, common)
    elif field.kind == "choice":
        _show_choice(field, shown, written, common, names=names)
    elif field.kind in ("integer", "number"):
        _show_number(field, shown, written, common)
    elif field.kind == "yaml":
        _show_as_yaml(shown, written, common)
    else:
        st.session_state[key] = "" if written in (MISSING, None) else written
        st.text_input(shown, type="password" if field.is_secret else "default", **common)
    for finding in findings:
        show_finding(finding)


def show_finding(finding: Finding) -> None:
    """Show a problem, as text and nothing else."""
    say: Callable[[str], Any] = st.error if finding.is_error else st.warning
    facts = finding.to_dict()
    way_out = f" → {facts['suggestion']}" if facts["suggestion"] else ""
    say(plain(f"{finding.code}: {facts['message']}{way_out}"))


def _show_choice(
    field: FormField, label: str, written: Any, common: Mapping[str, Any], *, names: Sequence[str]
) -> None:
    options = list(field.choices or names)
    value = None if written in (MISSING, None) else written
    if value is not None and value not in options:
        options.append(value)
    st.session_state[common["key"]] = value
    st.selectbox(label, options, index=None, format_func=_choice_text, accept_new_options=field.is_open, **common)


def _show_number(field: FormField, label: str, written: Any, common: Mapping[str, Any]) -> None:
    value = None if written in (MISSING, None) else written
    as_number = float if field.kind == "number" else int
    least, most = (None if limit is None else as_number(limit) for limit in (field.least, field.most))
    st.session_state[common["key"]] = None if value is None else as_number(value)
    of_kind: dict[str, Any] = {"format": "%g", "step": _stride(field)} if field.kind == "number" else {"step": 1}
    st.number_input(label, min_value=least, max_value=most, value=None, **of_kind, **common)


def _stride(field: FormField) -> float:
    """Return by how much a key of the keyboard changes a number.

    A tenth of the default's power of ten.
    """
    size = abs(field.default) if isinstance(field.default, int | float) and field.default else 0.1
    return float(10.0 ** (math.floor(math.log10(size)) - 1))


def _show_as_yaml(label: str, written: Any, common: Mapping[str, Any]) -> None:
    """Show a list, a mapping, or what a widget of its own kind cannot show."""
    is_line = not isinstance(written, list | dict)
    st.session_state[common["key"]] = "" if written is MISSING else yaml_text(written, is_line=is_line).rstrip("\n")
    st.text_area(f"{label} (YAML)", height=68, **common)


def _changed(field: FormField, draft: Draft, key: str) -> None:
    """Write to the draft what a widget has now."""
    value = st.session_state[key]
    try:
        if value is None or value == "":
            draft.drop(field.path)
        else:
            draft.put(field.path, _value(field, draft, value))
    except ConfigError as error:
        say("error", str(error))


def _value(field: FormField, draft: Draft, value: Any) -> Any:
    """Return what a widget's value means in YAML."""
    if not isinstance(value, str):
        return value
    before = draft.get(field.path)
    is_yaml = field.kind == "yaml" or (before is not MISSING and not field.holds(before))
    if is_yaml or (field.kind in ("text", "choice") and value.startswith("[")):
        return parse_value(value)
    return value


def begin_with(key: str, first: Any) -> None:
    """Give a widget the value that it had when it was last on the page.

    Args:
        key: of the widget.
        first: its value when it has not been on the page.
    """
    if key not in st.session_state:
        st.session_state[key] = st.session_state.get(f"{KEPT}{key}", first)


def keep(key: str, value: Any) -> None:
    """Remember the value of a widget; Streamlit forgets it with the page."""
    st.session_state[f"{KEPT}{key}"] = value


def kept(key: str) -> Any:
    """Return the value that a widget had when it was last on the page.

    None if it has not been on it.
    """
    return st.session_state.get(f"{KEPT}{key}")


def say(kind: str, text: str) -> None:
    """Remember a message, which the page shows next, once.

    Args:
        kind: `error`, `warning`, `success` or `info`.
        text: shown as it is.
    """
    st.session_state.setdefault("_said", []).append((kind, text))


def show_said() -> None:
    """Show the messages that are remembered, and forget them."""
    for kind, text in st.session_state.pop("_said", []):
        {"error": st.error, "warning": st.warning, "success": st.success, "info": st.info}[kind](plain(text))


def _choice_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _implied_text(field: FormField, implied: Any) -> str:
    """Return the value that an empty widget stands for."""
    value = field.default if implied is None else implied
    if value is None or value == "" or field.is_secret or holds_section(field.path):
        return ""
    text = yaml_text(value, is_line=True) if isinstance(value, list | tuple | dict) else _choice_text(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
