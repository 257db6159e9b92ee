"""The veRL file of the documents, run to a finished step: GRPO and PPO, mini-batches, scorers, long prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests import prepared
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow

FILE = Path(__file__).resolve().parents[1] / "seeds" / "verl_ppo_trainer.yaml"
SMALL = (
    "data.train_files=[train.parquet]", "data.val_files=test.parquet", "actor_rollout_ref.model.path=model",
    "data.train_batch_size=4", "data.max_prompt_length=8", "data.max_response_length=6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_micro_batch_size=2",
    "actor_rollout_ref.ref.log_prob_micro_batch_size=2", "actor_rollout_ref.rollout.name=torch",
    "trainer.n_gpus_per_node=0", "trainer.logger=[console]", "+trainer.total_training_steps=1",
)  # fmt: skip
SCORER = """
def close(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return {"score": len(solution_str) / 100 + bonus, "acc": 1.0, "pred": f"{data_source} {extra_info['index']}"}
"""


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows in the form of veRL's gsm8k; the last prompt is longer than the others."""
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{n}+{n}=" + "?" * 9 * (n == count - 1)}],
            "ability": "math", "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
            "extra_info": {"split": "train", "index": n},
        }
        for n in range(count)
    ]  # fmt: skip


def run(folder: Path, *overrides: str) -> tuple[int, str]:
    """Run the file in a folder; return exit status and output."""
    words = ("run", "--config", str(FILE), *SMALL, *overrides)
    process = prepared.start(words, cwd=folder, environment={})
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verl")
    tiny_model(made / "model", "llama", seed=1, scale=3.0)
    for name, count in (("train", 7), ("test", 3)):
        pq.write_table(pa.Table.from_pylist(rows(count)), made / f"{name}.parquet")
    (made / "score.py").write_text(SCORER)
    return made


def trained(folder: Path) -> dict[str, Any]:
    """Return the metrics of the trainer's one step."""
    job = folder / "checkpoints" / "verl_examples" / "gsm8k"
    assert (job / "global_step_1" / "actor").is_dir()
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["actor"] == "trainer")


def test_grpo_with_a_function_of_the_users_own(folder: Path) -> None:
    status, output = run(
        folder, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", "data.filter_overlong_prompts=true",
        "custom_reward_function.path=score.py", "custom_reward_function.name=close",
        "+custom_reward_function.reward_kwargs.bonus=0.5", "trainer.default_local_dir=checkpoints",
    )  # fmt: skip
    assert status == 0, output
    assert "1 of 7 prompts have more than 8 tokens" in output, output
    assert "without use_kl_in_reward" in output, output
    step = trained(folder)
    assert 0.5 <= step["critic/score/mean"] <= 0.57 and step["sample/rollout_count"] == 8


def test_ppo_refuses_long_prompts_and_cuts_them_where_it_may(folder: Path) -> None:
    status, output = run(folder, "trainer.experiment_name=refused")
    assert status != 0 and "E4063" in output and "data.filter_overlong_prompts" in output
    status, output = run(folder, "data.truncation=middle", "trainer.experiment_name=ppo")
    assert status == 0, output
    metrics = folder / "checkpoints" / "verl_examples" / "ppo" / "metrics.jsonl"
    step = next(line for line in map(json.loads, metrics.read_text().splitlines()) if line["actor"] == "trainer")
    assert step["critic/vf_loss"] >= 0 and "critic/lr" in step


def test_the_seed_is_as_published() -> None:
    assert yaml.safe_load(FILE.read_text())["algorithm"]["kl_ctrl"] == {"type": "fixed", "kl_coef": 0.005}
