"""The viewer's page, run by Streamlit without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.manager.viewer_page import (
    HOSTILE,
    SEEN,
    Shown,
    Write,
    checked,
    choice,
    codes,
    fill,
    html,
    ids,
    query,
    rows,
    section,
)
from tests.tiny import tiny_tokenizer
from trinity.common.experience import EID
from trinity.manager.viewer import link, page, sections
from trinity.manager.viewer.settings import ViewerSettings
from trinity.manager.viewer.words import COLUMNS, WORDS
from trinity.utils.packages import postgresql_driver


def test_the_page_shows_an_experience_its_tokens_its_group_and_its_facts(
    tmp_path: Path, write: Write, shown: Shown
) -> None:
    tiny_tokenizer(tmp_path / "model")
    test = shown(ViewerSettings(str(write(8)), "mine", str(tmp_path / "model")))
    assert test.caption[0].value == "8 experiences, page 1 of 1" and ids(test) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert codes(test) == ["question 1", "answer 7"] and query(test)["id"] == "8"
    assert test.dataframe[1].value.values.tolist() == [["reward", 0.7], ["accuracy", 0.35]]
    tokens = section(test, "tokens").dataframe[1].value
    assert list(tokens["token"]) == [5, 6, 7, 8, 9] and list(tokens["text"]) == ["'2'", "'3'", "'4'", "'5'", "'6'"]
    assert html(test).count("data-place") == 5 and "log-prob: -0.5" in html(test)
    checked(test.radio(key="colour").set_value("return").run())
    assert test.info[0].value == "The experience has none of these: return." and html(test).count("data-place") == 5
    group = section(test, "group").dataframe[1].value
    assert codes(test) == [f"answer {run}" for run in range(4, 8)]
    assert list(group["id"]) == [5, 6, 7, 8] and list(group["accuracy"]) == [0.2, 0.25, 0.3, 0.35]
    assert list(group["response tokens"]) == [3] * 4 and list(group["advantage"]) == [0.25] * 4
    assert '"accuracy": 0.35' in codes(section(test, "facts"))[0]
    checked(section(test, "group").button(key="open:6").click().run())
    assert query(test)["id"] == "6" and test.selectbox(key="id").value == 6
    choice(section(test, "trajectory"), 5)
    assert codes(test)[1] == "answer 4" and query(test)["id"] == "5"
    checked(test.text_input(key="text").set_value("answer 2").run())
    assert ids(test) == [3]
    checked(test.text_input(key="text").set_value("nowhere").run())
    assert test.info[0].value == "No experience meets the filters."
    assert codes(test)[1] == "answer 4", "what was chosen stays"


def test_a_link_opens_its_experience_also_where_the_table_does_not_show_it(write: Write, shown: Shown) -> None:
    test = shown(ViewerSettings(str(write(page.PAGE_SIZE + 8))), id="3")
    assert 3 not in ids(test) and codes(test)[1] == "answer 2"
    checked(test.number_input(key="page").set_value(2).run())
    assert ids(test) == [8, 7, 6, 5, 4, 3, 2, 1] and query(test)["page"] == "2"
    checked(test.text_input(key="text").set_value("answer 57").run())
    assert ids(test) == [58] and "page" not in query(test), "one page is left"


def test_what_a_link_says_is_shown_and_what_it_cannot_mean_is_said(write: Write, shown: Shown) -> None:
    file = ViewerSettings(str(write(8, changes={n: {"state": "dropped", "drop_reason": "stale"} for n in (1, 2, 6)})))
    asked: dict[str, Any] = {
        "text": "answer", "task": "1/1", "state": ["dropped", "ready"], "reason": "stale", "least": "0.1",
        "most": "0.75", "run": "r", "below": "8", "show": "tokens", "colour": "advantage", "id": "2", "lang": "zh",
    }  # fmt: skip
    test = shown(file, **asked)
    assert not test.warning and test.title[0].value == "经验" and list(test.dataframe[0].value["编号"]) == [6]
    assert test.selectbox(key="id").value == 2 and test.radio(key="colour").value == "advantage" and html(test)
    assert query(test) == asked, "the address still says all of it"
    address = test.sidebar.code[0].value
    assert "state=dropped&state=ready" in address and "colour=advantage" in address
    checked(test.radio(key="_language").set_value("en").run())
    assert test.title[0].value == "Experiences" and test.text_input(key="text").value == "answer"
    assert query(test) == {name: value for name, value in asked.items() if name != "lang"}
    for bad in ("x", "-1", "²", "9" * 40, "0", ""):
        test = shown(file, id=bad, state="sold", least="nan", show="<b>", other="1", colour=HOSTILE, lang="xx")
        assert test.warning[0].value.replace("\\", "").endswith(": id, state, least, show, other, colour, lang")
        assert ids(test) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert shown(file, id="99").warning[0].value == "There is no experience 99."


def test_every_choice_comes_back_from_the_address() -> None:
    values: dict[str, Any] = {
        "text": " a&b=中\n", "task": "1/0", "state": ["ready"], "reason": "x", "least": -0.1, "most": 1e-7,
        "run": "p/n", "step": 0, "below": 9, "page": 2, "id": 3, "show": "group", "colour": "mask", "tokens": 4,
        "_language": "zh",
    }  # fmt: skip
    assert set(values) == set(link.PARTS)
    assert link.read(link.query_of(values)) == (values, [])
    assert link.query_of(link.FIRST | {"id": None, "text": ""}) == {}


def test_older_experiences_are_a_button_away(write: Write, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    from trinity.buffer import search

    monkeypatch.setattr(search.search, "__kwdefaults__", {"most": 5, "seconds": 9.0})
    monkeypatch.setattr("trinity.buffer.records.Records.search.__kwdefaults__", {"most": 5, "seconds": 9.0})
    test = shown(ViewerSettings(str(write(8))))
    assert ids(test) == [8, 7, 6, 5, 4]
    checked(test.button[0].click().run())
    assert ids(test) == [3, 2, 1] and query(test)["below"] == "4" and not test.button


def test_the_turns_of_a_rollout_are_one_trajectory(tmp_path: Path, shown: Shown) -> None:
    turns = rows(4)
    for number, turn in enumerate(turns):
        turn.eid = EID(1, 0, 0, number)
    engine = create_engine(f"sqlite:///{tmp_path}/turns.db")
    fill(engine, [*turns, *rows(8)[4:]])
    engine.dispose()
    test = shown(ViewerSettings(str(tmp_path / "turns.db")), id="2")
    assert codes(test) == [each for n in range(4) for each in ("question 0", SEEN if n == 0 else f"answer {n}")]
    assert [each.label for each in test.main.expander] == [f"Prompt of turn {n}" for n in range(4)]
    checked(test.button(key="open:4").click().run())
    assert query(test)["id"] == "4" and "open:4" not in [each.key for each in test.button]


def test_a_long_answer_is_shown_part_by_part(
    tmp_path: Path, shown: Shown, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "TOKENS", 2)
    test = shown(ViewerSettings(str(write(8))), show="tokens")
    assert list(test.dataframe[1].value["place"]) == [2, 3], "the answer's first ones"
    assert test.main.caption[-1].value == "Tokens 3 to 4 of 5"
    checked(test.number_input(key="tokens").set_value(3).run())
    assert list(test.dataframe[1].value["place"]) == [4] and query(test)["tokens"] == "3"
    choice(test, 4)
    assert list(test.dataframe[1].value["place"]) == [2, 3] and "tokens" not in query(test)
    monkeypatch.setattr(sections, "LONGEST_TEXT", 5)
    section(test, "trajectory")
    assert codes(test) == ["quest", "answe"] and test.main.caption[-1].value == "The first 5 of 8 characters are shown."


def test_what_a_model_wrote_is_text_and_nothing_else(write: Write, shown: Shown) -> None:
    """Markdown, HTML and formulas would be interpreted in any other element (X21)."""
    changes = {n: {"task_id": HOSTILE.replace("\x00", ""), "drop_reason": "<b>", "msg_id": ":red[x]"} for n in (1, 2)}
    test = shown(ViewerSettings(str(write(2, changes=changes))), id="1", reason="<b>", text="<script>", run="*r*")
    assert test.info, "there is no run *r*"
    assert codes(test)[1] == SEEN
    for name in link.SECTIONS:
        section(test, name)
        interpreted = [*test.markdown, *test.caption, *test.title, *test.header, *test.subheader]
        interpreted += [*test.error, *test.warning, *test.info]
        texts = [each.value for each in interpreted] + [each.label for each in (*test.button, *test.expander)]
        assert len(texts) > 3 and not [text for text in texts if "script" in text or ":red" in text]
        assert not any(each.proto.allow_html for each in test.markdown)
        scripts = [each.proto.body for each in test.get("html") if each.proto.unsafe_allow_javascript]
        assert scripts == ["<script>document.documentElement.lang = 'en'</script>"]
        assert "<script" not in html(test)
        assert not [text for text in codes(test) if "\x1b" in text or "\u202e" in text]


def test_an_experience_without_its_payload_has_its_texts(write: Write, shown: Shown) -> None:
    gone = {"experience_bytes": None, "state": "trained"}
    test = shown(ViewerSettings(str(write(4, changes={4: gone, 3: {"experience_bytes": b"damaged"}}))))
    assert test.warning[0].value == "This experience has its texts only."
    assert "E5104" in codes(test)[0] and "answer 3" in codes(test)
    assert len(section(test, "tokens").dataframe) == 1
    group = section(test, "group").dataframe[1].value
    assert list(group["id"]) == [1, 2, 3, 4] and group["accuracy"].isna().tolist() == [False, False, True, True]


def test_payloads_of_a_group_that_are_too_large_are_not_read(
    write: Write, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity.buffer.records.PAGE_BYTES", 100)
    test = shown(ViewerSettings(str(write(4))), show="group")
    assert "too large" in test.info[0].value and "accuracy" not in test.dataframe[1].value
    assert codes(test)[1:] == ["answer 1", "answer 2", "answer 3"]


def test_a_database_that_goes_and_a_tokenizer_that_is_not_there_are_said(
    tmp_path: Path, write: Write, shown: Shown
) -> None:
    test = shown(ViewerSettings(str(write(2)), tokenizer=str(tmp_path / "nowhere")), show="tokens")
    assert "E3102" in codes(test)[0] and "text" not in test.dataframe[1].value and "[7]" in html(test)
    test = shown(ViewerSettings(str(tmp_path / "gone.db")))
    assert test.error[0].value == "The experiences cannot be shown." and "E3435" in codes(test)[0]


def test_the_page_of_a_postgresql_store_is_that_of_an_sqlite_file(write: Write, shown: Shown) -> None:
    from tests.postgresql import shared

    url = shared().database()
    engine = create_engine(url.replace("://", f"+{postgresql_driver(url)}://"))
    fill(engine, rows(8))
    engine.dispose()
    pages = []
    for place in (url, str(write(8))):
        seen = []
        test = shown(ViewerSettings(place), id="1", text="<script>\x00")
        for name in link.SECTIONS:
            section(test, name)
            tables = [each.value.drop(columns="state", errors="ignore").to_json() for each in test.dataframe]
            texts = [re.sub(r'"timestamp": "[^"]+"', "", text) for text in codes(test)]
            seen.append((texts, tables, html(test), [each.value for each in test.caption]))
        pages.append(seen)
        page._records.clear()
    assert pages[0] == pages[1] and SEEN in pages[0][0][0]


def test_every_word_is_in_both_languages() -> None:
    places = {name: [set(_places(text)) for text in pair] for name, pair in (WORDS | COLUMNS).items()}
    assert not [name for name, (english, chinese) in places.items() if english != chinese]
    assert all(pair.zh.strip() and pair.en.strip() for pair in (WORDS | COLUMNS).values())
    for language in range(2):
        names = [pair[language] for pair in COLUMNS.values()]
        assert len(set(names)) == len(names), "two columns of one table would be one"


def _places(text: str) -> Iterator[str]:
    from string import Formatter

    return (name for _, name, _, _ in Formatter().parse(text) if name)
