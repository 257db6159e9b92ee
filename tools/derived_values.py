"""What every configuration file resolves to, to compare before and after a change of the schema or of its rules.

    python tools/derived_values.py now.json             write all values (about two minutes)
    python tools/derived_values.py before.json now.json  compare two files; exit status 1 and the differences, if any

Written are, of each example, each file under `tests/` and the quickstart: every key's resolved value, which keys count
as written, the reason of each derived value, and every problem. Then every key of the schema is written once with each
of a few values into small files of four kinds of runs: what is refused, and which values follow. Nothing depends on
the machine: the files are read as `trinity validate --schema-only` reads them, in a folder that need not exist.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from trinity.catalogue import BUILT_IN  # noqa: E402
from trinity.common.config import ConfigErrors, Finding, examine  # noqa: E402
from trinity.common.config.config import Config  # noqa: E402
from trinity.common.config.schema_index import annotation_at, fields_of, variants  # noqa: E402
from trinity.common.config.showing import leaves, plain_values  # noqa: E402
from trinity.common.config.tree import Path as TreePath  # noqa: E402
from trinity.common.config.tree import dotted  # noqa: E402
from trinity.quickstart.template import render  # noqa: E402

CWD = Path("/run")
SHOWN = 40
VARIABLES = ("MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_SFT_DATASET_PATH", "TRINITY_DATASET_PATH")
DATA = ROOT / "tests/seeds"
BASE = {
    "model": {"model_path": "/models/tiny", "max_model_len": 128},
    "buffer": {
        "batch_size": 4,
        "explorer_input": {"taskset": {"name": "t", "path": "d.jsonl", "default_workflow_type": "math_workflow"}},
    },
}
REWARD_MODEL = {"enable": True, "model": {"path": "/models/reward"}}
KINDS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": {"algorithm_type": "ppo"}, "trainer": {"trainer_config": {"reward_model": REWARD_MODEL}}},
    "sft": {
        "mode": "train",
        "algorithm": {"algorithm_type": "sft"},
        "buffer": {"train_batch_size": 8, "trainer_input": {"experience_buffer": {"path": "d.jsonl"}}},
    },
    "megatron": {"algorithm": {"algorithm_type": "ppo"}, "trainer": {"trainer_strategy": "megatron"}},
}
TRIED: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2),
    float: (0.0, 0.5, 1.0),
    str: ("x", "None"),
    dict: ({"a": 1},),
    tuple: (["model"],),
}


def files(folder: Path) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Yield name, path and overrides of every configuration file of the repository; the quickstart's is written."""
    verl = f"trainer.trainer_config_path={DATA / 'train_guide.yaml'}"
    for path in sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("tests/**/*.yaml")]):
        name = str(path.relative_to(ROOT))
        if "actor_rollout_ref" not in yaml.safe_load(path.read_text(encoding="utf-8")):
            yield name, path, ()
            yield f"{name} with train_guide.yaml", path, (verl,)
    quickstart = folder / "quickstart.yaml"
    quickstart.write_text(render(CWD / "quickstart", seed=42), encoding="utf-8")
    yield "quickstart", quickstart, ()
    for kind in KINDS:
        path = folder / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(merged(BASE, KINDS[kind])), encoding="utf-8")
        yield kind, path, ()


def examined(path: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return what a file resolves to in each of its stages, and its problems."""
    try:
        plan, problems = examine(path, overrides, catalogue=BUILT_IN, schema_only=True, cwd=CWD)
    except ConfigErrors as error:
        return {"problems": sorted(map(described, error.problems))}
    except Exception as error:  # noqa: BLE001 - a fault of the rules is a finding too
        return {"raised": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {"problems": sorted(map(described, problems))}
    if any(problem.is_error for problem in problems):
        return found  # nothing is resolved where something is wrong
    for stage in plan.stages:
        written = stage.config.model_dump(mode="json", exclude_unset=True)
        found[str(stage.name)] = {
            "values": {dotted(place): value for place, value in leaves(plain_values(stage.config))},
            "written": dict.fromkeys((dotted(place) for place, _ in leaves(written)), True),
            "derived": {each.key: plain([each.value, each.reason]) for each in stage.derived},
        }
    return found


def described(problem: Finding) -> str:
    """Return a problem in one line, without the place of the file."""
    parts = (problem.code, problem.key, problem.message, problem.rule, problem.suggestion, problem.line)
    return " | ".join(str(part) for part in parts).replace(str(ROOT), "")


def plain(value: Any) -> Any:
    """Return a value as it is read back from JSON."""
    return json.loads(json.dumps(value, default=str))


def edits() -> Iterator[tuple[str, str, TreePath, Any]]:
    """Yield name, kind of run, key and value of every file that is one key away from a small one."""
    for kind in KINDS:
        for path in map(concrete, dict(fields_of(Config))):
            for value in tried(path):
                yield f"{kind}: {dotted(path)}: {value}", kind, path, value


def concrete(path: TreePath) -> TreePath:
    """Return a path with the first item of a list, and the item `a` of a mapping, where it says `*`."""
    made: TreePath = ()
    for part in path:
        is_list = part == "*" and typing.get_origin(variants(annotation_at(made))[0]) is tuple
        made = (*made, 0 if is_list else "a" if part == "*" else part)
    return made


def tried(path: TreePath) -> list[Any]:
    """Return a few values for the key at `path`: all of its words, small numbers, both truth values."""
    values: list[Any] = []
    for kind in variants(annotation_at(path)):
        origin = typing.get_origin(kind)
        values += typing.get_args(kind) if origin is typing.Literal else TRIED.get(origin or kind, ())
    return values if path[0] != "stages" else []


def edited(kind: str, path: TreePath, value: Any) -> dict[str, Any]:
    """Return the file of a kind of run with `value` written at `path`."""
    made = merged(BASE, KINDS[kind])
    node: Any = made
    for part, below in itertools.pairwise(path):
        if isinstance(part, int):
            node.append({})
            node = node[part]
        else:
            node = node.setdefault(part, [] if isinstance(below, int) else {})
    node[path[-1]] = value
    return made


def merged(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `other` over it, key by key; both are left as they are."""
    made = copy.deepcopy(base)
    for name, value in other.items():
        is_both = isinstance(value, dict) and isinstance(made.get(name), dict)
        made[name] = merged(made[name], value) if is_both else copy.deepcopy(value)
    return made


def dump() -> dict[str, Any]:
    """Return everything that is compared, by file."""
    os.environ.update({name: f"/data/{name.lower()}" for name in VARIABLES})
    with tempfile.TemporaryDirectory() as folder:
        found = {name: examined(path, overrides) for name, path, overrides in files(Path(folder))}
        file = Path(folder) / "run.yaml"
        for name, kind, path, value in edits():
            file.write_text(json.dumps(edited(kind, path, value)), encoding="utf-8")
            found[name] = changed(found[kind], examined(file, ()))
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the part of `after` that is not in `before`, and the names of what is gone; equal parts are left out."""
    found = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            value = changed(old, value) | {f"- {gone}": None for gone in old if gone not in value}
            if value:
                found[name] = value
        elif value != old:
            found[name] = value
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return one line for each value that differs."""
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, "(absent)"), after.get(name, "(absent)")
        if isinstance(old, dict) and isinstance(new, dict):
            lines += [f"{name}: {line}" if old else line for line in compare(old, new)]
        elif old != new:
            lines.append(f"{name}: was {old}, is {new}")
    return lines


def main(arguments: list[str]) -> int:
    """Write a file, or compare two; see the head of this one."""
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        text = json.dumps(dump(), sort_keys=True, indent=0, default=str)
        Path(arguments[0]).write_text(text.replace(str(ROOT), ""), encoding="utf-8")
        return 0
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    before, after = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments)
    lines = compare(before, after)
    said = lines[:SHOWN] or [f"{len(before)} files resolve to the same values"]
    if len(lines) > SHOWN:
        said.append(f"and {len(lines) - SHOWN} more")
    sys.stdout.write("\n".join(said) + "\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
