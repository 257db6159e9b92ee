"""The algorithm types by name: the components that each is made of, and its own defaults. Imports no torch.

What a line leaves out is `repeat_times: 8`, `advantage_fn: grpo`, `policy_loss_fn: ppo`, `kl_loss_fn: k2`,
`kl_penalty_fn: none`, `entropy_loss_fn: default`, `sample_strategy: default`, `mode: both`. `..._args` are defaults
over those of the component.
"""

from __future__ import annotations

from typing import Any

from trinity.utils.registry import Entry

_COMMON: dict[str, Any] = {
    "repeat_times": 8,
    "advantage_fn": "grpo",
    "policy_loss_fn": "ppo",
    "kl_loss_fn": "k2",
    "kl_penalty_fn": "none",
    "entropy_loss_fn": "default",
    "sample_strategy": "default",
    "mode": "both",
}
_DATASET: dict[str, Any] = {
    "repeat_times": 1,
    "advantage_fn": None,
    "policy_loss_fn": "sft",
    "kl_loss_fn": "none",
    "entropy_loss_fn": "none",
    "mode": "train",
}
_PLAIN: dict[str, Any] = {"kl_loss_fn": "none", "entropy_loss_fn": "none"}
_MIXED: dict[str, Any] = {"entropy_loss_fn": "mix", "sample_strategy": "mix"}


def _entry(name: str, doc: str, **args: Any) -> Entry:
    return Entry(f"trinity.algorithm.algorithm:{name}", args=_COMMON | args, doc=doc)


ALGORITHM_CONTENTS: dict[str, Entry] = {
    "sft": _entry("SFTAlgorithm", "supervised fine-tuning on demonstrations", **_DATASET),
    "cpt": _entry("CPTAlgorithm", "continued pre-training on plain text", **_DATASET),
    "dpo": _entry(
        "DPOAlgorithm",
        "direct preference optimisation on pairs (arXiv:2305.18290, eq. 7)",
        **_DATASET | {"repeat_times": 2, "policy_loss_fn": "dpo"},
    ),
    "ppo": _entry(
        "PPOAlgorithm", "PPO with a critic (arXiv:1707.06347v2, eq. 7)", repeat_times=1, advantage_fn="ppo"
    ),
    "grpo": _entry("GRPOAlgorithm", "group relative policy optimisation (arXiv:2402.03300v3, eq. 3)"),
    "dapo": _entry(
        "DAPOAlgorithm",
        "GRPO with a wider upper clip and no KL term (arXiv:2503.14476v2, eq. 8)",
        repeat_times=16,
        policy_loss_fn_args={"clip_range_low": 0.2, "clip_range_high": 0.28},
        kl_loss_fn="none",
    ),
    "dr_grpo": _entry(
        "DrGRPOAlgorithm",
        "GRPO without standard deviation and length normalisation (arXiv:2503.20783v2, section 3.2)",
        advantage_fn="verl_grpo",
        advantage_fn_args={"norm_adv_by_std_in_grpo": False},
        policy_loss_fn="verl_vanilla",  # its seq-mean-token-sum-norm is the paper's mean over responses
        policy_loss_fn_args={"loss_agg_mode": "seq-mean-token-sum-norm"},
        kl_loss_fn="none",
    ),
    "grpo_verl": _entry(
        "GRPOVerlAlgorithm", "GRPO with advantages from token rewards, in the trainer", advantage_fn="grpo_verl"
    ),
    "grpo_passk": _entry(
        "GRPOPassKAlgorithm", "GRPO for the best of k rollouts (arXiv:2503.19595v2, section 3.1)",
        advantage_fn="grpo_passk",
    ),
    "multi_step_grpo": _entry(
        "MultiStepGRPOAlgorithm", "GRPO for rollouts of several steps", advantage_fn="step_wise_grpo"
    ),
    "gigpo": _entry("GiGPOAlgorithm", "group in group for agents (arXiv:2505.10978v3, eq. 8)", advantage_fn="gigpo"),
    "reinforceplusplus": _entry(
        "ReinforcePlusPlusAlgorithm",
        "whitened reward to go (arXiv:2501.03262v9, eq. 4 and 5)",
        repeat_times=1,
        advantage_fn="reinforceplusplus",
    ),
    "reinforce_plus_plus_baseline": _entry(
        "ReinforcePlusPlusBaselineAlgorithm",
        "whitened reward minus the mean of the task (arXiv:2501.03262v9, eq. 6 and 7)",
        advantage_fn="reinforce_plus_plus_baseline",
    ),
    "rloo": _entry("RLOOAlgorithm", "REINFORCE leave-one-out (arXiv:2402.14740v2, section 2.3)", advantage_fn="rloo"),
    "remax": _entry(
        "RemaxAlgorithm", "reward minus that of a greedy rollout (arXiv:2310.10505v3, section 4.2)",
        repeat_times=1, advantage_fn="remax",
    ),
    "opo": _entry(
        "OPOAlgorithm", "length-weighted optimal baseline (arXiv:2505.23585v2, section 3.2)",
        advantage_fn="opo", kl_loss_fn="none",
    ),
    "gpg": _entry(
        "GPGAlgorithm", "group policy gradient (arXiv:2504.02546v4, eq. 5)",
        advantage_fn="gpg", policy_loss_fn="verl_gpg", kl_loss_fn="none",
    ),
    "opmd": _entry(
        "OPMDAlgorithm", "online policy mirror descent (arXiv:2505.17826; after arXiv:2501.12599v4, eq. 3)",
        advantage_fn="opmd", policy_loss_fn="opmd",
    ),
    "asymre": _entry(
        "AsymREAlgorithm", "asymmetric REINFORCE (arXiv:2506.20520v2, eq. 4)",
        advantage_fn="asymre", policy_loss_fn="opmd", **_PLAIN,
    ),
    "topr": _entry(
        "TOPRAlgorithm", "tapered off-policy REINFORCE (arXiv:2503.14286v2, eq. 8)",
        advantage_fn="reinforce", policy_loss_fn="topr",
    ),
    "sppo": _entry(
        "SPPOAlgorithm", "softmax PPO, the log-ratio within a trust band (arXiv:2108.05828)",
        advantage_fn="opmd", policy_loss_fn="sppo", **_PLAIN,
    ),
    "rec": _entry(
        "RECAlgorithm", "group-relative REINFORCE, off-policy (arXiv:2509.24203)",
        advantage_fn="rec", policy_loss_fn="rec",
    ),
    "cispo": _entry(
        "CISPOAlgorithm", "clipped importance weights (arXiv:2506.13585v1, eq. 4 and 5)", policy_loss_fn="cispo"
    ),
    "gspo": _entry(
        "GSPOAlgorithm", "ratios of whole sequences (arXiv:2507.18071v2, eq. 5)",
        policy_loss_fn="gspo", policy_loss_fn_args={"loss_agg_mode": "seq-mean-token-mean"},
    ),
    "sapo": _entry(
        "SAPOAlgorithm", "soft gate in place of the clip (arXiv:2511.20347v2, eq. 5 and 6)", policy_loss_fn="sapo"
    ),
    "clip_cov": _entry(
        "ClipCovAlgorithm", "tokens of high covariance clipped (arXiv:2505.22617v1, eq. 11 and 12)",
        policy_loss_fn="verl_clip_cov", kl_loss_fn="none",
    ),
    "kl_cov": _entry(
        "KLCovAlgorithm", "tokens of high covariance held by a KL term (arXiv:2505.22617v1, eq. 13 and 14)",
        policy_loss_fn="verl_kl_cov", kl_loss_fn="none",
    ),
    "geo_mean": _entry(
        "GeoMeanAlgorithm", "geometric mean of the ratios, GMPO (arXiv:2507.20673v3, eq. 4)",
        policy_loss_fn="verl_geo_mean", kl_loss_fn="none",
    ),
    "raft": _entry(
        "RAFTAlgorithm", "fine-tuning on the rollouts that filters keep (arXiv:2304.06767)",
        advantage_fn=None, policy_loss_fn="sft", **_PLAIN,
    ),
    "mix": _entry(
        "MIXAlgorithm", "GRPO on rollouts and SFT on expert data (arXiv:2505.17826v3, section 3.2)",
        policy_loss_fn="mix", **_MIXED,
    ),
    "mix_chord": _entry(
        "MIXCHORDAlgorithm", "mix with a scheduled weight and a token weight, CHORD (arXiv:2508.11408, eq. 3)",
        policy_loss_fn="mix_chord", **_MIXED,
    ),
    "on_policy_distill": _entry(
        "OnPolicyDistillAlgorithm", "towards a teacher, on the policy's own rollouts (arXiv:2306.13649)",
        repeat_times=1, advantage_fn="on_policy_distill", **_PLAIN,
    ),
    "jsd": _entry(
        "JSDAlgorithm", "distillation by a Jensen-Shannon estimate (arXiv:2306.13649v3, eq. 1)",
        repeat_times=1, advantage_fn="jsd", advantage_fn_args={"estimator": "gradient"}, **_PLAIN,
    ),
}  # fmt: skip
