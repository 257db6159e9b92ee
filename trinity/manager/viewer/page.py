"""The page itself, a script of Streamlit.

What a model wrote is shown as plain text only: in tables, in blocks of code without a language, and escaped in HTML.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from trinity.buffer.records import Records
from trinity.common.errors import TrinityError
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.manager.language import LANGUAGES, language
from trinity.manager.looks import make_readable
from trinity.manager.viewer.filters import ask_filters
from trinity.manager.viewer.link import LANGUAGE, PARTS, choose, open_link, write_link
from trinity.manager.viewer.sections import block, line_of, show_experience, show_table
from trinity.manager.viewer.settings import ViewerSettings
from trinity.manager.viewer.shown import overview
from trinity.manager.viewer.tokens import Decode
from trinity.manager.viewer.words import word
from trinity.manager.widgets import keep, kept, plain

PAGE_SIZE = 50


def main() -> None:
    """Show the page once, for the present choices of its reader."""
    st.set_page_config(page_title="Trinity viewer", layout="wide")
    unread = open_link()
    make_readable(language())
    settings = ViewerSettings.of_environment()
    with st.sidebar:
        _ask_language()
        link = st.container()
    st.title(word("title"))
    if unread:
        st.warning(plain(f"{word('unread')} {', '.join(unread)}"))
    try:
        records = _records(settings.url)
        row = _chosen(records, settings.buffer)
        if row is not None:
            show_experience(records, row, _decode_of(settings))
    except TrinityError as error:
        st.error(word("cannot"))
        block(str(error))
    with link, st.expander(word("link")):
        st.code(write_link(), language=None, wrap_lines=True)
        st.caption(word("link_help"))


def _ask_language() -> None:
    st.radio(
        word("language"), list(LANGUAGES), format_func=LANGUAGES.__getitem__, key=LANGUAGE, horizontal=True,
        on_change=_say_again,
    )  # fmt: skip


def _say_again() -> None:
    """Take all choices over to the widgets of the other language."""
    keep(LANGUAGE, st.session_state[LANGUAGE])
    for part in PARTS:
        if kept(part) is not None:
            choose(part, kept(part))


@st.cache_resource(show_spinner=False)
def _records(url: str) -> Records:
    return Records(url)


@st.cache_resource(show_spinner=False)
def _decoder(model_path: str, trust_remote_code: bool) -> Decode:
    from trinity.common.config import ModelConfig
    from trinity.common.models.chat_template import decode_tokens, load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(model_path=model_path, trust_remote_code=trust_remote_code))
    return lambda tokens: decode_tokens(tokenizer, tokens)


def _decode_of(settings: ViewerSettings) -> Callable[[], Decode | None]:
    def decode() -> Decode | None:
        if not settings.tokenizer:
            return None
        try:
            return _decoder(settings.tokenizer, settings.trust_remote_code)
        except TrinityError as error:
            st.warning(word("no_texts"))
            block(str(error))
            return None

    return decode


def _chosen(records: Records, buffer: str) -> ExperienceModel | None:
    """Show filters and table, and return the experience that is chosen in it."""
    with st.sidebar:
        wanted = ask_filters(buffer)
        if kept("_wanted") not in (None, wanted):
            choose("page", 1)
        keep("_wanted", wanted)
        found = records.search(wanted)
        pages = max(1, -(-len(found.ids) // PAGE_SIZE))
        choose("page", min(kept("page") or 1, pages))  # filters leave fewer
        number = st.number_input(
            word("ask_page"), min_value=1, max_value=pages, step=1, key="page", help=word("ask_page_help"),
            on_change=lambda: keep("page", st.session_state["page"]),
        )  # fmt: skip
        keep("page", number)
    st.caption(word("found", number=len(found.ids), page=number, pages=pages))
    if found.below is not None:
        st.button(f"{word('older')} (< {found.below})", on_click=_go_below, args=(found.below,))
    rows = records.of_ids(found.ids[(number - 1) * PAGE_SIZE : number * PAGE_SIZE])
    if rows:
        show_table(overview(rows))
    else:
        st.info(word("none") if found.below is None else word("none_yet", below=found.below))
    return _asked(records, rows)


def _go_below(number: int) -> None:
    choose("below", number)
    choose("page", 1)


def _asked(records: Records, rows: list[ExperienceModel]) -> ExperienceModel | None:
    """Return the experience that the link, the table or the list names.

    Where none does, it is the first of the table.
    """
    number = kept("id")
    linked = None if number is None else records.one(number)
    if number is not None and linked is None:
        st.warning(word("gone", id=number))
    known = ({linked.id: linked} if linked is not None else {}) | {row.id: row for row in rows}
    if not known:
        return None
    choose("id", next(iter(known)) if linked is None else linked.id)
    lines = {number: line_of(row) for number, row in known.items()}
    asked = st.selectbox(word("ask_id"), list(lines), format_func=lines.__getitem__, key="id", on_change=_forget_table)
    keep("id", asked)
    if kept("_of") not in (None, asked):
        keep("tokens", None)
    keep("_of", asked)
    return linked if linked is not None and linked.id == asked else records.one(asked)


def _forget_table() -> None:
    keep("id", st.session_state["id"])
    keep("_turn", (kept("_turn") or 0) + 1)


if __name__ == "__main__":
    main()
