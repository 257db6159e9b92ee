"""What writes for a run has ended when the run has: the next one in this process finds its folder still."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.tiny_run import TinyRun
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

SLEEP_S = 1.0  # of the action
# Where a thread is held while the explorer fails. Its second step comes only then, with training step 1.
PLACES = ("ckpt.before_rename", "sync.before_publish")
PLUGIN = """
import time
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.utils import failpoints


@REWARD_FUNCTIONS.register_module("waits_for_the_trainer")
class WaitsForTheTrainer(RewardFn):
    def __call__(self, **kwargs):
        until = time.monotonic() + 45
        while time.monotonic() < until and self.is_early(failpoints.hits()):
            time.sleep(0.01)
        return {"accuracy": 0.5}

    def is_early(self, hits):
        return hits.pop("explore.after_rollout") == 1 and not any(hits.values())
"""


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.configure("")


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file, by its path."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, because a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "waits_for_the_trainer.py").write_text(PLUGIN)
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_failed_writes_nothing_more(
    tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    run = TinyRun(tmp_path).change(buffer__total_steps=4, synchronizer__sync_offset=1)
    run.change(buffer__explorer_input__default_reward_fn_type="waits_for_the_trainer")
    run.change(synchronizer__sync_method="checkpoint")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    monkeypatch.chdir(tmp_path)
    options = RunOptions(plugin_dirs=[plugins])
    plan = plan_run(Path("run.yaml"), options)
    failpoints.configure(f"{place}=sleep;explore.after_rollout=raise@2")
    with pytest.raises(RuntimeError, match="failpoint explore.after_rollout"):
        run_plan(plan, options)
    assert failpoints.hits()[place] > 0
    left = contents(tmp_path)
    time.sleep(1.5 * SLEEP_S)
    assert contents(tmp_path) == left
