"""Files that are whole whenever they are read: one JSON object, or one a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(file: Path, values: Any) -> None:
    """Write `values`; a reader sees the old ones or the new ones."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    aside.write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
    os.replace(aside, file)


def read_json(file: Path) -> dict[str, Any]:
    """Return what `write_json` wrote; nothing where there is no file."""
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values


def append_line(file: Path, **values: Any) -> None:
    """Add one line."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(values) + "\n")


def lines(file: Path) -> list[dict[str, Any]]:
    """Return all whole lines of a file; nothing where there is none."""
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the writer was killed in the middle of it
    return found


def recorded(file: Path) -> list[dict[str, Any]]:
    """Return every test that the recorder has written down: id, outcome, seconds and message.

    One that began and did not end is `lost` with its process; one that was collected and did not begin, `not run`.
    """
    ended: dict[str, dict[str, Any]] = {}
    begun: list[str] = []
    collected: list[str] = []
    for line in lines(file):
        if "end" in line:
            ended[line["end"]] = {key: line[key] for key in ("outcome", "seconds", "message")}
        elif "start" in line:
            begun.append(line["start"])
        elif not collected:
            collected = line.get("collected", [])
    names = dict.fromkeys([*collected, *begun, *ended])
    lost = {name: {"outcome": "lost", "seconds": None, "message": "its process ended"} for name in begun}
    idle = {"outcome": "not run", "seconds": None, "message": ""}
    return [{"test": name} | (ended.get(name) or lost.get(name) or idle) for name in names]


def counts(tests: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many tests have each outcome."""
    found: dict[str, int] = {}
    for test in tests:
        found[test["outcome"]] = found.get(test["outcome"], 0) + 1
    return found
