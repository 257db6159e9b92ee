"""When a batch may begin: what no weights could ever make possible ends the run by name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.explorer import scripted  # noqa: F401  registers the workflows
from tests.explorer.jobs import Job
from tests.explorer.rollouts import Rollouts
from tests.resolved import resolved
from tests.synchronizer.test_synchronizer import WeightHolder
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.errors import SyncError
from trinity.explorer.admission import BoundedAdmission
from trinity.explorer.assembly import experience_buffer, store_scope
from trinity.explorer.producer import Producer
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.schedule import DynamicSchedule, sync_schedule
from trinity.synchronizer.served import ServedWeights
from trinity.utils import failpoints


def config_of(
    train_batch_size: int, max_staleness: int | None = None, *, mode: str = "both", sync_interval: int = 1
) -> Config:
    """Return a fully asynchronous run with eight rollouts a batch."""
    sync = {"sync_style": "fully_async", "sync_interval": sync_interval, "max_staleness": max_staleness}
    return resolved(
        {
            "project": "p", "name": "n", "mode": mode, "model": {"model_path": "m", "max_model_len": 64},
            "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
            "buffer": {
                "batch_size": 2, "train_batch_size": train_batch_size,
                "trainer_input": {"experience_buffer": {"name": "e", "path": "p"}},
            },
            "synchronizer": sync | {"sync_timeout": 60},
        }
    )  # fmt: skip


async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(function, *args, **kwargs)


async def admitted(config: Config, store: ExperienceStore) -> bool | None:
    schedule = sync_schedule(config)
    assert isinstance(schedule, DynamicSchedule)
    meeting: Any = LocalSynchronizer(schedule, timeout_s=5.0)
    engine: Any = WeightHolder()
    served = ServedWeights(meeting, engine, explorer="explorer")
    names: Any = {"buffer": experience_buffer(config), "name": "explorer", "scope": store_scope(config)}
    producer = Producer(store, call, **names)
    return await BoundedAdmission(config, schedule, served=served, producer=producer).admit(1)


def test_a_batch_that_is_older_than_the_bound_when_it_is_trained_never_begins(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db") as store:
        words = r"E5510.*explore step 1 cannot begin: its 8 rollouts .* steps of 2, .* 3 versions old.*raise it to 3"
        with pytest.raises(SyncError, match=words):
            asyncio.run(admitted(config_of(2, 2), store))
        assert asyncio.run(admitted(config_of(2, 3), store)) is True


@pytest.mark.parametrize("goes_on", [False, True], ids=["batches", "tasks"])
def test_weights_that_are_on_their_way_are_no_reason_to_train_on_less(
    rollouts: Rollouts, tmp_path: Path, goes_on: bool
) -> None:
    """The explorer asks after a step is committed and before its weights are published: the next step is a full one."""
    rows = [{"question": "q", "act": "ok", "name": f"t{number}"} for number in range(6)]
    job = Job(tmp_path, rollouts, rows=rows, workflow="test_asynchronous", publish_s=1.3)
    job.sections = {
        "buffer": {"train_batch_size": job.train_batch_size},
        "deterministic": False,
        "synchronizer": {"sync_style": "fully_async", "max_staleness": 0, "update_in_flight": goes_on},
        "explorer": {"eval_on_startup": False, "eval_interval": None},
    }
    failpoints.configure("store.append.after_commit=sleep@2")
    try:
        job.run()
    finally:
        failpoints.configure("")
    assert [[exp.info["model_version"] for exp in batch] for batch in job.seen] == [[step] * 4 for step in range(3)]
