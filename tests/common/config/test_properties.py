"""Typing errors are understood, mutated files never end in a traceback, secrets never appear."""

from __future__ import annotations

import logging
import random
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.common.config.conftest import MINIMAL, Examine, make_catalogue
from trinity.common.config import Catalogue, ConfigErrors, Plan, dump_config, examine, origins
from trinity.common.config.config import Config
from trinity.common.config.nearest import distance, nearest
from trinity.common.config.plugins import read_plugins, scan_plugins
from trinity.common.config.schema_index import fields_of, model_at
from trinity.common.config.tree import Path as TreePath
from trinity.utils import log

DATA = Path(__file__).resolve().parents[2] / "seeds"
LETTERS = "abcdefghijklmnopqrstuvwxyz_"


def _edit(name: str, draw: random.Random) -> str:
    at = draw.randrange(len(name))
    kind = draw.choice(["drop", "double", "swap", "replace"])
    if kind == "drop":
        return name[:at] + name[at + 1 :]
    if kind == "double":
        return name[:at] + draw.choice(LETTERS) + name[at:]
    if kind == "swap" and at + 1 < len(name):
        return name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    return name[:at] + draw.choice(LETTERS) + name[at + 1 :]


def _typos() -> list[tuple[TreePath, str]]:
    draw = random.Random(7)
    places = [
        path for path, _ in fields_of(Config) if "*" not in path and path[0] != "stages" and len(str(path[-1])) > 3
    ]
    typos = []
    for path in draw.choices(places, k=400):
        name = _edit(str(path[-1]), draw)
        model = model_at(path[:-1])
        if model is not None and name not in model.model_fields and name:
            typos.append((path, name))
    return typos


def test_the_first_suggestion_for_a_typing_error_is_right(examined: Examine) -> None:
    typos = _typos()
    wrong = []
    for start in range(0, len(typos), 40):
        part = typos[start : start + 40]
        text = [dict(yaml.safe_load(MINIMAL))]
        for path, name in part:
            node = text[0]
            for word in path[:-1]:
                node = node.setdefault(word, {})
            node[name] = 1
        hints = {p.key: p.suggestion or "" for p in examined(yaml.safe_dump(text[0]))[1]}
        for path, name in part:
            key = ".".join([*map(str, path[:-1]), name])
            if f"`{path[-1]}`" not in hints.get(key, ""):
                wrong.append((key, hints.get(key)))
    assert len(wrong) <= 0.05 * len(typos), wrong


@given(st.text("abc_", min_size=1, max_size=8), st.text("abc_", min_size=1, max_size=8))
def test_distance_is_a_symmetric_count_of_edits(left: str, right: str) -> None:
    assert distance(left, right) == distance(right, left)
    assert (distance(left, right) == 0) == (left == right)
    assert abs(len(left) - len(right)) <= distance(left, right) <= max(len(left), len(right))


def test_far_names_have_no_nearest() -> None:
    assert nearest("repeat_time", ["repeat_times", "seed"]) == "repeat_times"
    assert nearest("xyz", ["repeat_times", "seed"]) is None


def _mutate(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    line = lines[at]
    kind = draw.choice(["drop", "typo", "type", "scale", "indent", "cut", "double"])
    if kind == "drop":
        lines.pop(at)
    elif kind == "typo" and line.strip():
        lines[at] = _edit(line, draw)
    elif kind == "type" and ":" in line:
        lines[at] = (
            line.split(":")[0] + ": " + draw.choice(["[]", "{}", "null", "x", "-1", ".nan", "1e999", "${a.b}", "!x"])
        )
    elif kind == "scale" and ":" in line:
        lines[at] = line.split(":")[0] + ": " + draw.choice(["0", "99999999999999999999", "-5", "0.5", "true"])
    elif kind == "indent":
        lines[at] = " " * draw.randrange(9) + line.lstrip()
    elif kind == "cut":
        lines = lines[:at]
    else:
        lines.insert(at, line)
    return "\n".join(lines)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_damaged_file_gives_codes_and_no_traceback(seed: int) -> None:
    draw = random.Random(seed)
    text = (DATA / draw.choice(["guide.yaml", "explorer.yaml", "trainer.yaml"])).read_text()
    for _ in range(draw.randrange(1, 4)):
        text = _mutate(text or "a: 1", draw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(text)
        try:
            _, problems = examine(path, catalogue=make_catalogue())
        except ConfigErrors as error:
            problems = error.problems
    assert all(p.code[0] in "EW" and len(p.code) == 5 and p.render() for p in problems)


CANARY = "canary-93f1-secret"


@pytest.fixture
def secret_plan(examined: Examine, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(log, "_secrets", set())
    monkeypatch.setenv("TRINITY_TEST_KEY", CANARY + "-env")
    text = MINIMAL + (
        f"  trainer_input: {{experience_buffer: {{path: 'postgresql://me:{CANARY}@host/db'}}}}\n"
        f"monitor: {{monitor_args: {{api_key: {CANARY}, password: '${{oc.env:TRINITY_TEST_KEY}}'}}}}\n"
        f"explorer: {{rollout_model: {{api_key: {CANARY}}}}}\n"
    )
    plan, problems = examined(text)
    shown = "".join(p.render() + str(p.to_dict()) for p in problems)
    assert "W1501" in shown
    assert CANARY not in shown
    return plan


def test_secrets_are_hidden_wherever_a_configuration_is_shown(secret_plan: Plan) -> None:
    stage = secret_plan.stages[0]
    assert CANARY not in dump_config(stage.config)
    assert CANARY not in str(origins(stage.config, stage.tree, stage.derived))
    assert stage.config.monitor.monitor_args == {"api_key": CANARY, "password": CANARY + "-env"}


def test_secrets_are_hidden_in_the_log(secret_plan: Plan) -> None:
    record = logging.LogRecord("trinity", logging.INFO, "f", 1, "key %s", (CANARY + "-env",), None)
    assert CANARY not in log.RedactingFormatter("%(message)s").format(record)


PLUGIN = """
from trinity.common.workflows import WORKFLOWS
import trinity.common.rewards as rewards
@WORKFLOWS.register_module("my_workflow")
class A: ...
@rewards.REWARD_FUNCTIONS.register_module(name="my_reward")
class B: ...
"""


def test_plugin_names_are_read_without_running_the_file(tmp_path: Path, examined: Examine) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(PLUGIN + "raise SystemExit\n")
    names = scan_plugins([tmp_path / "plugins"])
    assert names == {"workflow": frozenset({"my_workflow"}), "reward_fn": frozenset({"my_reward"})}


def test_a_plugin_name_is_known_and_a_computed_one_is_left_to_the_run(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("math_workflow", "my_workflow"))
    scan = read_plugins([tmp_path])
    known = catalogue.with_plugins(scan.names, has_unknown=scan.has_unknown)
    assert not [p for p in examine(tmp_path / "run.yaml", catalogue=known)[1] if p.is_error]
    assert [p.code for p in examine(tmp_path / "run.yaml", catalogue=catalogue)[1]] == ["E1701"]
    (tmp_path / "mine.py").write_text("NAME = 'a'\n@WORKFLOWS.register_module(NAME)\nclass A: ...\n")
    scan = read_plugins([tmp_path])
    assert [(p.code, p.line) for p in scan.problems] == [("W3905", 2)]
    known = catalogue.with_plugins(scan.names, has_unknown=scan.has_unknown)
    assert [p.code for p in examine(tmp_path / "run.yaml", catalogue=known)[1]] == ["W1701"]


def test_a_folder_that_registers_nothing_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    (problem,) = read_plugins([tmp_path]).problems
    assert (problem.code, problem.is_error) == ("W3904", False) and f"{tmp_path} registers nothing" in problem.message
    (tmp_path / "mine.py").write_text(PLUGIN)
    assert not read_plugins([tmp_path]).problems
    (tmp_path / "mine.py").write_text("x = 1\ndef f(:\n")
    assert [each.code for each in read_plugins([tmp_path]).problems] == ["E3902"], "what it registers is not known"


def test_plugin_files_with_errors_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n")
    problem = read_plugins([tmp_path]).problems[0]
    assert (problem.code, problem.line, int(problem.exit_code)) == ("E3902", 2, 3)
    missing = read_plugins([tmp_path / "nope"]).problems[0]
    assert missing.code == "E3901" and "does not exist" in missing.message
