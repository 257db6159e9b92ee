"""Questions to an inbox in a real SQLite index, answered by a scripted policy."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from tests.common.workflows.envs.policy import Script, attempt
from trinity.common.errors import WorkflowError
from trinity.common.rewards import RewardError
from trinity.common.workflows.envs.email_searcher.prepare_data import write_database

ME = "me@x.org"
ROW = {
    "id": 1, "question": "When is the launch?", "answer": "June 3", "message_ids": ["m1"], "how_realistic": 1.0,
    "inbox_address": ME, "query_date": "2001-05-20",
}  # fmt: skip


def mail(name: str, body: str, *, to: str = ME, day: int = 1, sender: str = "boss@x.org") -> dict[str, Any]:
    date = datetime.datetime(2001, 5, day, 9)
    return {"message_id": name, "subject": "Plan", "from": sender, "to": [to], "cc": [], "date": date, "body": body}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mails") / "mails.db"
    mails = [
        mail("m1", 'The launch is on June 3, "surely".'),
        mail("m2", "The launch was moved", day=20),
        mail("m3", "The launch is secret", to="other@x.org"),
        mail("m4", "The launch of tomorrow", day=21),
        mail("m5", "The launch of mine", sender=ME, to="other@x.org", day=2),
        mail("m6", "The launch was moved", day=22),  # as m2
        mail("m7", "launch " * 1000),
    ]
    assert write_database(mails, path) == 5
    return str(path)


def call(name: str, **arguments: Any) -> str:
    return f"I look. <tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def ask(database: str, model: Script, **more: Any) -> Any:
    (made,) = attempt("email_search_workflow", model, ROW, database_path=database, **more)
    return made


SEARCH = call("search_emails", keywords=["launch"])
READ = call("read_email", message_id="m1")


def test_a_right_answer_with_its_source(database: str) -> None:
    model = Script([SEARCH, READ, call("generate_response", answer=" june 3. ", sources=["m1", "m2"])])
    made = ask(database, model)
    assert made.reward == pytest.approx(1 + 0.3 + 0.05 + 0.07)
    assert made.metrics == pytest.approx(
        {"env_rounds": 3, "env_done": 1, "env_invalid_actions": 0, "actual_turns": 3, "accuracy": 1.0, "format": 0.42}
    )
    system, question, _, hits = model.asked[1]
    assert ME in system["content"] and "2001-05-20" in system["content"] and question["content"] == ROW["question"]
    assert [hit["message_id"] for hit in json.loads(hits["content"])] == ["m2", "m5", "m1"]  # newest first, none later
    assert json.loads(model.asked[2][-1]["content"])["to"] == [ME]


@pytest.mark.difference("Rewards of `email_search_workflow`")
@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        ([call("generate_response", answer="July", sources=[])], (-1.0, 0.0)),
        ([SEARCH, READ, call("generate_response", answer="July", sources=["m1"])], (-1.0, 0.3)),
        ([SEARCH, call("generate_response", answer="I don't know", sources=[])], (0.0, 0.1)),
        ([call("generate_response", answer="", sources=[])], (-1.0, 0.0)),
        ([SEARCH, SEARCH], (0.0, -1.0)),
        ([call("generate_response", answer="June 3", sources=[])], (1.0, 0.05)),
    ],
)
def test_other_ends(database: str, answers: list[str], parts: tuple[float, float]) -> None:
    made = ask(database, Script(answers), max_turns=2 + (READ in answers))
    assert (made.metrics["accuracy"], made.metrics["format"]) == pytest.approx(parts)
    assert made.reward == pytest.approx(sum(parts))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("no call", "Error: there is no <tool_call>"),
        ("<tool_call>{</tool_call>", "Error: the call is no JSON"),
        ("<tool_call>[1]</tool_call>", "Error: the call must be"),
        (call("search_emails", keywords=[]), "Error: no tool 'search_emails' takes"),
        (call("search_emails", keywords="launch"), "Error: no tool 'search_emails' takes"),
        (call("delete_email", message_id="m1"), "Error: no tool 'delete_email' takes"),
        (call("read_email", message_id="m3"), "Error: there is no mail 'm3'"),  # of another inbox
        (call("search_emails", keywords=['"surely" OR launch*']), "[]"),  # words, not a language
    ],
)
def test_what_cannot_be_called_is_told(database: str, answer: str, says: str) -> None:
    model = Script([answer, SEARCH])
    made = ask(database, model, max_turns=2, tool_obs_char_limit=40)
    assert model.asked[1][-1]["content"].startswith(says)
    assert made.metrics["env_invalid_actions"] == int(says != "[]")


def test_a_cut_answer_is_none(database: str) -> None:
    made = ask(database, Script([SEARCH, call("generate_response", answer="June 3", sources=[])], cut=1))
    assert (made.reward, made.truncate_status) == (-1.0, "response_truncated")


@pytest.mark.difference("Judge of `email_search_workflow`")
@pytest.mark.parametrize(
    ("verdict", "accuracy"), [("True.", 1.0), ("false", -1.0), ("true or false", None), ("", None)]
)
def test_an_auxiliary_model_judges(database: str, verdict: str, accuracy: float | None) -> None:
    policy, judge = Script([call("generate_response", answer="the third of June", sources=[])]), Script([verdict])
    if accuracy is None:
        with pytest.raises(RewardError, match="the judge must say true or false"):
            ask(database, policy, auxiliary_models=[judge])
        return
    made = ask(database, policy, auxiliary_models=[judge])
    assert made.metrics["accuracy"] == accuracy and judge.arguments == [{"n": 1, "temperature": 0.0}]
    assert all(text in judge.asked[0][0]["content"] for text in ("the third of June", "June 3", ROW["question"]))
    alone = Script([call("generate_response", answer="June 3", sources=[])])
    made = ask(database, alone, auxiliary_models=[Script([])], reward_fn_args={"llm_as_a_judge": False})
    assert made.metrics["accuracy"] == 1.0


def test_a_database_that_is_not_there_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkflowError, match="E5132.*there is no database of mails"):
        ask(str(tmp_path / "none.db"), Script([]))
    monkeypatch.delenv("DEFAULT_EMAIL_DB_PATH", raising=False)
    with pytest.raises(WorkflowError, match="DEFAULT_EMAIL_DB_PATH"):
        ask("", Script([]))
