"""Every test of this folder runs with the strict device, in a process of its file (`child.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strict_device.child import Reports, is_child, record

HERE = Path(__file__).parent
REPORTS = Reports()

if is_child():
    from tests.strict_device.device import install

    install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if not is_child() else ():
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))  # the first one waits for the process with all of its file


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if is_child() or HERE not in item.path.parents:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in REPORTS.of(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record(self.config, report)


def pytest_configure(config: pytest.Config) -> None:
    if is_child():
        config.pluginmanager.register(_Recorder(config))


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> str:
    """Admit the device by its name, and as the one that `auto` takes; return the name."""
    monkeypatch.setattr("trinity.utils.device.ACCELERATORS", ("strict",))
    return "strict"
