"""Runs the tests of a file in a process of their own and reports each of them here.

The device must be there before the first backward pass of a process, and stays for good; other tests shall not see it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

REPORTS = "TRINITY_TEST_REPORTS"


def is_child() -> bool:
    """Return whether this process runs the tests itself."""
    return REPORTS in os.environ


def record(config: pytest.Config, report: pytest.TestReport) -> None:
    """Write a report for the process that started this one."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    with open(os.environ[REPORTS], "a", encoding="utf-8") as file:
        file.write(json.dumps([report.nodeid, data], default=str) + "\n")


class Reports:
    """Reports of the tests of one file, made by one process for all of them."""

    def __init__(self) -> None:
        self._made: dict[Path, dict[str, list[Any]]] = {}
        self._output: dict[Path, str] = {}

    def of(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Return the reports of `item`; a failure with the output of the process if there are none."""
        if item.path not in self._made:
            self._run(item)
        hook = item.config.hook.pytest_report_from_serializable
        found = [hook(config=item.config, data=data) for data in self._made[item.path].get(item.nodeid, [])]
        if not any(report.when == "teardown" for report in found):
            lost = f"the process of {item.path.name} ended before this test did:\n{self._output[item.path][-4000:]}"
            found.append(pytest.TestReport(item.nodeid, item.location, {}, "failed", lost, "call"))
        return found

    def _run(self, item: pytest.Item) -> None:
        names = [other.nodeid for other in item.session.items if other.path == item.path]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "reports"
            file.touch()
            plain = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "")
            command = [sys.executable, "-m", "pytest", *plain, *names]
            environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {REPORTS: str(file)}
            done = subprocess.run(  # each of its tests has its own time limit
                command,
                cwd=item.config.rootpath,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            self._output[item.path] = done.stdout.decode(errors="replace")
            made: dict[str, list[Any]] = {}
            for name, data in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
                made.setdefault(name, []).append(data)
            self._made[item.path] = made
