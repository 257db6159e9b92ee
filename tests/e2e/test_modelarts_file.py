"""ModelArts' file of the documents, run to a finished step on a CPU: a vision-language model on rows with images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import prepared
from tests.tiny_vision import picture, tiny_vision_model

pytestmark = pytest.mark.slow

FILE = Path(__file__).resolve().parents[1] / "seeds" / "modelarts_verl.yaml"
SMALL = (
    "af_output_dir=out", "backend_config.data.train_files=train.parquet", "backend_config.data.val_files=test.parquet",
    "backend_config.actor_rollout_ref.model.path=model", "backend_config.data.train_batch_size=2",
    "backend_config.actor_rollout_ref.actor.ppo_mini_batch_size=1", "backend_config.data.max_prompt_length=32",
    "backend_config.data.max_response_length=6", "backend_config.actor_rollout_ref.rollout.name=torch",
    "backend_config.trainer.n_gpus_per_node=0", "backend_config.trainer.logger=[console]",
    "backend_config.trainer.total_training_steps=1",
)  # fmt: skip


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows in the form of veRL's geometry3k."""
    return [
        {
            "data_source": "hiyouga/geometry3k",
            "prompt": [{"role": "user", "content": f"<image>x={n}"}],
            "images": [{"bytes": picture(n), "path": None}],
            "ability": "math", "reward_model": {"style": "rule", "ground_truth": str(n)},
            "extra_info": {"split": "train", "index": n},
        }
        for n in range(count)
    ]  # fmt: skip


def test_the_published_file_trains_a_step(tmp_path: Path) -> None:
    tiny_vision_model(tmp_path / "model", seed=1)
    for name, count in (("train", 4), ("test", 2)):
        pq.write_table(pa.Table.from_pylist(rows(count)), tmp_path / f"{name}.parquet")
    words = ("run", "--config", str(FILE), *SMALL)
    process = prepared.start(words, cwd=tmp_path, environment={})
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    (job,) = (path.parent for path in (tmp_path / "out").rglob("metrics.jsonl"))
    assert (job / "global_step_1" / "actor").is_dir(), "all outputs are below af_output_dir"
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    step = next(line for line in lines if line["actor"] == "trainer")
    assert step["sample/rollout_count"] == 8, "four rollouts of each of two prompts"
    assert step["actor/kl_coef"] == 0.01 and "actor/kl_loss" in step and "actor/reward_kl_penalty" not in step
    assert step["training/rollout_logprobs_diff_max"] < 2e-2
    assert step["timing_s/update_actor"] > 0 and step["timing_s/old_log_prob"] > 0 and step["timing_s/step"] > 0
    explored = next(line for line in lines if line["actor"] == "explorer")
    assert explored["timing_s/gen"] == explored["time/explore_step"] > 0
