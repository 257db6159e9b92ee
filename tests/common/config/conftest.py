"""A catalogue with real names and arguments, and helpers that write a YAML file and read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trinity.catalogue import BUILT_IN
from trinity.common.config import Catalogue, Finding, Plan, examine
from trinity.common.config.catalogue import Contents
from trinity.utils.entry import Entry

MINIMAL = """\
project: p
name: n
model:
  model_path: /models/tiny
  max_model_len: 128
buffer:
  batch_size: 4
  explorer_input:
    taskset:
      name: train
      path: data.jsonl
      default_workflow_type: math_workflow
"""

_KL = {"adaptive": False, "kl_coef": 0.001, "target_kl": None, "horizon": None}


@pytest.fixture
def catalogue() -> Catalogue:
    return make_catalogue()


def make_catalogue() -> Catalogue:
    """Return names and arguments like those of the product."""
    tables: dict[str, Contents] = {
        "algorithm_type": {
            "sft": Entry(
                "x:S",
                {
                    "repeat_times": 1,
                    "policy_loss_fn": "sft",
                    "kl_loss_fn": "none",
                    "kl_penalty_fn": "none",
                    "entropy_loss_fn": "none",
                    "advantage_fn": None,
                },
                schema="sft",
            ),
            "dpo": Entry("x:D", {"repeat_times": 2, "policy_loss_fn": "sft", "kl_loss_fn": "none"}, schema="dpo"),
            "grpo": Entry(
                "x:G",
                {
                    "repeat_times": 8,
                    "advantage_fn": "grpo",
                    "policy_loss_fn": "ppo",
                    "kl_loss_fn": "k2",
                    "kl_penalty_fn": "none",
                    "entropy_loss_fn": "default",
                    "sample_strategy": "default",
                },
            ),
            "ppo": Entry(
                "x:C", {"repeat_times": 1, "advantage_fn": "ppo", "policy_loss_fn": "ppo", "kl_loss_fn": "k2"}
            ),
        },
        "advantage_fn": {
            "grpo": Entry("x:A", {"epsilon": 1e-6, "std_threshold": None}, scope="pipeline", compares=True),
            "ppo": Entry(
                "x:V", {"gamma": 1.0, "lam": 1.0}, needs=frozenset({"values", "token_level_rewards"}), scope="trainer"
            ),
        },
        "policy_loss_fn": {
            "ppo": Entry("x:P", {"clip_range": 0.2, "clip_range_low": None, "loss_agg_mode": "token-mean"}),
            "sft": Entry("x:F", {"loss_agg_mode": "token-mean"}),
        },
        "kl_fn": {name: Entry("x:K", _KL) for name in ("none", "k1", "k2", "k3", "low_var_kl", "abs")},
        "entropy_loss_fn": {name: Entry("x:E", {"entropy_coef": 0.0}) for name in ("default", "none")},
        "sample_strategy": {"default": Entry("x:D")},
    }
    ours = ("workflow", "reward_fn", "reward_model", "operator", "selector", "monitor")
    return Catalogue(tables | {kind: BUILT_IN.contents(kind) for kind in ours})


Examine = Callable[..., tuple[Plan, list[Finding]]]


@pytest.fixture
def examined(tmp_path: Path, catalogue: Catalogue) -> Examine:
    """Write YAML text to `run.yaml` and examine it with overrides."""

    def run(text: str, *overrides: str, schema_only: bool = False) -> tuple[Plan, list[Finding]]:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return examine(path, overrides, catalogue=catalogue, schema_only=schema_only, cwd=tmp_path)

    return run
