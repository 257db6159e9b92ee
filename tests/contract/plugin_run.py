"""Runs of the command with a plugin of a test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.plugin_texts import REWARD
from tests.e2e.tiny_run import TinyRun


def run_plugin(folder: Path, plugin: str, **changes: Any) -> TinyRun:
    """Run two steps with the plugin file, which must end well; return the run."""
    run = prepared_plugin(folder, plugin, **changes)
    ended = run.finish()
    assert ended.status == 0, ended.output[-3000:]
    return run


def prepared_plugin(folder: Path, plugin: str, **changes: Any) -> TinyRun:
    """Return a run of two steps with the plugin file and a reward that a random model earns."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "buffer__explorer_input__default_reward_fn_type": "share_of_digits",
        # With this seed the attempts of both steps differ in their rewards, so that both have a signal.
        "seed": 3,
    }
    return TinyRun(folder, plugin=f"{REWARD}\n{plugin}").change(**settings | changes)


def training_lines(run: TinyRun) -> list[dict[str, Any]]:
    """Return the metrics of the optimizer steps, which must be two."""
    lines = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert len(lines) == 2
    return lines
