"""A key is one field and a rule is one function: nothing else is edited for what all of the program makes of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import trinity

ROOT = Path(__file__).resolve().parents[3]
KEY_FILE, KEY_BEFORE = "verl_policy.py", '    data_loader_seed: Int | None = key(None, "Seed of the shuffle.", '
KEYS = """\
    own_seed: Int | None = key(None, "Seed of what is ours.", VERL, default_from="seed")
    own_ceiling: NonNegative | None = key(None, "Largest gradient norm.", VERL, mirrors="trainer.grad_clip")
    own_mode: str = key("fast", "How it is done.", VERL, support=only("exact"))
"""
RULE_FILE, NOUN = "rules/batches.py", "def check_intervals(resolution: Resolution) -> None:\n"
RULE = """\
def _check_own_seed(resolution: Resolution) -> None:
    if resolution.get(ACTOR.own_seed) == 13:
        resolution.problem("E1899", ACTOR.own_seed, f"`{ACTOR.own_seed}` is 13, which is not done", suggestion="12")


"""
ASK = """
import json, sys
from typer.testing import CliRunner
from trinity.cli.app import app
for command in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, command)
    print(json.dumps([done.exit_code, done.output if done.exit_code in (0, 2) else repr(done.exception)]))
"""
SHOW = """
import json
from tools.reference.keys import page
from trinity.manager.fields import PARTS, fields_by_key
rows = [line for line in page("en").splitlines() if "own_" in line]
fields = {key: [field.kind, field.help()] for key, field in fields_by_key().items() if "own_" in key}
print(json.dumps([rows, fields]))
"""
"""The page of all keys, and the fields of the studio's forms."""


def edited(text: str, before: str, new: str) -> str:
    """Return `text` with `new` in front of the one place where `before` stands."""
    assert text.count(before) == 1, before
    return text.replace(before, new + before)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package with three new keys in one file and a new rule in another one."""
    source = Path(trinity.__file__).parent
    copy = tmp_path / "edited" / "trinity"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "common" / "config"
    (config / KEY_FILE).write_text(
        edited((config / KEY_FILE).read_text(encoding="utf-8"), KEY_BEFORE, KEYS), encoding="utf-8"
    )
    rule = edited((config / RULE_FILE).read_text(encoding="utf-8"), NOUN, RULE)
    docstring = rule.index('"""', rule.index(NOUN))
    body = rule.index("\n", rule.index('"""', docstring + 3)) + 1
    rule = rule[:body] + "    _check_own_seed(resolution)\n" + rule[body:]
    (config / RULE_FILE).write_text(rule, encoding="utf-8")
    return copy.parent


def asked(package: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Return exit code and output of each command of the edited package."""
    output = computed(package, ASK, json.dumps(commands))
    return [(code, output) for code, output in map(json.loads, output.splitlines())]


def computed(package: Path, code: str, *arguments: str) -> str:
    """Return what Python code prints beside the edited package; the tools are those of this repository."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=package,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def file_with(folder: Path, name: str, **actor: Any) -> str:
    """Write a file with keys of the actor; return its path."""
    tree = {
        "project": "own",
        "name": "key",
        "mode": "both",
        "checkpoint_root_dir": str(folder),
        "seed": 5,
        "model": {"model_path": str(folder), "max_model_len": 32},
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 2},
        "buffer": {
            "batch_size": 2,
            "total_steps": 1,
            "explorer_input": {"default_workflow_type": "math_workflow", "taskset": {"path": str(folder)}},
        },
        "trainer": {"grad_clip": 0.5, "trainer_config": {"actor_rollout_ref": {"actor": actor}}},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def test_a_key_is_one_field_and_a_rule_is_one_function(package: Path, tmp_path: Path) -> None:
    here = "trainer.trainer_config.actor_rollout_ref.actor"
    plain = file_with(tmp_path, "plain")
    wrong = file_with(tmp_path, "wrong", own_seed=13, own_ceiling=0.7, own_mode="odd")
    schema, shown, refused, explained, known = asked(
        package,
        ["config", "schema"],
        ["config", "show", "--config", plain, "--json", "--origin"],
        ["validate", "--config", wrong],
        ["explain", f"{here}.own_seed", "--language", "zh"],
        ["explain", f"{here}.own_ceiling", "--language", "zh"],
    )
    assert explained[1].startswith(f"{here}.own_seed：Seed of what is ours; null: seed."), explained[1]
    assert known[1].startswith(f"{here}.own_ceiling：梯度范数上限；null：trainer.grad_clip。"), known[1]
    assert schema[0] == 0, schema[1]
    assert all(name in schema[1] for name in ("own_seed", "own_ceiling", "own_mode"))
    values = {row["key"]: row for row in json.loads(shown[1])[0]["values"]}
    assert values[f"{here}.own_seed"]["value"] == 5 and values[f"{here}.own_seed"]["origin"] == ["derived: seed"]
    assert values[f"{here}.own_ceiling"]["value"] == 0.5
    assert values[f"{here}.own_mode"]["value"] == "fast"
    assert refused[0] == 2, refused[1]
    for code, key in (("E1899", "own_seed"), ("E1900", "own_mode"), ("W1816", "own_ceiling")):
        assert any(code in line and f"{here}.{key}" in line for line in refused[1].splitlines()), refused[1]
    rows, fields = json.loads(computed(package, SHOW))
    (row,) = [row for row in rows if f"{here}.own_seed`" in row]
    assert "| `null` | Seed of what is ours; null: seed." in row and any(f"{here}.own_ceiling`" in row for row in rows)
    kind, said = fields[f"{here}.own_seed"]
    assert kind == "integer" and "Seed of what is ours" in said
