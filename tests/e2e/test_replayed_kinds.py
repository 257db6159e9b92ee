"""`trinity replay` of runs of other kinds: what they keep between steps is there again, to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.e2e.test_algorithms import VARIANTS, finish, make_run
from tests.e2e.test_critic import warming_up
from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app

pytestmark = pytest.mark.slow

LORA = [{"lora_rank": 4, "lora_alpha": 8}]
KINDS: dict[str, tuple[Callable[[Path], TinyRun], str]] = {
    "a critic, warmed up, in shuffled passes": (warming_up, "critic/vf_loss"),
    "an adapter": (lambda f: make_run(f, {"algorithm_type": "grpo"}).change(model__lora_configs=LORA), "actor/pg_loss"),
    "rollouts of several steps": (lambda f: make_run(f, {"algorithm_type": "multi_step_grpo"}), "actor/pg_loss"),
    "an adaptive divergence in the reward": (lambda f: make_run(f, VARIANTS["kl in the reward"]), "actor/pg_loss"),
}


def replayed(job: Path, step: int) -> dict[str, Any]:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["replay", str(job), "--step", str(step), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output[done.output.index("{\n") :])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_computed_again_bit_for_bit(kind: str, tmp_path: Path, plugins: Path) -> None:
    make, metric = KINDS[kind]
    run = make(tmp_path).change(plugin_dirs=[str(plugins)])
    finish(run, plugins)
    found = replayed(run.job, 3)
    assert (found["weights"], found["trained_again"], found["differing"]) == ("global_step_2", [], {})
    compared = found["logged"].keys() & found["run"].keys()
    assert {metric, "actor/grad_norm"} <= compared and found["run"]["actor/grad_norm"] > 1e-4
