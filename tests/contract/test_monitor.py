"""Monitors of one's own, with the arguments of both published constructors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.plugin_run import run_plugin

pytestmark = pytest.mark.slow

PLUGIN = '''
from trinity.utils.monitor import MONITOR, Monitor


@MONITOR.register_module("mine")
class MyMonitor(Monitor):
    """Writes the names of what it gets."""

    def __init__(self, project, group, name, role, config=None):
        super().__init__(project, name, role, config)
        self.group, self.word = group, config.monitor.monitor_args["word"]
        assert (self.project, self.name, self.role, self.config) == (project, name, role, config)

    def log_table(self, table_name, experiences_table, step):
        pass

    def log(self, data, step, commit=False):
        with open(f"{self.role}.txt", "a") as file:
            file.write(f"{step} {self.word} {len(data) > 3} {self.format_data_str(data, step)[:7]}" + chr(10))

    def close(self):
        with open(f"{self.role}.txt", "a") as file:
            file.write("closed" + chr(10))

    @classmethod
    def default_args(cls):
        return {"word": "hello"}


class Quiet(Monitor):
    def log(self, data, step, commit=False):
        open("quiet.txt", "a").write(f"{self.role}{step}" + chr(10))

    def close(self):
        pass


MONITOR.register_module(module_name="quiet", module_cls=Quiet)
'''


def test_a_monitor_has_the_defaults_that_it_declares_and_is_closed(tmp_path: Path) -> None:
    run = run_plugin(tmp_path, PLUGIN, monitor__monitor_type="mine")
    for role in ("explorer", "trainer"):
        lines = (run.folder / f"{role}.txt").read_text().splitlines()
        assert {"1 hello True Step 1:", "2 hello True Step 2:"} <= set(lines)
        assert lines[-1] == "closed" and lines.count("closed") == 1


def test_a_monitor_without_a_constructor_has_its_role(tmp_path: Path) -> None:
    run = run_plugin(tmp_path, PLUGIN, monitor__monitor_type="quiet")
    lines = set((run.folder / "quiet.txt").read_text().splitlines())
    assert {"explorer1", "explorer2", "trainer1", "trainer2"} <= lines
