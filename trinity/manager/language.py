"""The language of a page, English or Chinese."""

from __future__ import annotations

import os

import streamlit as st

from trinity.summary.words import Text, is_chinese

LANGUAGES = {"en": "English", "zh": "中文"}


def default_language() -> str:
    """Return the language of this machine's user, `en` or `zh`."""
    return "zh" if is_chinese(os.environ) else "en"


def language() -> str:
    """Return the language that is chosen on the page."""
    return str(st.session_state.get("_language", default_language()))


def in_language(text: Text) -> str:
    """Return a text in the language that is chosen."""
    return text.zh if language() == "zh" else text.en
