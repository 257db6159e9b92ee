"""Rollouts that are older than the weights: corrected, measured, and continued to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun

pytestmark = pytest.mark.slow

STEPS = 4
CASES: dict[str, dict[str, Any]] = {
    "weights of tokens": {"algorithm_type": "grpo", "rollout_correction": {"preset": "decoupled_token_is"}},
    "weights and rejection": {
        "algorithm_type": "rloo",
        "rollout_correction": {
            "preset": "decoupled_k3_rs_seq_tis", "rollout_is_batch_normalize": True, "rollout_rs_threshold": 0.05,
        },
    },
    "values of a critic": {
        "algorithm_type": "ppo",
        "rollout_correction": {"preset": "decoupled_geo_rs_token_tis", "rollout_rs_threshold": "0.9_1.1"},
    },
    "bypass": {
        "algorithm_type": "dapo",
        "rollout_correction": {"preset": "bypass_pg_geo_rs_token_tis", "rollout_rs_threshold": "0.9_1.1"},
    },
}  # fmt: skip


def _run(folder: Path, algorithm: dict[str, Any]) -> TinyRun:
    return make_run(folder, algorithm).change(synchronizer__sync_offset=2)


@pytest.mark.difference("`rollout_correction`")
@pytest.mark.parametrize("algorithm", CASES.values(), ids=CASES)
def test_a_corrected_run_learns_from_old_rollouts_and_continues(
    tmp_path: Path, plugins: Path, algorithm: dict[str, Any]
) -> None:
    whole, parts = _run(tmp_path / "whole", algorithm), _run(tmp_path / "parts", algorithm)
    finish(whole, plugins, steps=STEPS)
    finish(parts, plugins, steps=STEPS - 1)
    finish(parts, plugins, steps=STEPS)
    lines = whole.lines("trainer")
    assert [line["sample/staleness/max"] for line in lines] == [0, 1, 2, 2]
    assert [line["sample/staleness/min"] for line in lines] == [0, 1, 2, 2]
    assert [line["rollout_corr/k3_kl"] > 1e-5 for line in lines] == [False, True, True, True]
    if "token" in algorithm["rollout_correction"]["preset"]:
        assert lines[-1]["rollout_corr/rollout_is_max"] > 1.001
    if "rs" in algorithm["rollout_correction"]["preset"]:
        assert any(0 < line["rollout_corr/rollout_rs_masked_fraction"] < 1 for line in lines)
    assert max(line["actor/grad_norm"] for line in lines) > 1e-4
    assert final_weights(parts, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
