"""The viewer's page as its server would run it, without a browser, and databases for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.orm import Session
from streamlit.testing.v1 import AppTest

from trinity.common.experience import EID, Experience
from trinity.common.schema.sql_schema import Base, ExperienceModel

HOSTILE = (
    "<script>window.ran=1</script><img src=x onerror='window.ran=1'> ![x](http://evil.test/x.png) "
    "[a](javascript:window.ran=1) :red[c] **bold** $x^2$ \x1b[31m \u202e\x00&lt;b&gt;"
)
"""What a model, a reward function or a task may say: scripts, HTML, Markdown, LaTeX, control characters."""
SEEN = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").replace("\x00", "\ufffd")
"""How all of it is seen, once it was in a database."""
_LOOKS = ("<style>", "<script>document.documentElement.lang = ")
TABLES = ("experience", "experience_blob")
Write = Callable[..., Path]
Shown = Callable[..., AppTest]


def rows(count: int) -> list[Experience]:
    """Experiences of tasks with four runs each; the last token of an answer is not the model's."""
    return [
        Experience(
            eid=EID(1, number // 4, number % 4, 0),
            tokens=[5, 6, 7, 8, 9],
            prompt_length=2,
            logprobs=[-0.5, -1.0, 0.0],
            advantages=[0.25, 0.25, 0.0],
            action_mask=[True, True, False],
            reward=number / 10,
            metrics={"accuracy": number / 20} | ({} if number else {HOSTILE: 1.0}),
            prompt_text=f"question {number // 4}",
            response_text=f"answer {number}" if number else HOSTILE,
            info={"model_version": 3, "note": HOSTILE},
        )
        for number in range(count)
    ]


def fill(engine: Engine, experiences: list[Experience], *, buffer: str = "mine") -> None:
    """Append experiences to a database, whose tables are made."""
    Base.metadata.create_all(engine, tables=[Base.metadata.tables[name] for name in TABLES])
    with Session(engine) as session:
        session.add_all(ExperienceModel.from_experience(each, run="r", buffer=buffer) for each in experiences)
        session.commit()


def checked(test: AppTest) -> AppTest:
    """Return a page that was shown without an exception."""
    assert not test.exception, [each.value for each in test.exception]
    return test


def section(test: AppTest, name: str) -> AppTest:
    """Go to a part of the chosen experience."""
    return checked(test.radio(key="show").set_value(name).run())


def choice(test: AppTest, number: int) -> AppTest:
    """Choose an experience by its id in the list."""
    return checked(test.selectbox(key="id").set_value(number).run())


def query(test: AppTest) -> dict[str, str | list[str]]:
    """Return the query of the page's address; what it says once is no list."""
    said = {name: test.query_params[name] for name in test.query_params}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in said.items()}


def html(test: AppTest) -> str:
    """Return all HTML of tokens on the page."""
    return "\n".join(each.proto.body for each in test.get("html") if not each.proto.body.lstrip().startswith(_LOOKS))


def codes(test: AppTest) -> list[str]:
    """Return the blocks of plain text, without the link."""
    return [each.value for each in test.main.code]


def ids(test: AppTest) -> list[int]:
    """Return the ids of the table."""
    return [int(number) for number in test.dataframe[0].value["id"]]
