"""The parts of the page, as elements of Streamlit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from trinity.buffer.records import Records
from trinity.common.errors import TrinityError
from trinity.common.experience import Experience
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.manager.language import in_language
from trinity.manager.viewer.link import SECTIONS, begin, choose
from trinity.manager.viewer.shown import METRIC, compared, facts, rewards
from trinity.manager.viewer.tokens import QUANTITIES, Decode, TokenColours, coloured, legend, token_rows
from trinity.manager.viewer.words import COLUMNS, PARTS, STATES, word
from trinity.manager.widgets import keep, kept
from trinity.utils.printable import printable

GROUP_SIZE = 64
SIDE_BY_SIDE = 4
TURNS = 64
TOKENS = 1000
LONGEST_TEXT = 20_000
CARD_HEIGHT = 320
LONG_CARD = 500
"""Characters of a response from which on it is scrolled beside others."""


def block(text: str | None, *, height: int | None = None) -> None:
    """Show a text as it is.

    Nothing in it is Markdown, HTML or a control character.
    """
    text = text or ""
    size: dict[str, Any] = {} if height is None else {"height": height}
    st.code(printable(text[:LONGEST_TEXT]), language=None, wrap_lines=True, **size)
    if len(text) > LONGEST_TEXT:
        st.caption(word("cut", shown=LONGEST_TEXT, number=len(text)))


def line_of(row: ExperienceModel) -> str:
    """Return a line that says which experience it is."""
    reward = word("no_reward") if row.reward is None else word("reward_is", reward=row.reward)
    turn = printable(row.msg_id or "0")
    return word("title_line", id=row.id, task=printable(row.task_id), run=row.run_id, turn=turn, reward=reward)


def show_table(lines: Sequence[Mapping[str, Any]]) -> None:
    """Show lines of `overview` as a table; the row that is clicked is chosen."""
    ids = [int(line["id"]) for line in lines]
    key = f"table:{ids[0]}:{ids[-1]}:{len(ids)}:{kept('_turn') or 0}"

    def selected() -> None:
        for number in st.session_state[key]["selection"]["rows"][:1]:
            choose("id", ids[number])

    st.dataframe(_named(lines), hide_index=True, key=key, on_select=selected, selection_mode="single-row")


def show_experience(records: Records, row: ExperienceModel, decode: Callable[[], Decode | None]) -> None:
    """Show a part of an experience, which the reader chooses.

    Args:
        records: of its database.
        row: of the experience, with its payload if that is there.
        decode: gives what makes texts of tokens; None: nothing does.
    """
    begin("show")
    names = {name: word(f"show_{name}") for name in SECTIONS}
    section = st.radio(word("ask_show"), SECTIONS, format_func=names.__getitem__, key="show", horizontal=True)
    keep("show", section)
    experience = _experience(row)
    if section == "trajectory":
        _show_trajectory(records, row, experience)
    elif section == "tokens" and experience is not None:
        _show_tokens(experience, decode())
    elif section == "group":
        _show_group(records, row)
    elif section == "facts":
        block(json.dumps(facts(row, experience), ensure_ascii=False, indent=2))


def _experience(row: ExperienceModel) -> Experience | None:
    try:
        experience = row.to_experience()
        experience.check()
        return experience
    except TrinityError as error:
        st.warning(word("texts_only"))
        block(str(error))
        return None


def _show_trajectory(records: Records, row: ExperienceModel, experience: Experience | None) -> None:
    st.subheader(word("rewards"))
    lines = [{"name": line["name"] or word("col_reward"), "value": line["value"]} for line in rewards(row, experience)]
    st.dataframe(_named(lines), hide_index=True, width="content")
    turns = records.rollout(row, most=TURNS)
    if len(turns) < 2:
        st.subheader(word("prompt"))
        block(row.prompt_text)
        st.subheader(word("response"))
        block(row.response_text)
        return
    for turn in turns:
        with st.container(border=True):
            st.text(line_of(turn))
            with st.expander(word("prompt_of", turn=int(turn.msg_id) if turn.msg_id.isdecimal() else turn.id)):
                block(turn.prompt_text)
            block(turn.response_text)
            if turn.id != row.id:
                _open_button(turn)
    _say_nearest(len(turns), TURNS)


def _show_tokens(experience: Experience, decode: Decode | None) -> None:
    number = len(experience.tokens)
    begin("colour")
    names = {name: _column(name) for name in QUANTITIES}
    colour = st.radio(word("ask_colour"), QUANTITIES, format_func=names.__getitem__, key="colour", horizontal=True)
    keep("colour", colour)
    part = _part_of_tokens(number, first=experience.prompt_length)
    first, last = (part - 1) * TOKENS, min(part * TOKENS, number)
    lines = token_rows(experience, decode, first=first, last=last)
    scale = TokenColours.of(experience, colour)
    if scale is None:
        st.info(word("no_values", what=_column(colour)))
        scale = TokenColours(colour)
    st.html(legend(scale, text_of=lambda value: _value(colour, value), without=word("prompt_tokens")))
    st.html(coloured(lines, scale, name_of=_column, label=word("token_text")))
    st.caption(word("part_of", first=first + 1, last=last, number=number))
    texts = [{**line, "text": repr(line["text"])} if "text" in line else line for line in lines]
    probability = st.column_config.ProgressColumn(_column("probability"), min_value=0.0, max_value=1.0, format="%.3f")
    st.dataframe(_named(texts), hide_index=True, column_config={_column("probability"): probability})


def _part_of_tokens(number: int, *, first: int) -> int:
    """Return which part of the tokens is shown.

    It is that of the response's first one until another is chosen.
    """
    parts = -(-number // TOKENS)
    if parts < 2:
        return 1
    # Not kept: the next experience begins at its own answer.
    st.session_state["tokens"] = min(kept("tokens") or min(first, number - 1) // TOKENS + 1, parts)
    part: int = st.number_input(
        word("ask_tokens"), min_value=1, max_value=parts, step=1, key="tokens",
        on_change=lambda: keep("tokens", st.session_state["tokens"]),
    )  # fmt: skip
    return part


def _show_group(records: Records, row: ExperienceModel) -> None:
    rows = records.group(row, most=GROUP_SIZE)
    whole = records.whole(rows)
    if rows and not whole:
        st.info(word("too_large"))
    lines, metrics = compared(rows, _experiences(whole))
    st.dataframe(_named(lines, metrics=metrics), hide_index=True)
    _say_nearest(len(rows), GROUP_SIZE)
    for start in range(0, len(rows), SIDE_BY_SIDE):
        for column, each in zip(st.columns(SIDE_BY_SIDE), rows[start : start + SIDE_BY_SIDE], strict=False):
            with column, st.container(border=True):
                st.text(line_of(each))
                block(each.response_text, height=CARD_HEIGHT if len(each.response_text or "") > LONG_CARD else None)
                if each.id != row.id:
                    _open_button(each)


def _experiences(rows: Sequence[ExperienceModel]) -> dict[int, Experience]:
    """Return experiences by id, of those that can be read."""
    found = {}
    for row in rows:
        try:
            found[row.id] = row.to_experience()
            found[row.id].check()
        except TrinityError:
            found.pop(row.id, None)  # opened, it says what is wrong with it
    return found


def _open_button(row: ExperienceModel) -> None:
    st.button(word("open", id=row.id), key=f"open:{row.id}", on_click=_open, args=(row.id,))


def _open(number: int) -> None:
    choose("id", number)
    keep("_turn", (kept("_turn") or 0) + 1)


def _say_nearest(number: int, most: int) -> None:
    if number == most:
        st.caption(word("nearest", number=number))


def _column(name: str) -> str:
    return word(f"col_{name}")


def _value(quantity: str, value: Any) -> str:
    if quantity == "mask":
        return word("masked" if value else "unmasked")
    return word("version", number=value) if quantity == "weights" else f"{value:.3g}"


def _named(lines: Sequence[Mapping[str, Any]], *, metrics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return lines whose columns are called as the page's language has it."""
    names = {name: _column(name) for name in COLUMNS}
    for metric in metrics:
        own = metric.removeprefix(METRIC)
        names[metric] = own if own not in names.values() else metric
    return [{names[name]: _cell(name, value) for name, value in line.items()} for line in lines]


def _cell(name: str, value: Any) -> Any:
    if name == "state":
        state, reason = value
        shown = in_language(STATES[state]) if state in STATES else printable(state)
        return f"{shown}: {reason}" if reason else shown
    return in_language(PARTS[value]) if name == "part" else value
