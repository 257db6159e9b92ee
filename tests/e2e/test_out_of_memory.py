"""Out of memory: a real allocation that fails ends the run with a table and the keys to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.short_run import SHORT, ShortRun
from trinity.common.errors import ExitCode

pytestmark = pytest.mark.slow

# 2 ** 45 numbers of four bytes are more than a process can address, whatever the machine holds.
PLUGIN = """
import torch
from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.ppo import PPOPolicyLossFn

@POLICY_LOSS_FN.register_module("hungry")
class Hungry(PPOPolicyLossFn):
    num_calls = 0

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        return super().__call__(*args, **kwargs) if self.num_calls == 1 else torch.ones(2 ** 45)
"""
TRAINER_KEYS = (
    "ppo_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking",
)


def test_the_trainer_ends_with_the_memory_table_and_the_keys(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "hungry.py").write_text(PLUGIN)
    overrides = (*SHORT, "stages[0].trainer.total_steps=1", "stages[1].algorithm.policy_loss_fn=hungry")
    run = ShortRun.make(tmp_path / "quickstart", overrides=overrides)
    status, output = run.finish("--plugin-dir", str(plugins))
    assert status == ExitCode.RUNTIME, output
    message = output[output.index("error[E5700]: ") :]
    assert "out of memory on cpu in training step 2" in message
    for row in ("parameters", "optimizer state", "memory of the device"):
        assert any(line.startswith(f"  {row} ") and line.endswith(" MiB") for line in message.splitlines()), row
    assert [key for key in TRAINER_KEYS if key not in message] == []
    assert "Traceback" not in output
    resume, failed = output.splitlines()[-2:]
    assert resume.startswith("resume with: ") and " trinity run --config " in resume
    assert failed.startswith("failed with exit code 5: [E5700] ") and failed.endswith("/log")


def test_the_explorer_ends_with_its_own_keys(tmp_path: Path) -> None:
    # The positions of so long a sequence need more memory than a process can address.
    overrides = (*SHORT, "stages[0].trainer.total_steps=1", "model.max_response_tokens=100000000000000")
    run = ShortRun.make(tmp_path / "quickstart", overrides=overrides)
    status, output = run.finish()
    assert status == ExitCode.RUNTIME, output
    message = output[output.index("error[E5700]: ") :]
    assert "the explorer's engine ran out of memory" in message
    rows = [line for line in message.splitlines() if line.startswith("  memory of the device ")]
    assert len(rows) == 1 and rows[0].endswith(" MiB")
    assert "explorer.rollout_model.tensor_parallel_size" in message and "model.max_model_len" in message
    assert "Traceback" not in output
