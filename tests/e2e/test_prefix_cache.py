"""Conversations train to the same weights with and without the engine's prefix cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.contract.plugin_run import run_plugin, training_lines

pytestmark = pytest.mark.slow

PLUGIN = '''
from trinity.common.workflows import WORKFLOWS, Workflow


@WORKFLOWS.register_module("turns")
class Turns(Workflow):
    """Four turns after a long beginning, each on the tokens of those before."""

    def run(self):
        done, tokens = [], [5, 6, 7, 8] * 20 + [ord(letter) % 50 + 3 for letter in self.task.task_desc]
        for turn in range(4):
            (exp,) = self.model.generate([tokens], max_tokens=20, temperature=1.0)
            exp.eid.step, exp.reward = turn, sum(map(str.isdigit, exp.response_text)) / 20
            done.append(exp)
            tokens = exp.tokens.tolist() + [9 + turn] * 11
        return done
'''


def _trained(folder: Path, **changes: Any) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Any]]:
    """Return the weights at the end, the metrics of training and the last ones of the explorer."""
    settings = {
        "deterministic": True,
        "model": {"model_path": "model", "max_model_len": 256, "max_prompt_tokens": 230, "max_response_tokens": 20},
        "buffer__explorer_input__default_workflow_type": "turns",
    }
    run = run_plugin(folder, PLUGIN, **settings | changes)
    weights = load_file(run.job / "global_step_2/actor/huggingface/model.safetensors")
    (explored,) = [line for line in run.lines("explorer") if "perf/engine/samples" in line][-1:]
    return weights, training_lines(run), explored


def test_the_cache_changes_no_bit_of_the_weights(tmp_path: Path) -> None:
    key = "explorer__rollout_model"
    wanted, lines, without = _trained(
        tmp_path / "without", **{key: {"dtype": "float32", "enable_prefix_caching": False}}
    )
    small = {"dtype": "float32", "prefix_cache_bytes": 50_000}  # three blocks
    for name, model in (("with", {"dtype": "float32"}), ("small", small)):
        weights, others, figures = _trained(tmp_path / name, **{key: model})
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[tensor], wanted[tensor]) for tensor in wanted)
        for metric in ("actor/final_loss", "actor/grad_norm", "response_length/mean"):
            assert [line[metric] for line in others] == [line[metric] for line in lines]
        assert "perf/engine/prefix_hit_tokens" not in without
        assert figures["perf/engine/prefix_hit_tokens"] > 0
        assert (figures["perf/engine/prefix_evicted_blocks"] > 0) == (name == "small")
        assert figures["perf/engine/prompt_tokens"] == without["perf/engine/prompt_tokens"]
    before = load_file(tmp_path / "with" / "model" / "model.safetensors")
    assert any(not torch.equal(wanted[tensor], before[tensor]) for tensor in before), "something was learned"
