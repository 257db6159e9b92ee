"""Advantage functions; a plugin adds its own with `@ADVANTAGE_FN.register_module("name")`.

The first seven work on groups of experiences in the pipeline, the others on the tensors of a batch in the trainer.
Names with the same maths share a class. `verl_` marks veRL's functions, some of whose names mean something else here;
those that are free are registered without it as well.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.algorithm.advantage_fn.formulas import ADVANTAGE_FORMULAS
from trinity.utils.registry import Entry

if TYPE_CHECKING:
    from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn as AdvantageFn
    from trinity.algorithm.advantage_fn.advantage_fn import GroupAdvantage as GroupAdvantage
    from trinity.algorithm.advantage_fn.token_advantage import TokenAdvantage as TokenAdvantage


def _entry(place: str, doc: str, needs: str = "", **args: Any) -> Entry:
    path, formula = f"trinity.algorithm.advantage_fn.{place}", ADVANTAGE_FORMULAS[place.partition(":")[2]]
    return Entry(path, args=args, needs=frozenset(needs.split()), doc=doc, formula=formula)


_GAE = _entry(
    "gae:GAEAdvantage", "whitened GAE, in the trainer (arXiv:1506.02438v6, eq. 16)", "values", gamma=1.0, lam=1.0
)
_RPP = _entry(
    "reinforce_plus_plus:REINFORCEPlusPlusAdvantage",
    "whitened reward to go, in the trainer (arXiv:2501.03262v9, eq. 4 and 5)",
    gamma=1.0,
)
_RPP_BASELINE = _entry(
    "reinforce_plus_plus:REINFORCEPlusPlusBaselineAdvantage",
    "whitened score - mean of the task, in the trainer (arXiv:2501.03262v9, eq. 6 and 7)",
)
_REMAX = _entry(
    "remax:REMAXAdvantage",
    "reward to go - reward of a greedy rollout, in the trainer (arXiv:2310.10505v3, section 4.2)",
    "reward_baselines",
)
_RLOO = _entry("rloo:RLOOAdvantage", "score - mean of the others, in the trainer (arXiv:2402.14740v2, section 2.3)")
_VERL_GRPO = _entry(
    "grpo_tokens:VerlGRPOAdvantage",
    "as grpo_verl; without the deviation Dr. GRPO (arXiv:2503.20783v2, section 3.2)",
    epsilon=1e-6,
    norm_adv_by_std_in_grpo=True,
)
_PASSK = _entry(
    "grpo_tokens:GRPOPassKAdvantage",
    "best - second best of the task, in the trainer (arXiv:2503.19595v2, section 3.1)",
    epsilon=1e-6,
    norm_adv_by_std_in_grpo=True,
)
_GDPO = _entry(
    "grpo_tokens:GDPOAdvantage",
    "each reward component normalised by itself, in the trainer (arXiv:2601.05242)",
    "reward_components",
    epsilon=1e-6,
    norm_adv_by_std_in_grpo=True,
    gdpo_reward_weights=None,
    gdpo_reward_keys=None,
)
_OPO = _entry("opo:OPOAdvantage", "score - length-weighted mean, in the trainer (arXiv:2505.23585v2, section 3.2)")
_GPG = _entry(
    "gpg:GPGAdvantage", "score - mean, scaled up for empty signals, in the trainer (arXiv:2504.02546v4, eq. 6 and 7)"
)
_OTB = _entry(
    "optimal_token_baseline:OptimalTokenBaselineAdvantage",
    "reward to go - optimal baseline of the position, in the trainer",
    "sum_pi_squared",
)
_TIR_OTB = _entry(
    "optimal_token_baseline:TIROptimalTokenBaselineAdvantage",
    "as optimal_token_baseline, positions counted without tool output",
    "sum_pi_squared",
)

ADVANTAGE_CONTENTS: dict[str, Entry] = {
    "grpo": _entry(
        "grpo:GRPOGroupedAdvantage",
        "(reward - group mean) / (group standard deviation + epsilon) (arXiv:2402.03300v3, section 4.1.2)",
        epsilon=1e-6,
        std_threshold=None,
        duplicate_experiences=False,
        rank_penalty=None,
        std_cal_level="group",
    ),
    "step_wise_grpo": _entry(
        "step_wise_grpo:StepWiseGRPOAdvantage",
        "grpo on the last step's reward, for all steps of a rollout (arXiv:2402.03300v3, section 4.1.2)",
        epsilon=1e-6,
        enable_step_norm=False,
        std_threshold=None,
        std_cal_level="group",
    ),
    "gigpo": _entry(
        "gigpo:GiGPOAdvantage",
        "episode advantage + omega times advantage among steps of equal state (arXiv:2505.10978v3, eq. 3, 5, 7 and 8)",
        omega=1.0,
        gamma=1.0,
        fnorm="none",
        epsilon=1e-6,
        step_reward_key="step_reward",
        env_state_hash_key="env_state_hash",
    ),
    "reinforce": _entry("reinforce:REINFORCEGroupAdvantage", "the reward"),
    "opmd": _entry(
        "opmd:OPMDGroupAdvantage",
        "reward - mean or log-mean-exp of the task (arXiv:2501.12599v4, section 2.3.2)",
        opmd_baseline="mean",
        tau=1.0,
    ),
    "asymre": _entry(
        "asymre:ASYMREGroupAdvantage", "reward - (mean + shift) (arXiv:2506.20520v2, eq. 4)", baseline_shift=-0.1
    ),
    "rec": _entry(
        "rec:RECGroupedAdvantage",
        "reward - mean, optionally without surplus negatives (arXiv:2509.24203)",
        epsilon=1e-6,
        std_normalize=False,
        drop=None,
    ),
    "ppo": _GAE,
    "reinforceplusplus": _RPP,
    "remax": _REMAX,
    "rloo": _RLOO,
    "grpo_verl": _entry(
        "grpo_tokens:GRPOAdvantage", "grpo, in the trainer (arXiv:2402.03300v3, section 4.1.2)", epsilon=1e-6
    ),
    "opmd_verl": _entry("opmd:OPMDAdvantage", "opmd, in the trainer", opmd_baseline="mean", tau=1.0),
    "asymre_verl": _entry("asymre:ASYMREAdvantage", "asymre, in the trainer", baseline_shift=-0.1),
    "on_policy_distill": _entry(
        "distillation:OnPolicyDistillAdvantage",
        "teacher - policy log-probability, in the trainer (arXiv:2306.13649)",
        "teacher_logprobs",
        kl_coef=1.0,
    ),
    "jsd": _entry(
        "distillation:JSDAdvantage",
        "minus the Jensen-Shannon estimate of the token, in the trainer (arXiv:2306.13649v3, eq. 1)",
        "teacher_logprobs",
        lambda_coef=0.5,
        kl_coef=1.0,
        temperature=1.0,
        chunk_size=None,
        estimator="value",
    ),
    "clipb": _entry(
        "entropy_clip:ClipBAdvantage",
        "grpo_verl without the negative tokens that would change the entropy most (arXiv:2602.03392)",
        "entropys",
        epsilon=1e-6,
        mu=2.5,
    ),
    "clipv": _entry(
        "entropy_clip:ClipVAdvantage",
        "as clipb, against the mean over the vocabulary (arXiv:2602.03392)",
        "entropys necs",
        epsilon=1e-6,
        mu=8.5,
        max_frac=1e-4,
    ),
    "verl_gae": _GAE,
    "verl_grpo": _VERL_GRPO,
    "verl_grpo_vectorized": _VERL_GRPO,
    "verl_grpo_passk": _PASSK,
    "verl_gdpo": _GDPO,
    "verl_rloo": _RLOO,
    "verl_rloo_vectorized": _entry("rloo:RLOOVectorizedAdvantage", "rloo, where a group of one gets 0"),
    "verl_remax": _REMAX,
    "verl_opo": _OPO,
    "verl_gpg": _GPG,
    "verl_reinforce_plus_plus": _RPP,
    "verl_reinforce_plus_plus_baseline": _RPP_BASELINE,
    "verl_optimal_token_baseline": _OTB,
    "verl_tir_optimal_token_baseline": _TIR_OTB,
    "gae": _GAE,
    "grpo_passk": _PASSK,
    "gdpo": _GDPO,
    "opo": _OPO,
    "gpg": _GPG,
    "reinforce_plus_plus_baseline": _RPP_BASELINE,
    "optimal_token_baseline": _OTB,
    "tir_optimal_token_baseline": _TIR_OTB,
}

_LAZY = {
    "AdvantageFn": "trinity.algorithm.advantage_fn.advantage_fn",
    "GroupAdvantage": "trinity.algorithm.advantage_fn.advantage_fn",
    "TokenAdvantage": "trinity.algorithm.advantage_fn.token_advantage",
}

__all__ = ["ADVANTAGE_CONTENTS", "AdvantageFn", "GroupAdvantage", "TokenAdvantage"]


def __getattr__(name: str) -> Any:
    """Import a base class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
