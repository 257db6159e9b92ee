"""`trinity replay` of runs of other kinds: what they keep between steps is there again, to the same bits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from tests.e2e import test_datasets as datasets
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


DATASETS = {"dpo messages": "actor/dpo_loss", "sft": "actor/sft_loss", "cpt": "actor/sft_loss"}


def called(*words: object, status: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["replay", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def replayed(job: Path, step: int, *words: object) -> dict[str, Any]:
    output = called(job, "--step", step, "--json", *words)
    found: dict[str, Any] = json.loads(output[output.index("{\n") :])
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


@pytest.mark.parametrize("name", DATASETS)
def test_a_step_of_a_dataset_is_computed_again_bit_for_bit(name: str, tmp_path: Path) -> None:
    run = datasets.make_run(tmp_path, name).change(trainer__save_interval=2)
    datasets.finish(run, datasets.STEPS)
    # Step 3 is the first of the second epoch, and 4 is reached over it.
    for step, (weights, again) in {2: ("the model that the run began with", [1]), 4: ("global_step_2", [3])}.items():
        found = replayed(run.job, step)
        assert (found["weights"], found["trained_again"], found["differing"]) == (weights, again, {})
        assert {DATASETS[name], "actor/grad_norm"} <= found["logged"].keys() & found["run"].keys()
        assert found["run"]["actor/grad_norm"] > 1e-3 and len(found["samples"]) == 5
    assert "E4070" in called(run.job, "--step", 9, status=4)
    assert "E1923" in called(run.job, "--step", 2, "--set", "algorithm.advantage_fn=grpo", status=2)


def test_pairs_with_another_beta_have_the_loss_that_their_margins_say(tmp_path: Path) -> None:
    run, file = datasets.make_run(tmp_path, "dpo plaintext").change(trainer__save_interval=2), tmp_path / "4.parquet"
    datasets.finish(run, datasets.STEPS)
    found = replayed(run.job, 4, "--set", "algorithm.policy_loss_fn_args.beta=0.4", "-o", file)
    assert not found["differing"] and found["run"]["actor/dpo_loss"] > found["changed"]["actor/dpo_loss"]
    query = f"""select sum(logprob - ref_logprob) filter (side = 'chosen') - sum(logprob - ref_logprob)
        filter (side = 'rejected') from '{file}' where settings = 'changed' group by uid"""
    margins = [row[0] for row in duckdb.sql(query).fetchall()]
    for name, beta in (("run", 0.2), ("changed", 0.4)):
        expected = sum(math.log1p(math.exp(-beta * margin)) for margin in margins) / len(margins)
        assert len(margins) == 5 and found[name]["actor/dpo_loss"] == pytest.approx(expected, abs=1e-5)
        parts = [sample[name]["loss"] for sample in found["samples"]]
        assert sum(parts) == pytest.approx(found[name]["actor/dpo_loss"], abs=1e-6)
    rows = (tmp_path / "data.jsonl").read_text()
    (tmp_path / "data.jsonl").write_text(rows.replace("add", "sum", 1) + rows.splitlines()[0] + "\n")
    for step in (1, 3):  # from the first model, and from a checkpoint
        assert "E4073" in called(run.job, "--step", step, status=4)


def test_a_step_with_demonstrations_is_computed_again_bit_for_bit(
    tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = tmp_path / "expert.jsonl"
    expert.write_text("".join(json.dumps({"question": f"{a}+1=", "answer": str(a + 1)}) + "\n" for a in range(11)))
    monkeypatch.setenv("TRINITY_SFT_DATASET_PATH", str(expert))
    run = make_run(tmp_path, {"algorithm_type": "mix"}).change(trainer__save_interval=2, plugin_dirs=[str(plugins)])
    finish(run, plugins)
    epsilon = "algorithm.advantage_fn_args.epsilon"
    found = replayed(run.job, 3, "--set", f"{epsilon}=1e-6")
    assert (found["weights"], found["differing"]) == ("global_step_2", {}) and found["changed"] == found["run"]
    assert {"actor/expert/sft_loss", "actor/grad_norm"} <= found["logged"].keys() & found["run"].keys()
    assert sum(sample["uid"].startswith("sft_dataset/") for sample in found["samples"]) == len(found["samples"]) / 2
    found = replayed(run.job, 2, "--set", f"{epsilon}=1.0")
    assert (found["trained_again"], found["differing"]) == ([1], {})
    run_, changed = found["run"], found["changed"]
    assert abs(changed["critic/advantages/max"]) < abs(run_["critic/advantages/max"])
    assert changed["actor/expert/sft_loss"] == run_["actor/expert/sft_loss"], "the same demonstrations"
