"""Policy losses: the table of contents, one page each. Names with `verl_` aggregate by veRL's convention."""

from __future__ import annotations

import importlib
from typing import Any

from trinity.algorithm.policy_loss_fn.formulas import POLICY_LOSS_FORMULAS
from trinity.utils.registry import Entry

_HERE = "trinity.algorithm.policy_loss_fn"
_TOKEN_MEAN: dict[str, Any] = {"loss_agg_mode": "token-mean"}
_SEQ_MEAN: dict[str, Any] = {"loss_agg_mode": "seq-mean-token-mean"}
_CLIP_RANGE: dict[str, Any] = {"clip_range": 0.2, "clip_range_low": None, "clip_range_high": None}
_CLIP_RATIO: dict[str, Any] = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None}
_PPO: dict[str, Any] = {
    **_CLIP_RANGE,
    "clip_ratio_c": 3.0,
    **_TOKEN_MEAN,
    "enable_sequence_masking": False,
    "delta_sequence_masking": 0.1,
    "fallback_to_policy_gradient": False,
}
_CISPO: dict[str, Any] = {
    "clip_range_low": 1.0,
    "clip_range_high": 0.28,
    "enable_mask_clip": False,
    "mask_clip_range_low": 1.0,
    "mask_clip_range_high": 0.28,
    **_TOKEN_MEAN,
}
_REC: dict[str, Any] = {
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "epsilon_low_prime": 0.6,
    "epsilon_high_prime": 2.0,
    "clip_mode": "none",
    "weight": "none",
    "regularizer": "none",
    "regularizer_coef": 0.0,
    "temp": 1.0,
}
_MIXED: dict[str, Any] = {
    **_CLIP_RANGE,
    "use_dynamic_bsz": False,
    "ppo_mini_batch_size": 1,
    "ppo_micro_batch_size_per_gpu": 1,
    "ngpus_trainer": 1,
    "train_batch_size_usual": 1,
    "train_batch_size_expert": 1,
    **_TOKEN_MEAN,
    "sft_loss_agg_mode": None,
    "grpo_loss_agg_mode": None,
}
_CHORD_MU: dict[str, Any] = {"mu_warmup_steps": 0, "mu_decay_steps": 0, "mu_peak": 0.1, "mu_valley": 0.1}
_CLIP_COV: dict[str, Any] = {"clip_cov_ratio": 2e-4, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0}
_BYPASS: dict[str, Any] = {
    "loss_type": "ppo_clip",
    "rollout_is": None,
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": False,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
    **_CLIP_RATIO,
    "clip_ratio_c": 3.0,
    **_TOKEN_MEAN,
}
_ADVANTAGES = frozenset({"advantages"})
_RATIO = frozenset({"advantages", "old_logprob"})
_EXPERT = frozenset({"advantages", "old_logprob", "expert_mask"})


# The losses that multiply the loss of a token by its weight of `algorithm.rollout_correction`.
_WEIGHTED = frozenset({
    "PPOPolicyLossFn", "GSPOPolicyLossFn", "CISPOPolicyLossFn", "SAPOPolicyLossFn", "VerlVanillaPolicyLossFn",
    "VerlGSPOPolicyLossFn", "VerlCISPOPolicyLossFn", "VerlSAPOPolicyLossFn", "VerlGPGPolicyLossFn",
    "VerlGeoMeanPolicyLossFn", "VerlClipCovPolicyLossFn", "VerlKLCovPolicyLossFn", "VerlDPPOTVPolicyLossFn",
    "VerlDPPOKLPolicyLossFn", "VerlDROPolicyLossFn",
})  # fmt: skip


def _entry(place: str, doc: str, args: dict[str, Any], needs: frozenset[str] = _RATIO) -> Entry:
    name = place.partition(":")[2]
    takes = frozenset({"rollout_is_weights"}) if name in _WEIGHTED else frozenset()
    return Entry(f"{_HERE}.{place}", args=args, needs=needs, takes=takes, doc=doc, formula=POLICY_LOSS_FORMULAS[name])


POLICY_LOSS_CONTENTS: dict[str, Entry] = {
    "ppo": _entry(
        "ppo:PPOPolicyLossFn",
        "clipped surrogate (arXiv:1707.06347v2, eq. 7) with dual clip (arXiv:1912.09729v3, eq. 5)",
        _PPO,
    ),
    "importance_sampling": _entry(
        "importance_sampling:ImportanceSamplingPolicyLossFn",
        "advantage times ratio, not clipped (arXiv:1707.06347v2, eq. 6)",
        _TOKEN_MEAN,
    ),
    "opmd": _entry(
        "opmd:OPMDPolicyLossFn",
        "online policy mirror descent (arXiv:2505.17826; after arXiv:2501.12599v4, eq. 3)",
        {"tau": 1.0, **_TOKEN_MEAN},
        _ADVANTAGES,
    ),
    "gspo": _entry(
        "gspo:GSPOPolicyLossFn",
        "ratio of the response, clipped (arXiv:2507.18071v2, eq. 13 and 14); "
        "clip_range_low 3e-4 and high 4e-4 where nothing is given",
        {"clip_range": None, "clip_range_low": None, "clip_range_high": None, **_SEQ_MEAN},
    ),
    "cispo": _entry(
        "cispo:CISPOPolicyLossFn",
        "policy gradient with clipped weights (arXiv:2506.13585v1, eq. 4, 5, 6 and 7)",
        _CISPO,
    ),
    "sapo": _entry(
        "sapo:SAPOPolicyLossFn",
        "a smooth gate instead of the clip (arXiv:2511.20347v2, eq. 5 and 6)",
        {"tau_pos": 1.0, "tau_neg": 1.05, **_TOKEN_MEAN},
    ),
    "topr": _entry(
        "topr:TOPRPolicyLossFn",
        "tapered off-policy REINFORCE (arXiv:2503.14286v2, eq. 8)",
        {"advantage_threshold": 0.0, **_TOKEN_MEAN},
    ),
    "sppo": _entry(
        "sppo:SPPOPolicyLossFn",
        "softmax PPO: the log-ratio in a trust region (arXiv:2108.05828)",
        {"epsilon": 0.3, **_TOKEN_MEAN},
    ),
    "rec": _entry("rec:RECPolicyLossFn", "group-relative REINFORCE and its variants (arXiv:2509.24203)", _REC),
    "sft": _entry("sft:SFTPolicyLossFn", "negative log-likelihood of the counted tokens", _TOKEN_MEAN, frozenset()),
    "sft_is": _entry(
        "sft_is:SFTISPolicyLossFn",
        "likelihood weighted by the probability (arXiv:2508.05629)",
        _TOKEN_MEAN,
        frozenset(),
    ),
    "sft_phi": _entry(
        "sft_phi:SFTPhiPolicyLossFn",
        "likelihood weighted by p (1 - p) (arXiv:2508.11408, eq. 5 and 6)",
        {"cutoff_prob": 1.0, **_TOKEN_MEAN},
        frozenset(),
    ),
    "dpo": _entry(
        "dpo:DPOPolicyLossFn",
        "direct preference optimisation (arXiv:2305.18290, eq. 7), its likelihood term: arXiv:2404.19733, eq. 1",
        {"beta": 0.1, "label_smoothing": 0.0, "sft_coef": 0.0},
        frozenset({"ref_logprob"}),
    ),
    "mix": _entry(
        "mix:MIXPolicyLossFn",
        "ppo and sft at a fixed mixture (arXiv:2505.17826v3, section 3.2)",
        {"mu": 0.1, **_MIXED},
        _EXPERT,
    ),
    "mix_chord": _entry(
        "mix_chord:MIXCHORDPolicyLossFn",
        "ppo and sft at a moving mixture (arXiv:2508.11408, eq. 3)",
        {**_CHORD_MU, "enable_phi_function": True, **_MIXED},
        _EXPERT | {"step"},
    ),
    "verl_vanilla": _entry(
        "ppo:VerlVanillaPolicyLossFn", "as ppo", {**_CLIP_RATIO, "clip_ratio_c": 3.0, **_TOKEN_MEAN}
    ),
    "verl_gspo": _entry(
        "gspo:VerlGSPOPolicyLossFn", "as gspo, the ratio at most exp(10)", {**_CLIP_RATIO, **_SEQ_MEAN}
    ),
    "verl_cispo": _entry("cispo:VerlCISPOPolicyLossFn", "as cispo without mask", {**_CLIP_RATIO, **_TOKEN_MEAN}),
    "verl_sapo": _entry(
        "sapo:VerlSAPOPolicyLossFn", "as sapo, always seq-mean-token-mean", {"tau_pos": 1.0, "tau_neg": 1.05}
    ),
    "verl_gpg": _entry(
        "gpg:VerlGPGPolicyLossFn", "plain policy gradient (arXiv:2504.02546v4, eq. 5)", _TOKEN_MEAN, _ADVANTAGES
    ),
    "verl_geo_mean": _entry(
        "geo_mean:VerlGeoMeanPolicyLossFn", "geometric mean of clipped ratios (arXiv:2507.20673v3, eq. 4)", _CLIP_RATIO
    ),
    "verl_clip_cov": _entry(
        "clip_cov:VerlClipCovPolicyLossFn",
        "some tokens of high covariance left out (arXiv:2505.22617v1, eq. 11 and 12)",
        {**_CLIP_RATIO, **_CLIP_COV, **_TOKEN_MEAN},
    ),
    "verl_kl_cov": _entry(
        "kl_cov:VerlKLCovPolicyLossFn",
        "tokens of highest covariance held (arXiv:2505.22617v1, eq. 13 and 14)",
        {"kl_cov_ratio": 2e-4, "ppo_kl_coef": 0.1, **_TOKEN_MEAN},
    ),
    "verl_dppo_tv": _entry(
        "dppo:VerlDPPOTVPolicyLossFn",
        "trust region of total variation (arXiv:2602.04879v3, eq. 12 and 13)",
        {**_CLIP_RATIO, "clip_ratio_c": 3.0, **_TOKEN_MEAN},
    ),
    "verl_dppo_kl": _entry(
        "dppo:VerlDPPOKLPolicyLossFn",
        "trust region of divergence (arXiv:2602.04879v3, eq. 12 and 14)",
        {**_CLIP_RATIO, "clip_ratio_c": 3.0, **_TOKEN_MEAN},
    ),
    "verl_dro": _entry(
        "dro:VerlDROPolicyLossFn",
        "policy gradient with a squared log-ratio (arXiv:2405.19107v1, eq. 8); dro_beta has to be given",
        {"dro_beta": None, **_TOKEN_MEAN},
    ),
    "verl_bypass_mode": _entry("bypass_mode:VerlBypassModePolicyLossFn", "rollout correction inside the loss", _BYPASS),
}

# A name of veRL's that no other loss has may be written without its prefix.
POLICY_LOSS_CONTENTS |= {
    name: POLICY_LOSS_CONTENTS[f"verl_{name}"]
    for name in ("gpg", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "dro", "bypass_mode")
}

_LAZY = {
    "PolicyLossFn": f"{_HERE}.policy_loss_fn",
    "TokenLossFn": f"{_HERE}.token_loss",
}

__all__ = ["POLICY_LOSS_CONTENTS", "PolicyLossFn", "TokenLossFn"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
