"""The gradient probe: every served algorithm, settings that have no effect and why, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun
from trinity.algorithm import ALGORITHM_TYPE
from trinity.catalogue import builtin_catalogue
from trinity.cli.app import app
from trinity.common.config import ConfigErrors
from trinity.common.errors import ExitCode
from trinity.explain.probe import ProbeReport, ProbeRow, probe_stage
from trinity.explain.probe_settings import Setting, candidates

PLUGIN = '''
"""A loss of which one argument does nothing."""

from trinity.algorithm import POLICY_LOSS_FN, PolicyLossFn


@POLICY_LOSS_FN.register_module("with_a_dead_setting")
class WithADeadSetting(PolicyLossFn):
    """The weighted likelihood of the counted tokens; it also wants a number that only a workflow knows."""

    def __init__(self, backend="verl", scale=1.0, bonus=0.5):
        super().__init__(backend)
        self.scale, self.bonus = scale, bonus

    def __call__(self, logprob, action_mask, advantages, difficulty, **kwargs):
        loss = -(self.scale * difficulty[:, None] * advantages * logprob)[action_mask].mean()
        return loss, {"pg_loss": loss.item()}
'''
# The setting that an algorithm is known for; the others are known for what all have.
MAIN = {
    "asymre": "baseline_shift", "cispo": "clip_range_high", "clip_cov": "clip_ratio", "dapo": "clip_range_high",
    "dr_grpo": "norm_adv_by_std_in_grpo", "geo_mean": "clip_ratio", "grpo": "clip_range", "grpo_verl": "clip_range",
    "grpo_passk": "norm_adv_by_std_in_grpo", "gspo": "std_cal_level", "kl_cov": "ppo_kl_coef", "opmd": "opmd_baseline",
    "rec": "clip_mode", "reinforceplusplus": "gamma", "sapo": "tau_pos", "sppo": "epsilon",
    "topr": "advantage_threshold", "mix": "mu", "mix_chord": "mu_valley", "dpo": "beta", "ppo": "clip_range",
    "on_policy_distill": "kl_coef", "jsd": "lambda_coef", "gigpo": "clip_range", "multi_step_grpo": "clip_range",
}  # fmt: skip
SFT_DATA = {
    "name": "d", "storage_type": "file", "path": "train.jsonl", "format": {"prompt_type": "plaintext"},
}  # fmt: skip


def written(folder: Path, algorithm: dict[str, Any], **changes: Any) -> Path:
    """Write a YAML file and what it refers to; return it."""
    run = TinyRun(folder)
    run.change(model__model_path=str(folder / "model"), checkpoint_root_dir=str(folder / "out"), **changes)
    run.change(buffer__explorer_input__taskset__path=str(folder / "train.jsonl"))
    name = algorithm["algorithm_type"]
    is_rollout = ALGORITHM_TYPE.get(name).schema == "experience"
    run.tree["algorithm"] = ({"repeat_times": 4} if is_rollout else {}) | algorithm
    if not is_rollout:
        run.tree["mode"] = "train"
        del run.tree["explorer"], run.tree["synchronizer"]
        run.tree["buffer"] = {"total_steps": 2, "train_batch_size": 4, "trainer_input": {"experience_buffer": SFT_DATA}}
    if name in ("mix", "mix_chord"):
        run.change(buffer__trainer_input__auxiliary_buffers={"sft_dataset": SFT_DATA})
    if name == "raft":
        run.change(data_processor__experience_pipeline__operators=[{"name": "reward_filter"}])
    if name in ("jsd", "on_policy_distill"):
        run.change(explorer__auxiliary_models=[{"model_path": str(folder / "model")}])
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(run.tree))
    return file


def probed(file: Path, *names: str, overrides: tuple[str, ...] = ()) -> ProbeReport:
    """Return the report on the settings with these last parts of their keys, of all without any."""
    return probe_stage(
        file, overrides, catalogue=builtin_catalogue(), index=0, only=lambda s: not names or s.name in names
    )


def row_of(report: ProbeReport, name: str) -> ProbeRow:
    (row,) = [row for row in report.rows if row.key.rpartition(".")[2] == name]
    return row


@pytest.mark.parametrize("name", list(ALGORITHM_TYPE))
def test_the_main_settings_of_every_algorithm_move_something(tmp_path: Path, name: str) -> None:
    report = probed(written(tmp_path, {"algorithm_type": name}), "loss_agg_mode", MAIN.get(name, ""))
    assert report.failure == "" and report.gradient_norm is not None and report.gradient_norm > 1e-3
    assert len(report.rows) == 1 + (name in MAIN) + (name == "ppo"), "the critic has an aggregation of its own"
    fixed = {"geo_mean", "dpo"}  # their aggregation is part of the loss, and there is no other term
    inert = {row.key for row in report.rows if row.is_inert}
    assert inert <= ({"algorithm.loss_agg_mode"} if name in fixed else set())


def test_the_components_of_a_reward_are_as_many_as_are_named(tmp_path: Path) -> None:
    args = {"gdpo_reward_keys": ["a", "b", "c"], "gdpo_reward_weights": [1.0, 0.5, 0.25]}
    algorithm = {"algorithm_type": "grpo_verl", "advantage_fn": "gdpo", "advantage_fn_args": args}
    report = probed(written(tmp_path, algorithm), "clip_range")
    assert report.failure == "" and report.gradient_norm is not None and report.gradient_norm > 1e-3


def test_a_setting_that_another_hides_is_named_with_the_other(tmp_path: Path) -> None:
    args = {"clip_range": 0.3, "clip_range_low": 0.2, "clip_range_high": 0.28}
    file = written(tmp_path, {"algorithm_type": "dapo", "policy_loss_fn_args": args})
    names = ("clip_range", "clip_range_low", "clip_range_high", "entropy_loss_fn", "entropy_coef")
    report = probed(file, *names, overrides=("algorithm.entropy_loss_fn_args.entropy_coef=0.0",))
    assert {row.key.rpartition(".")[2] for row in report.rows if row.is_inert} == {"clip_range", "entropy_loss_fn"}
    assert row_of(report, "clip_range").reason == "`clip_range_low`, `clip_range_high` take its place"
    assert row_of(report, "entropy_loss_fn").reason == "its `entropy_coef` is 0"
    assert row_of(report, "entropy_coef").gradient > 1e-3


def test_the_choice_that_makes_a_setting_matter_is_named(tmp_path: Path) -> None:
    args = {"delta_sequence_masking": 0.2}
    report = probed(written(tmp_path, {"algorithm_type": "grpo", "policy_loss_fn_args": args}), *args)
    reason = row_of(report, "delta_sequence_masking").reason
    assert reason == "it matters only with `enable_sequence_masking: true`"


def test_ratios_that_are_always_1_are_the_reason_only_with_one_optimizer_step(tmp_path: Path) -> None:
    algorithm = {"algorithm_type": "grpo", "bypass_old_logprobs": False, "policy_loss_fn_args": {"clip_range": 0.1}}
    one = probed(written(tmp_path, algorithm), "clip_range")
    assert row_of(one, "clip_range").is_inert and "every ratio is 1" in row_of(one, "clip_range").reason
    twice = "trainer.trainer_config.actor_rollout_ref.actor.ppo_epochs=2"
    assert not row_of(probed(tmp_path / "run.yaml", "clip_range", overrides=(twice,)), "clip_range").is_inert


def test_a_correction_of_old_rollouts_is_probed_with_its_bounds(tmp_path: Path) -> None:
    correction = {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}
    algorithm = {"algorithm_type": "grpo", "bypass_old_logprobs": False, "rollout_correction": correction}
    report = probed(written(tmp_path, algorithm), *correction)
    assert len(report.rows) == 2 and not any(row.is_inert for row in report.rows)
    assert row_of(report, "rollout_is_threshold").perturbed == "0.625_2.5"


def test_an_adapter_is_moved_away_from_its_zeros(tmp_path: Path) -> None:
    lora = [{"name": "a", "lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}]
    report = probed(written(tmp_path, {"algorithm_type": "grpo"}, model__lora_configs=lora), "kl_coef")
    assert row_of(report, "kl_coef").gradient > 1e-7, "policy and reference differ"


def test_the_settings_of_a_correction_move_something(tmp_path: Path) -> None:
    correction = {"preset": "decoupled_k3_rs_token_tis", "rollout_is_threshold": 1.01, "rollout_rs_threshold": 0.2}
    file = written(tmp_path, {"algorithm_type": "grpo", "rollout_correction": correction})
    report = probed(file, "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs_threshold")
    assert len(report.rows) == 4 and not [row.key for row in report.rows if row.is_inert or row.gradient is None]


@pytest.mark.nightly
def test_the_value_loss_of_a_critic_is_probed_as_well(tmp_path: Path) -> None:
    critic = "trainer.trainer_config.critic"
    file = written(tmp_path, {"algorithm_type": "ppo"})
    once = probed(file, "cliprange_value", overrides=(f"{critic}.cliprange_value=0.02",))
    (row,) = once.rows
    assert row.key == f"{critic}.cliprange_value" and row.is_inert and row.is_written
    assert row.reason.startswith("the critic makes one optimizer step a batch")
    epochs = f"{critic}.ppo_epochs=2"
    assert not row_of(probed(file, "cliprange_value", overrides=(epochs,)), "cliprange_value").is_inert
    modes = [row for row in probed(file, "loss_agg_mode").rows if row.key == f"{critic}.loss_agg_mode"]
    assert len(modes) == 1 and not modes[0].is_inert and modes[0].gradient > 1e-3


def test_the_probe_repeats_and_what_it_writes_is_removed(tmp_path: Path) -> None:
    file = written(tmp_path, {"algorithm_type": "grpo_verl", "kl_penalty_fn": "k1", "kl_loss_fn": "none"})
    before = sorted(path for path in tmp_path.rglob("*"))
    first, second = (probed(file, "kl_penalty_fn", "epsilon") for _ in range(2))
    assert first == second and not row_of(first, "kl_penalty_fn").is_inert
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_model_that_is_not_there_is_replaced_by_a_small_one(tmp_path: Path) -> None:
    file = written(tmp_path, {"algorithm_type": "grpo"})
    # Entries that are changed in the run's model need not be in the small one.
    changed = "trainer.trainer_config.actor_rollout_ref.model.override_config={n_positions: 99}"
    report = probed(file, "clip_range", overrides=("model.model_path=/nowhere", changed))
    assert report.model == "two random layers of llama" and not row_of(report, "clip_range").is_inert
    with pytest.raises(ConfigErrors, match="E1203"):
        probed(file, overrides=("algorithm.clip=1",))


def test_values_to_try_are_others_and_the_near_one_comes_first() -> None:
    assert candidates(Setting("a.b", 0.2))[0] == 0.25 and 0.2 not in candidates(Setting("a.b", 0.2))
    assert candidates(Setting("a.b", 0.0)) == [0.1, 1.0]
    assert candidates(Setting("a.b", 1e-6))[:2] == [1.25e-6, 5e-7]
    assert candidates(Setting("a.k", 2)) == [3, 4, 7, 1] and candidates(Setting("a.b", True)) == [False]
    assert "none" not in candidates(Setting("a.weight", "none")) and candidates(Setting("a.step_key", "x")) == []


def test_validate_finds_a_planted_dead_setting_and_ends_with_0(tmp_path: Path) -> None:
    algorithm = {"algorithm_type": "grpo", "policy_loss_fn": "with_a_dead_setting"}
    file = written(tmp_path, algorithm | {"policy_loss_fn_args": {"bonus": 0.7}, "kl_loss_fn": "none"})
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "dead.py").write_text(PLUGIN)
    words = [sys.executable, "-m", "trinity", "validate", "-c", str(file), "--plugin-dir", str(tmp_path / "plugins")]
    ended = subprocess.run([*words, "--probe", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == ExitCode.DONE, ended.stderr
    shown = json.loads(ended.stdout)
    (warning,) = [problem for problem in shown["problems"] if problem["code"] == "W1910"]
    assert warning["key"] == "algorithm.policy_loss_fn_args.bonus" and warning["line"] and shown["valid"]
    assert "the function may not read it" in warning["message"]
    rows = {row["key"]: row for row in shown["probe"][0]["settings"]}
    assert rows["algorithm.policy_loss_fn_args.bonus"]["moves_nothing"]
    assert rows["algorithm.policy_loss_fn_args.scale"]["gradient_change"] == pytest.approx(0.25, rel=1e-3)


def test_validate_prints_the_table_below_the_derived_values(tmp_path: Path) -> None:
    file = written(tmp_path, {"algorithm_type": "asymre", "advantage_fn_args": {"baseline_shift": -0.2}})
    words = ["validate", "-c", str(file), "--probe", "--set", "algorithm.bypass_old_logprobs=false"]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, words)
    assert result.exit_code == ExitCode.DONE, result.output
    (line,) = [line for line in result.output.splitlines() if "baseline_shift  " in line and "->" not in line]
    assert line.split()[1:3] == ["-0.2", "-0.25"]
    assert "NO EFFECT" in result.output and result.output.rstrip().endswith("run.yaml: valid, 1 warning")
    refused = CliRunner().invoke(app, [*words, "--set", "algorithm.repeat_times=1"])
    assert refused.exit_code == ExitCode.USAGE and "probe:" not in refused.output


def test_a_loss_that_is_not_finite_on_the_dry_batch_is_a_warning(tmp_path: Path) -> None:
    file = written(tmp_path, {"algorithm_type": "grpo"})
    result = CliRunner().invoke(app, ["validate", "-c", str(file), "--probe", "--set", "model.temperature=1.0e-42"])
    assert result.exit_code == ExitCode.DONE, result.output
    assert "W1911" in result.output and "is not finite" in result.output
