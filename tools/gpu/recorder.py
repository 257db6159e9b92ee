"""A pytest plugin that writes down every test as it ends, so that nothing is lost where the process is.

`GPU_TESTS_FILE` names the file, of one JSON object a line; tests that are in it have run and are left out.
`GPU_TEST_LIMIT_S` is how long a test may take: beyond it the stacks of all threads are written and the process ends.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest

from tools.gpu.records import append_line, lines

BROKEN = ("device-side assert", "illegal memory access", "unspecified launch failure", "CUDA error: misaligned")
"""What CUDA says when the process can compute nothing any more."""
BROKEN_STATUS = 88
MESSAGE_CHARS = 3000

_file = Path(os.environ["GPU_TESTS_FILE"])
_limit_s = float(os.environ.get("GPU_TEST_LIMIT_S", "60"))
_stacks = _file.with_suffix(".stacks").open("w")
_reports: dict[str, list[pytest.TestReport]] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has begun before."""
    begun = {line["start"] for line in lines(_file) if "start" in line}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in begun])
    items[:] = [item for item in items if item.nodeid not in begun]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write down what is going to run."""
    append_line(_file, collected=[item.nodeid for item in session.items])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down a file that cannot be imported."""
    if report.failed:
        append_line(
            _file, end=report.nodeid, outcome="error", seconds=0.0, message=report.longreprtext[-MESSAGE_CHARS:]
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """Write down that a test begins, and let it end in time."""
    append_line(_file, start=nodeid)
    faulthandler.dump_traceback_later(_limit_s, exit=True, file=_stacks)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the reports of a test's phases."""
    _reports.setdefault(report.nodeid, []).append(report)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
    """Write down how a test ended; a process whose device is lost ends with it."""
    faulthandler.cancel_dump_traceback_later()
    reports = _reports.pop(nodeid, [])
    bad = [report for report in reports if report.failed]
    skipped = [report for report in reports if report.skipped]
    shown = (bad or skipped or [None])[0]
    message = "" if shown is None else shown.longreprtext
    append_line(
        _file,
        end=nodeid,
        outcome="failed" if bad else "skipped" if skipped else "passed",
        seconds=round(sum(report.duration for report in reports), 2),
        message=message[-MESSAGE_CHARS:],
    )
    if bad and any(text in message for text in BROKEN):
        os._exit(BROKEN_STATUS)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write down that pytest came to its end: an exit status of 1 alone is also that of a test that took too long."""
    append_line(_file, finished=int(exitstatus))
