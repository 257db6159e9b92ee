"""What the tables of contents hold beyond what the trainer can use is refused, never silently accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN
from trinity.catalogue import BUILT_IN
from trinity.common.config import Problem, examine
from trinity.common.config.available import LATER_NAMES, is_served

SERVED = {
    "algorithm_type": "asymre, cispo, clip_cov, cpt, dapo, dpo, dr_grpo, geo_mean, gigpo, gpg, grpo, grpo_passk, "
    "grpo_verl, gspo, jsd, kl_cov, mix, mix_chord, multi_step_grpo, on_policy_distill, opmd, opo, ppo, raft, rec, "
    "reinforce_plus_plus_baseline, reinforceplusplus, remax, rloo, sapo, sft, sppo, topr",
    "advantage_fn": "asymre, asymre_verl, gae, gdpo, gigpo, gpg, grpo, grpo_passk, grpo_verl, jsd, on_policy_distill, "
    "opmd, opmd_verl, opo, optimal_token_baseline, ppo, rec, reinforce, reinforce_plus_plus_baseline, "
    "reinforceplusplus, remax, rloo, step_wise_grpo, tir_optimal_token_baseline, verl_gae, verl_gdpo, verl_gpg, "
    "verl_grpo, verl_grpo_passk, verl_grpo_vectorized, verl_opo, verl_optimal_token_baseline, "
    "verl_reinforce_plus_plus, verl_reinforce_plus_plus_baseline, verl_remax, verl_rloo, verl_rloo_vectorized, "
    "verl_tir_optimal_token_baseline",
    "policy_loss_fn": "bypass_mode, cispo, clip_cov, dpo, dppo_kl, dppo_tv, dro, geo_mean, gpg, gspo, "
    "importance_sampling, kl_cov, mix, mix_chord, opmd, ppo, rec, sapo, sft, sft_is, sft_phi, sppo, topr, "
    "verl_bypass_mode, verl_cispo, verl_clip_cov, verl_dppo_kl, verl_dppo_tv, verl_dro, verl_geo_mean, verl_gpg, "
    "verl_gspo, verl_kl_cov, verl_sapo, verl_vanilla",
    "kl_fn": "abs, abs+, corrected_k3, full, k1, k1+, k2, k2+, k3, k3+, kl, kl+, low_var_kl, "
    "low_var_kl+, mse, mse+, none",
    "entropy_loss_fn": "default, mix, none",
}
KEYS = {
    "algorithm_type": ALGORITHM_TYPE,
    "advantage_fn": ADVANTAGE_FN,
    "policy_loss_fn": POLICY_LOSS_FN,
    "kl_loss_fn": KL_FN,
    "kl_penalty_fn": KL_FN,
    "entropy_loss_fn": ENTROPY_LOSS_FN,
}
LATER = [
    (key, name)
    for key, registry in KEYS.items()
    for name in sorted({*registry, *LATER_NAMES[registry.name]})
    if not is_served(registry.name, name)
]


def _problems(folder: Path, key: str, name: str) -> list[Problem]:
    path = folder / "run.yaml"
    path.write_text(f"{MINIMAL}algorithm:\n  {key}: '{name}'\n", encoding="utf-8")
    return [p for p in examine(path, (), catalogue=BUILT_IN, cwd=folder, schema_only=True)[1] if p.code != "W1301"]


@pytest.mark.parametrize(("key", "name"), LATER)
def test_function_of_a_later_version_is_answered_with_those_of_this_one(tmp_path: Path, key: str, name: str) -> None:
    problems = _problems(tmp_path, key, name)
    problem = next(p for p in problems if p.key == f"algorithm.{key}")
    assert problem.code == "E1900" and problem.suggestion == f"available: {SERVED[KEYS[key].name]}"
    assert problem.message.startswith(f"`algorithm.{key}: {name}` is not available yet in this version")


@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [("algorithm_type", "grop", "grpo"), ("algorithm_type", "gigppo", "gigpo"), ("advantage_fn", "rlo", "rloo"),
     ("kl_loss_fn", "low_vra_kl", "low_var_kl"), ("entropy_loss_fn", "defalt", "default")],
)  # fmt: skip
def test_typing_error_is_answered_with_what_was_meant(tmp_path: Path, key: str, name: str, meant: str) -> None:
    problem = next(p for p in _problems(tmp_path, key, name) if p.key == f"algorithm.{key}")
    assert problem.suggestion == f"did you mean `{meant}`?"
    assert problem.message.endswith(f"known: {SERVED[KEYS[key].name]}")
