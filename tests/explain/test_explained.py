"""`trinity explain`: every code and every key is answered from where it is declared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from trinity.cli.app import app
from trinity.common.config import Config
from trinity.common.config.schema_index import annotation_at, fields_of
from trinity.common.config.tree import Path, dotted
from trinity.explain.code_messages import all_codes, message_of, messages, raised_at
from trinity.explain.keys import explained_key, key_lines


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, ["explain", *words])


def an_instance_of(path: Path) -> Path:
    """Return a path with an item of every list, and an entry of every mapping."""
    made: Path = ()
    for part in path:
        item = (*made, 0)
        made = (*made, part) if part != "*" else item if annotation_at(item) is not None else (*made, "any")
    return made


def test_every_code_is_answered_as_on_the_page_of_codes() -> None:
    assert all_codes() == list(messages())
    for code in all_codes()[::97]:
        raised = raised_at(code)
        assert message_of(raised) == messages()[code] and all(each.place.count(":") == 1 for each in raised)


@pytest.mark.parametrize("written", ["E3833", "e3833", "[E3833]"])
def test_a_code_is_answered_with_reason_place_and_way_out(written: str) -> None:
    done = asked(written)
    assert done.exit_code == 0
    assert done.stdout.startswith("error[E3833]: SQLite cannot write in …")
    assert "machine: something that the run needs" in done.stdout
    assert "raised at trinity/preflight/doctor/folders.py:" in done.stdout
    warning = json.loads(asked("W3407", "--json").stdout)
    assert warning["kind"] == "warning" and warning["places"] and "cluster.runtime" in warning["says"]
    assert json.loads(asked("E3601", "--json").stdout)["ways_out"] == ["choose another checkpoint_root_dir"]


def test_a_code_that_does_not_exist_names_those_near_to_it() -> None:
    done = asked("W3809")
    assert done.exit_code == 2 and "[E1014]" in done.output and "W3802" in done.output


def test_every_key_is_answered() -> None:
    for path, field in fields_of(Config):
        name = dotted(an_instance_of(path))
        found = explained_key(name)
        described = field.description or ""
        assert found["description"] and described in found["description"], name
        assert len(list(key_lines(found))) >= 2, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("algorithm.repeat_times", {"values": ["integer >= 1", "null"], "default": None}),
        ("explorer.proxy_port", {"values": ["integer >= 0 and <= 65535"], "default": 8010}),
        ("cluster.runtime", {"values": ["auto | local | ray"]}),
        ("buffer.explorer_input.tasksets[1].path", {"key": "buffer.explorer_input.tasksets[1].path"}),
    ],
)
def test_a_key_is_answered_with_values_and_default(name: str, expected: dict[str, Any]) -> None:
    found = explained_key(name)
    assert {key: found[key] for key in expected} == expected


def test_a_key_is_answered_in_the_language_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    lines = asked("cluster.runtime").stdout.splitlines()
    assert lines[0] == "cluster.runtime：各组件在哪里运行；local：在本进程中。"
    assert "  取值：auto | local | ray" in lines and "  出处：本项目" in lines
    english = asked("cluster.runtime", "--language", "en").stdout
    assert english.startswith("cluster.runtime: Where the components run; local: this process.")
    assert json.loads(asked("cluster.runtime", "--json").stdout)["description"] in lines[0]


@pytest.mark.parametrize(
    ("name", "code", "meant"),
    [
        ("algoritm.repeat_times", "E1203", "`algorithm`"),
        ("buffer.eval_interval", "E1204", "`explorer.eval_interval`"),
        ("trainer.learning_rate", "E1205", "`algorithm.optimizer.lr`"),
        ("stages[0].nam", "E1203", "name"),
        ("not a key", "E1203", "known here"),
    ],
)
def test_a_key_that_does_not_exist_is_answered_with_the_one_that_was_meant(name: str, code: str, meant: str) -> None:
    done = asked(name)
    assert done.exit_code == 2 and f"[{code}]" in done.output and meant in done.output
