"""A run that is killed between a checkpoint and its end: every tracker has each step once."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.e2e.tiny_run import TinyRun

pytest.importorskip("mlflow")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LAST, SAVED = 12, 4
STARTS = (6, 3)  # explore steps of each start, after which it waits for its end
ROLLOUTS = 4  # of a step
WAITING = """
import itertools, os, time
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn

REWARDED = itertools.count(1)


@REWARD_FUNCTIONS.register_module("digits_until")
class DigitsUntil(RewardFn):
    def __call__(self, response, prompt=None, truth=None, **kwargs):
        while next(REWARDED) > int(os.environ.get("MOST_REWARDED", "1000")):
            time.sleep(3600)
        return {"digits": sum(map(str.isdigit, response)) / max(len(response), 1)}
"""
NAMES = {
    "trainer": ("sample/experience_count", "time/train_step"),
    "explorer": ("rollout/reward/mean", "time/explore_step"),
}


def of_mlflow(run: TinyRun, name: str) -> list[tuple[int, float]]:
    """Return steps and values in MLflow's own store, which may not be there yet."""
    place = f"file:{run.job / 'monitor' / 'mlflow.db'}?mode=ro"
    try:
        with closing(sqlite3.connect(place, uri=True, timeout=30)) as store:
            return store.execute("SELECT step, value FROM metrics WHERE key = ? ORDER BY step", (name,)).fetchall()
    except sqlite3.OperationalError:
        return []


def of_tensorboard(run: TinyRun, actor: str, name: str) -> list[int]:
    events = EventAccumulator(str(run.job / "monitor" / "tensorboard" / actor))
    events.Reload()
    return [each.step for each in events.Scalars(name)]


def checkpoint(run: TinyRun) -> int:
    return max((int(folder.name.rsplit("_", 1)[1]) for folder in run.job.glob("global_step_*")), default=0)


def sent(run: TinyRun) -> int:
    """Return the last training step that the run remembers to have sent."""
    file = run.job / "monitor" / "mlflow.json"
    state = json.loads(file.read_text()) if file.exists() else {"metrics": {"steps": {"last": {}}}}
    return int(state["metrics"]["steps"]["last"].get("trainer", {}).get("time/train_step", [0])[0])


def killed_ahead(run: TinyRun, *, last: int, num_steps: int) -> dict[int, float]:
    """Kill the run when it has sent steps after `last` that no checkpoint has; return what MLflow has then."""
    process = run.start(environment={"MOST_REWARDED": str(num_steps * ROLLOUTS)})
    try:
        while process.poll() is None:
            if sent(run) > max(last, checkpoint(run)):
                process.kill()
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate(timeout=60)
    return dict(of_mlflow(run, "time/train_step"))


@pytest.mark.nightly
def test_a_tracker_has_each_step_once_whatever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path).change(
        buffer__total_steps=LAST,
        trainer__save_interval=SAVED,
        monitor__monitor_type=["tensorboard", "mlflow"],
        buffer__explorer_input__default_reward_fn_type="digits_until",
        explorer__runner_isolation="thread",
        explorer__max_timeout=3600,
    )
    run.plugin = WAITING
    store = f"sqlite:///{run.job / 'monitor' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)  # not a server that may be at its usual port
    there: dict[int, float] = {}
    for num_steps in STARTS:
        found = killed_ahead(run, last=max(there, default=0), num_steps=num_steps)
        assert found.items() >= there.items(), "what is there stays"
        there = found
    assert max(there) > checkpoint(run), "steps are done again"
    ended = run.finish("--set", "log.level=debug", timeout_s=600)
    assert ended.status == 0, ended.output
    for actor, names in NAMES.items():
        for name in names:
            steps = list(range(1, LAST + 1))
            assert of_tensorboard(run, actor, name) == steps, name
            assert [line["step"] for line in run.lines(actor) if name in line] == steps, name
            assert [step for step, _ in of_mlflow(run, name)] == steps, name
    assert dict(of_mlflow(run, "time/train_step")).items() >= there.items()
    assert "before a resume; what it has is not sent again" in "".join(
        file.read_text() for file in (run.job / "log").glob("*.log")
    )
