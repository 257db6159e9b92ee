"""Priority functions of one's own, in the published form and in ours, in a run that replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import run_plugin, training_lines

pytestmark = pytest.mark.slow

PLUGIN = """
from typing import Dict, List, Tuple

from trinity.buffer.priority import ReplayItem
from trinity.buffer.storage import PRIORITY_FUNC
from trinity.buffer.storage.queue import PriorityFunction
from trinity.common.experience import Experience


@PRIORITY_FUNC.register_module("published")
class Published(PriorityFunction):
    def __init__(self, decay: float = 2.0, limit: int = 1):
        self.decay, self.limit = decay, limit

    def __call__(self, item: List[Experience]) -> Tuple[float, bool]:
        with open("asked.txt", "a") as file:
            file.write(f"{self.decay} {self.limit} {len(item)} {item[0].info['use_count']}" + chr(10))
        priority = float(item[0].info["model_version"] - self.decay * item[0].info["use_count"])
        return priority, item[0].info["use_count"] < self.limit

    @classmethod
    def default_config(cls) -> Dict:
        return {"decay": 5.0, "limit": 2}


@PRIORITY_FUNC.register_module(module_name="own")
class Own(PriorityFunction):
    def __call__(self, item: ReplayItem) -> tuple[float, bool]:
        return -item.model_version - item.use_count, item.reward is not None
"""


def _lines(folder: Path, name: str, **args: Any) -> list[dict[str, Any]]:
    replay = {"enable": True, "reuse_cooldown_time": 0, "priority_fn": name, "priority_fn_args": args}
    changes = {
        "buffer__trainer_input__experience_buffer": {"replay_buffer": replay},
        "buffer__train_batch_size": 6,
        "synchronizer__sync_style": "fixed",
    }
    return training_lines(run_plugin(folder, PLUGIN, **changes))


def test_a_published_function_is_asked_with_its_defaults_and_uses_rollouts_again(tmp_path: Path) -> None:
    _, second = _lines(tmp_path, "published", decay=4.0)
    asked = (tmp_path / "asked.txt").read_text().splitlines()
    assert set(asked) >= {"4.0 2 1 0", "4.0 2 1 1"}, set(asked)
    assert second["sample/rollout_count"] == 6


def test_a_function_reads_what_the_log_knows_of_a_rollout(tmp_path: Path) -> None:
    assert _lines(tmp_path, "own")[1]["sample/rollout_count"] == 6
