"""The page of the studio, a script of Streamlit.

What comes from files and runs is shown as plain text only.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from trinity.common.errors import TrinityError
from trinity.manager.config_registry import CONFIG_GENERATORS
from trinity.manager.language import LANGUAGES, default_language, language
from trinity.manager.looks import make_readable
from trinity.manager.studio.compare import compare_page
from trinity.manager.studio.configure import configure_page
from trinity.manager.studio.runs import runs_page
from trinity.manager.studio.settings import StudioSettings
from trinity.manager.studio.words import word
from trinity.manager.widgets import plain
from trinity.utils.plugin_loader import load_plugins

PAGES = {"configure": configure_page, "runs": runs_page, "compare": compare_page}


def main() -> None:
    """Show the page once, for the present choices of its reader."""
    st.set_page_config(page_title="Trinity studio", layout="wide")
    settings = StudioSettings.of_environment()
    with st.sidebar:
        st.session_state.setdefault("_language", default_language())
        st.radio(word("language"), list(LANGUAGES), format_func=LANGUAGES.__getitem__, key="_language", horizontal=True)
        chosen = st.radio(word("page"), list(PAGES), format_func=lambda page: word(f"page_{page}"), key="_page")
    make_readable(language())
    st.title(word("title"))
    try:
        _load_plugins(settings.plugin_paths)
        CONFIG_GENERATORS.keep()
        PAGES[chosen](settings)
    except TrinityError as error:
        st.error(plain(str(error)))


@st.cache_resource(show_spinner=False)
def _load_plugins(folders: tuple[Path, ...]) -> None:
    if folders:
        load_plugins(folders)


if __name__ == "__main__":
    main()
