"""Workflows that do to their process what no exception handler survives, as their task's row says."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from trinity.common.experience import Experience
from trinity.common.workflows import Task, Workflow


def _hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(600)  # a call into C that keeps the interpreter's lock


def _fill_memory() -> None:
    """Take 64 MiB after 64 MiB, in C code that keeps the interpreter's lock, up to 4 GiB."""
    taken = []
    for _ in range(64):
        taken.append(ctypes.create_string_buffer(64 << 20))
        ctypes.PyDLL(None).memset(taken[-1], 1, 64 << 20)
    time.sleep(600)


DRASTIC = {
    "fill": _fill_memory,
    "hold": _hold_the_interpreter,
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "sleep": lambda: time.sleep(600),
}


class Drastic(Workflow):
    """Counts the attempt in the row's file, does what the row says, and then chats with the model."""

    def run(self) -> list[Experience]:
        row: dict[str, Any] = self.task.raw_task or {}
        file = Path(row["file"])
        with file.open("a", encoding="utf-8") as counted:
            counted.write(f"{os.getpid()}\n")
        attempts = len(file.read_text().splitlines())
        time.sleep(max(0.0, row.get("not_before", 0.0) - time.time()))
        if row["act"] in DRASTIC and attempts <= row.get("times", 99):
            DRASTIC[row["act"]]()
        if row["act"] == "pause":
            time.sleep(row.get("seconds", 1.0))
        if row["act"] == "raise":
            raise LookupError("no such tool")
        (answer,) = self.model.chat([{"role": "user", "content": "1+1="}], n=1, max_tokens=6)
        answer.reward = 0.5
        answer.metrics = {"variable": float(os.environ.get("DRASTIC_VARIABLE", "0"))}
        return [answer]


def drastic(folder: Path, name: str, act: str = "chat", **row: Any) -> Task:
    """Return a task whose attempts are lines in the file `name`."""
    row = {"act": act, "file": str(folder / name)} | row
    return Task(workflow=Drastic, repeat_times=1, raw_task=row, index={"index": 0, "taskset_id": 0})
