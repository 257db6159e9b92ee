"""Workflows written against the published interface, each in a run of two steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model

PLUGIN = (Path(__file__).parent / "published_workflows.py").read_text(encoding="utf-8")
NAMES = re.findall(r'register_module\("(\w+)"\)', PLUGIN)


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
def test_each_workflow_finds_what_the_interface_promises(tmp_path: Path, mode: str) -> None:
    run = TinyRun(tmp_path, plugin=PLUGIN)
    tiny_model(tmp_path / "judge", "llama", seed=2, scale=3.0)
    run.write_rows([{"question": "1+2=", "answer": "3", "how": name} for name in 2 * NAMES])
    run.change(
        buffer__batch_size=len(NAMES),
        buffer__explorer_input__taskset__workflow_args={"second": True},
        explorer__concurrent_mode=mode,
        explorer__auxiliary_models=[{"model_path": "judge", "dtype": "float32"}],
    )
    run.tree["buffer"]["explorer_input"]["taskset"]["format"]["workflow_key"] = "how"
    end = run.finish()
    assert end.status == 0, end.output[-3000:]
    steps = run.lines("explorer")[:2]
    assert [{name: line.get(f"rollout/{name}/min") for name in NAMES} for line in steps] == 2 * [
        dict.fromkeys(NAMES, 1.0)
    ]
    assert [line["rollout/finished_task_count"] for line in steps] == [len(NAMES)] * 2
    assert not any(line[f"rollout/{what}_run_count"] for line in steps for what in ("failed", "timeout", "rejected"))
