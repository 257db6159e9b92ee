"""Families that are computed by other ways than ours, from the command: `validate` says yes and `run` keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import families
from tests.e2e.plugin_texts import REWARD
from tests.e2e.test_algorithms import make_run
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_tokenizer
from trinity.launch.validation import check

DIFFERENCE = "training/rollout_logprobs_diff_max"
# Soft caps, scales and windows; sinks and experts; recurrent layers beside attention; latent attention and experts.
SOME = ("gemma2", "gpt_oss", "bamba", "deepseek_v3")


def run_of(folder: Path, family: str) -> TinyRun:
    """Return a run whose policy is a tiny model of a family, with prompts and answers longer than its window."""
    folder.mkdir()
    run = make_run(folder, {"algorithm_type": "grpo"})
    path = folder / family
    vocabulary = len(tiny_tokenizer(path))
    config = families.tiny_config(family, dropout=0.2, vocab_size=vocabulary, pad_token_id=0, eos_token_id=1)
    families.tiny_model(config).save_pretrained(path)
    run.plugin = REWARD
    return run.change(model__model_path=str(path), buffer__total_steps=2)


@pytest.mark.parametrize("family", SOME)
def test_what_is_sampled_is_what_is_trained(family: str, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", family)
    ended = run.finish()
    assert ended.status == 0, ended.output
    _, problems = check(tmp_path / "run" / "run.yaml", plugin_dirs=(tmp_path / "run" / "plugins",))
    assert not [problem for problem in problems if problem.is_error]
    found = run.lines("trainer")
    differences = [each[DIFFERENCE] for each in found if DIFFERENCE in each]
    assert len(differences) == 2 and max(differences) < 2e-4, differences
