"""The page itself, a script of Streamlit.

What a model wrote is shown as plain text only: in tables, and in blocks of code without a language.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from trinity.buffer.records import Records
from trinity.buffer.wanted import Wanted
from trinity.common.errors import TrinityError
from trinity.common.experience import Experience
from trinity.common.schema.sql_schema import CLAIMED, DROPPED, READY, TRAINED, ExperienceModel
from trinity.manager.viewer.settings import ViewerSettings
from trinity.manager.viewer.shown import facts, overview, title, token_rows

PAGE_SIZE = 50
GROUP_SIZE = 64
SIDE_BY_SIDE = 4
LINK = "id"


def main() -> None:
    """Show the page once, for the present choices of its reader."""
    st.set_page_config(page_title="Trinity viewer", layout="wide")
    st.title("Experiences")
    settings = ViewerSettings.of_environment()
    try:
        records = _records(settings.url)
        wanted = _wanted(settings.buffer)
        row = _chosen(records, wanted)
        if row is not None:
            _show(records, row, _text_of(settings))
    except TrinityError as error:
        st.error("The experiences cannot be shown.")
        _plain(str(error))


@st.cache_resource
def _records(url: str) -> Records:
    return Records(url)


@st.cache_resource
def _decoder(model_path: str, trust_remote_code: bool) -> Callable[[int], str]:
    from trinity.common.config import ModelConfig
    from trinity.common.models.chat_template import load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(model_path=model_path, trust_remote_code=trust_remote_code))
    return lambda token: repr(tokenizer.decode([token]))


def _text_of(settings: ViewerSettings) -> Callable[[int], str]:
    if not settings.tokenizer:
        return lambda token: ""
    try:
        return _decoder(settings.tokenizer, settings.trust_remote_code)
    except TrinityError as error:
        st.warning("The tokens are shown without their texts.")
        _plain(str(error))
        return lambda token: ""


def _wanted(buffer: str) -> Wanted:
    with st.sidebar:
        st.header("Filters")
        text = st.text_input("Text", key="text", help="A part of the prompt or the response.")
        task = st.text_input("Task", key="task", help="The group, as the column `task` has it.")
        states = st.multiselect("State", (READY, CLAIMED, TRAINED, DROPPED), key="states")
        least = st.number_input("Least reward", value=None, key="least")
        most = st.number_input("Most reward", value=None, key="most")
        run = st.text_input("Run", key="run", help="As the run is called: project/name.")
        step = st.number_input("Training step", value=None, min_value=0, step=1, key="step", help="It used them.")
        below = st.number_input("Below id", value=None, min_value=1, step=1, key="below", help="Older ones only.")
    return Wanted(
        buffer=buffer,
        states=tuple(states),
        task=task.strip(),
        text=text,
        least_reward=least,
        most_reward=most,
        run=run.strip(),
        step=step,
        below=below,
    )


def _chosen(records: Records, wanted: Wanted) -> ExperienceModel | None:
    """Show the table, and return the experience that is chosen in it."""
    found = records.search(wanted)
    pages = max(1, -(-len(found.ids) // PAGE_SIZE))
    with st.sidebar:
        st.session_state["page"] = min(st.session_state.get("page", 1), pages)  # filters leave fewer
        number = st.number_input("Page", min_value=1, max_value=pages, key="page", help="The newest first.")
    more = "" if found.below is None else f"; for those that are older, give {found.below} as “Below id”"
    st.caption(f"{len(found.ids)} experiences, page {number} of {pages}{more}")
    rows = records.of_ids(found.ids[(number - 1) * PAGE_SIZE : number * PAGE_SIZE])
    linked = records.one(int(st.query_params[LINK])) if st.query_params.get(LINK, "").isdecimal() else None
    if rows:
        st.dataframe(overview(rows), hide_index=True)
    else:
        looked = "" if found.below is None else f" among those from id {found.below} on, which were looked at in time"
        st.info(f"No experience meets the filters{looked}.")
    if not rows and linked is None:
        return None
    known = {row.id: row for row in rows}
    if linked is not None:
        known = {linked.id: linked} | known
    number = st.selectbox("Experience", list(known), format_func=lambda number: title(known[number]), key="chosen")
    st.query_params[LINK] = str(number)
    return records.one(number)


def _show(records: Records, row: ExperienceModel, text_of: Callable[[int], str]) -> None:
    experience: Experience | None = None
    try:
        experience = row.to_experience()
        experience.check()
    except TrinityError as error:
        experience = None
        st.warning("This experience has its texts only.")
        _plain(str(error))
    texts, tokens, group, rest = st.tabs(["Conversation", "Tokens", "Group", "Facts"])
    with texts:
        st.subheader("Prompt")
        _plain(row.prompt_text)
        st.subheader("Response")
        _plain(row.response_text)
    with tokens:
        if experience is not None:
            probability = st.column_config.ProgressColumn("probability", min_value=0.0, max_value=1.0, format="%.3f")
            st.dataframe(token_rows(experience, text_of), hide_index=True, column_config={"probability": probability})
    with group:
        _show_group(records.group(row, most=GROUP_SIZE))
    with rest:
        st.json(facts(row, experience))


def _show_group(rows: list[ExperienceModel]) -> None:
    for start in range(0, len(rows), SIDE_BY_SIDE):
        for column, each in zip(st.columns(SIDE_BY_SIDE), rows[start : start + SIDE_BY_SIDE], strict=False):
            with column:
                _plain(title(each))
                _plain(each.response_text)


def _plain(text: str | None) -> None:
    st.code(text or "", language=None, wrap_lines=True)


if __name__ == "__main__":
    main()
