"""A run of many steps: threads, files and objects do not grow, and payloads are pruned."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.tiny_run import TinyRun

pytestmark = pytest.mark.slow

STEPS, WARM, COUNTED = 80, 30, 10
EARLY, LATE = range(WARM, WARM + COUNTED), range(STEPS - COUNTED + 1, STEPS + 1)
PLUGIN = (
    f"""
COUNTED_STEPS = {[*EARLY, *LATE]}
"""
    + """
import gc, json, os, threading
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import SimpleWorkflow


@WORKFLOWS.register_module("counts")
class Counts(SimpleWorkflow):
    def run(self):
        if self.task.task_id == 0 and self.task.batch_id in COUNTED_STEPS:
            gc.collect()  # what waits for the collector comes and goes
            found = {"step": self.task.batch_id, "threads": threading.active_count(),
                     "files": len(os.listdir("/proc/self/fd")), "objects": len(gc.get_objects())}
            with open("counts.jsonl", "a") as file:
                file.write(json.dumps(found) + "\\n")
        return super().run()
"""
)


def test_nothing_grows_with_the_number_of_steps(tmp_path: Path):
    run = TinyRun(tmp_path, plugin=PLUGIN)
    run.change(
        buffer__total_steps=STEPS,
        buffer__keep_payloads=0,
        buffer__explorer_input__default_workflow_type="counts",
        trainer__save_interval=10,
        trainer__max_checkpoints_to_keep=2,
    )
    ended = run.finish()
    assert ended.status == 0, ended.output
    counts = [json.loads(line) for line in (tmp_path / "counts.jsonl").read_text().splitlines()]
    early, late = ([row for row in counts if row["step"] in steps] for steps in (EARLY, LATE))
    for what, tolerance in (("threads", 2), ("files", 3), ("objects", 3000)):
        assert max(row[what] for row in late) <= max(row[what] for row in early) + tolerance, what
    with sqlite3.connect(run.job / "buffer" / "experience.db") as database:
        kept = database.execute("select count(*) from experience_blob").fetchone()[0]
        total = database.execute("select count(*) from experience").fetchone()[0]
    assert total == 4 * STEPS and kept == 4 * 10, "only what is younger than the older of two checkpoints"
