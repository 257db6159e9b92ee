"""The viewer in a real browser: what is opened, filtered and linked there, and what of it is only text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.accessibility import problems
from tests.browser import Browser, browsing
from tests.manager.test_studio_in_a_browser import all_named, picture
from tests.manager.test_viewer import Serving
from tests.manager.viewer_page import HOSTILE, SEEN, fill, rows
from tests.tiny import EOS, tiny_tokenizer
from trinity.common.experience import EID, Experience
from trinity.manager.language import LANGUAGES
from trinity.manager.viewer.link import SECTIONS
from trinity.manager.viewer.words import WORDS

QUESTION = "What is 17 + 25?"
ANSWERS = ("17 + 25 = 42", "17 + 25 = 32", "42", "it is 52, as 7 + 5 = 12")
"""Of one task; the first and the third are right."""
MARKED = ":red[x] **b** <img src=x>"
CHOSEN = 3
"""Id of the third answer."""


def answers(folder: Path) -> list[Experience]:
    """Return a task's answers, whose tokens are those of the tokenizer that is written to a folder."""
    tokenizer = tiny_tokenizer(folder, characters="".join(dict.fromkeys(QUESTION + "".join(ANSWERS))))
    tokenizer.add_tokens([HOSTILE])
    tokenizer.save_pretrained(folder)
    prompt = tokenizer(QUESTION)["input_ids"]
    made = []
    for number, text in enumerate(ANSWERS):
        ids = tokenizer(text + EOS)["input_ids"]
        right = float("42" in text)
        made.append(
            Experience(
                eid=EID(1, 0, number, 0),
                tokens=prompt + ids,
                prompt_length=len(prompt),
                logprobs=[-0.1 - 1.7 * (place % 5 == 2) for place in range(len(ids))],
                advantages=right - 0.5,
                reward=right + 0.1,
                metrics={"accuracy": right, "format": 0.1},
                prompt_text=QUESTION,
                response_text=text,
                info={"model_version": 1, "model_versions": [1] * (len(ids) // 2) + [2] * (len(ids) - len(ids) // 2)},
            )
        )
    hostile = rows(1)[0]
    hostile.eid, hostile.prompt_text = EID(2, 0, 0, 0, suffix=MARKED), HOSTILE
    hostile.tokens[2] = tokenizer.convert_tokens_to_ids(HOSTILE)
    hostile.metrics, hostile.info = {"<img src=x onerror='window.ran=1'>": 1.0, "**part**": 0.0}, {HOSTILE: HOSTILE}
    return [*made, hostile]


@pytest.fixture(scope="module")
def viewing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Browser]]:
    """A viewer of a few answers, and a browser that has it open."""
    folder = tmp_path_factory.mktemp("viewer")
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(folder / "some.db"))
    fill(engine, answers(folder / "model"))
    engine.dispose()
    words = ("view", "--url", "some.db", "--tokenizer", "model", "--port", "0")
    with Serving(folder, *words) as served, browsing() as browser:
        served.get(served.address)
        yield served, browser


def query(browser: Browser) -> str:
    """Return what the address says."""
    return str(browser.run("return decodeURIComponent(location.search)"))


def show(browser: Browser, name: str) -> None:
    """Go to a part of the experience, or to a colour of its tokens."""
    browser.click(f"//*[@data-testid='stMain']//label[normalize-space()={name!r}]")
    if name != "Trajectory":  # the first, which the address does not say
        browser.wait(lambda: f"={name.lower()}" in query(browser), f"{name} in the address")
    browser.settle()


@pytest.mark.slow
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_an_experience_is_found_opened_and_shared(viewing: tuple[Serving, Browser]) -> None:
    served, browser = viewing
    browser.open(served.address)
    browser.wait(lambda: "5 experiences, page 1 of 1" in browser.text(), "the table")
    browser.settle()
    assert all_named(browser) > 12
    browser.write("Task", "1/0")
    browser.wait(lambda: "4 experiences" in browser.text() and "task=1/0" in query(browser), "the task's experiences")
    browser.press_row(2)  # the newest first: 4, 3, ...
    browser.wait(lambda: f"id={CHOSEN}" in query(browser), "the chosen experience")
    browser.find("//*[@data-testid='stCode'][normalize-space()='42']")
    show(browser, "Tokens")
    browser.find("//span[@data-place='16'][normalize-space()='4']")
    tips = browser.run("return [...document.querySelectorAll('span[data-place]')].map(each => each.title)")
    facts = ("log-prob: -0.1", "mask: True", "advantage: 0.5", "model version: 1")
    assert len(tips) == 19 and all(fact in tips[16] for fact in facts) and "model version: 2" in tips[18]
    show(browser, "advantage")
    colour = "return document.querySelector(\"span[data-place='17']\").style.backgroundColor"
    browser.wait(lambda: browser.run(colour) == "rgb(92, 164, 240)", "the colour of the advantage")
    picture(browser, "viewer")
    show(browser, "Group")
    browser.find("//button[normalize-space()='Open 4']")
    assert [text for text in ANSWERS if text in browser.text()] == list(ANSWERS)
    picture(browser, "viewer-group")
    show(browser, "Tokens")
    link = str(browser.run("return location.href"))
    with browsing() as other:
        other.open(link)
        other.find("//span[@data-place='16'][normalize-space()='4']")
        other.settle()
        assert query(other) == query(browser) == f"?task=1/0&id={CHOSEN}&show=tokens&colour=advantage"
        assert "4 experiences" in other.text()
        other.click("//*[@data-testid='stSidebar']//label[normalize-space()='中文']")
        other.wait(lambda: "4 条经验" in other.text() and "lang=zh" in query(other), "the page in Chinese")
        assert "task=1/0" in query(other) and all_named(other) > 12


@pytest.mark.nightly
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_nothing_serious_is_wrong_with_the_pages_of_the_viewer(viewing: tuple[Serving, Browser]) -> None:
    """By axe-core, in both languages."""
    served, browser = viewing
    found = {}
    for language in LANGUAGES:
        for section in SECTIONS:
            browser.open(f"{served.address}?id={CHOSEN}&lang={language}&show={section}")
            browser.find(f"//h1[normalize-space()={getattr(WORDS['title'], language)!r}]")
            browser.settle()
            found[language, section] = problems(browser)
    assert {place: each for place, each in found.items() if each} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_what_a_model_wrote_is_text_in_the_browser(viewing: tuple[Serving, Browser]) -> None:
    """X21, in every part of the page, and in a link that somebody made."""
    served, browser = viewing
    made = "".join(f"&{name}=%3Cimg%20src=x%20onerror=window.ran=1%3E" for name in ("text", "show", "**b**"))
    browser.open(f"{served.address}?id=5{made}")
    browser.wait(lambda: "No experience meets the filters" in browser.text(), "the page of the link")
    for section in ("Trajectory", "Tokens", "Group", "Facts"):
        show(browser, section)
        browser.wait(lambda: "<script>window.ran=1</script>" in browser.text(), f"the text in {section}")
        found = json.loads(browser.run(_FOUND))
        assert found == {"ran": False, "foreign": [], "images": 0, "formulas": 0, "hidden": False}, section
    show(browser, "Trajectory")
    seen = SEEN.replace("\ufffd", "")
    browser.wait(lambda: browser.text().replace("\ufffd", "").count(seen) == 2, "prompt and response")
    chosen = (
        "return [...document.querySelectorAll('[data-testid=stSelectbox] *')].map(each => each.value || each.innerText)"
    )
    shown = str(browser.run(chosen))
    assert MARKED in shown, "in the list as well"


_FOUND = """
const main = document.querySelector('[data-testid=stMain]');
return JSON.stringify({
  ran: window.ran !== undefined,
  foreign: [...document.querySelectorAll('a[href], iframe, script')].map(each => each.outerHTML).filter(each =>
    /<script>.*window.ran|href="(?!#)(?!\\.?\\/)|<iframe/.test(each)),
  images: [...document.querySelectorAll('img')].filter(each => !/^data:|\\/static\\//.test(each.src)).length,
  formulas: document.querySelectorAll('.katex').length,
  hidden: /[\\x1b\\u202e]/.test(main.innerText),
});
"""
