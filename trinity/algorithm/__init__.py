"""Algorithms: the torch-free tables of contents, and the base classes that plugins derive from.

Each table lists every built-in by name with its constructor's arguments and defaults, and with what it makes the
run load. An algorithm type's `args` are the defaults that it gives the `algorithm` section of a configuration.
"""

from __future__ import annotations

import importlib
from typing import Any

from trinity.utils.registry import Entry, Registry

_PPO_DEFAULTS: dict[str, Any] = {
    "clip_range": 0.2,
    "clip_range_low": None,
    "clip_range_high": None,
    "clip_ratio_c": 3.0,
    "loss_agg_mode": "token-mean",
    "enable_sequence_masking": False,
    "delta_sequence_masking": 0.1,
    "fallback_to_policy_gradient": False,
}
_GRPO_DEFAULTS: dict[str, Any] = {
    "epsilon": 1e-6,
    "std_threshold": None,
    "duplicate_experiences": False,
    "rank_penalty": None,
    "std_cal_level": "group",
}
_KL_DEFAULTS: dict[str, Any] = {"adaptive": False, "kl_coef": 0.001, "target_kl": None, "horizon": None}
_REFERENCE = frozenset({"ref_logprob"})

ALGORITHM_CONTENTS: dict[str, Entry] = {
    "sft": Entry(
        "trinity.algorithm.algorithm:SFTAlgorithm",
        args={
            "repeat_times": 1,
            "advantage_fn": None,
            "policy_loss_fn": "sft",
            "kl_loss_fn": "none",
            "kl_penalty_fn": "none",
            "entropy_loss_fn": "none",
            "sample_strategy": "default",
            "mode": "train",
        },
        doc="supervised fine-tuning on demonstrations",
    ),
    "grpo": Entry(
        "trinity.algorithm.algorithm:GRPOAlgorithm",
        args={
            "repeat_times": 8,
            "advantage_fn": "grpo",
            "policy_loss_fn": "ppo",
            "kl_loss_fn": "k2",
            "kl_penalty_fn": "none",
            "entropy_loss_fn": "default",
            "sample_strategy": "default",
            "mode": "both",
        },
        doc="group relative policy optimisation (arXiv:2402.03300)",
    ),
}
ADVANTAGE_CONTENTS: dict[str, Entry] = {
    "grpo": Entry(
        "trinity.algorithm.advantage_fn.grpo:GRPOGroupedAdvantage",
        args=_GRPO_DEFAULTS,
        doc="(reward - group mean) / (group standard deviation + epsilon) (arXiv:2402.03300)",
    ),
}
POLICY_LOSS_CONTENTS: dict[str, Entry] = {
    "ppo": Entry(
        "trinity.algorithm.policy_loss_fn.ppo:PPOPolicyLossFn",
        args=_PPO_DEFAULTS,
        needs=frozenset({"old_logprob", "advantages"}),
        doc="clipped surrogate (arXiv:1707.06347) with dual clip (arXiv:1912.09729)",
    ),
    "sft": Entry(
        "trinity.algorithm.policy_loss_fn.sft:SFTPolicyLossFn",
        args={"loss_agg_mode": "token-mean"},
        doc="negative log-likelihood of the counted tokens",
    ),
}
KL_CONTENTS: dict[str, Entry] = {
    "none": Entry("trinity.algorithm.kl_fn:NoneKLFn", args=_KL_DEFAULTS, doc="no KL term"),
    "k1": Entry("trinity.algorithm.kl_fn:K1KLFn", args=_KL_DEFAULTS, needs=_REFERENCE, doc="d"),
    "k2": Entry("trinity.algorithm.kl_fn:K2KLFn", args=_KL_DEFAULTS, needs=_REFERENCE, doc="d^2 / 2"),
    "k3": Entry("trinity.algorithm.kl_fn:K3KLFn", args=_KL_DEFAULTS, needs=_REFERENCE, doc="exp(-d) - 1 + d"),
    "low_var_kl": Entry("trinity.algorithm.kl_fn:LowVarKLFn", args=_KL_DEFAULTS, needs=_REFERENCE, doc="k3, clamped"),
    "abs": Entry("trinity.algorithm.kl_fn:AbsKLFn", args=_KL_DEFAULTS, needs=_REFERENCE, doc="|d|"),
    "corrected_k3": Entry(
        "trinity.algorithm.kl_fn:CorrectedK3KLFn",
        args=_KL_DEFAULTS,
        needs=frozenset({"ref_logprob", "old_logprob"}),
        doc="k3 times the clamped importance ratio",
    ),
}
ENTROPY_LOSS_CONTENTS: dict[str, Entry] = {
    "default": Entry(
        "trinity.algorithm.entropy_loss_fn:DefaultEntropyLossFn",
        args={"entropy_coef": 0.0},
        needs=frozenset({"entropy"}),
        doc="entropy_coef times the aggregated entropy, subtracted from the loss",
    ),
    "none": Entry(
        "trinity.algorithm.entropy_loss_fn:NoneEntropyLossFn", args={"entropy_coef": 0.0}, doc="no entropy term"
    ),
}
SAMPLE_STRATEGY_CONTENTS: dict[str, Entry] = {
    "default": Entry(
        "trinity.algorithm.sample_strategy.default:DefaultSampleStrategy",
        doc="the next train_batch_size experiences of the experience buffer",
    ),
}

ALGORITHM_TYPE = Registry("algorithm_type", ALGORITHM_CONTENTS)
ADVANTAGE_FN = Registry("advantage_fn", ADVANTAGE_CONTENTS)
POLICY_LOSS_FN = Registry("policy_loss_fn", POLICY_LOSS_CONTENTS)
KL_FN = Registry("kl_fn", KL_CONTENTS)
ENTROPY_LOSS_FN = Registry("entropy_loss_fn", ENTROPY_LOSS_CONTENTS)
SAMPLE_STRATEGY = Registry("sample_strategy", SAMPLE_STRATEGY_CONTENTS)

_LAZY = {
    "AlgorithmType": "trinity.algorithm.algorithm",
    "AdvantageFn": "trinity.algorithm.advantage_fn.advantage_fn",
    "GroupAdvantage": "trinity.algorithm.advantage_fn.advantage_fn",
    "PolicyLossFn": "trinity.algorithm.policy_loss_fn.policy_loss_fn",
    "KLFn": "trinity.algorithm.kl_fn",
    "EntropyLossFn": "trinity.algorithm.entropy_loss_fn",
    "SampleStrategy": "trinity.algorithm.sample_strategy.sample_strategy",
}

__all__ = [
    "ADVANTAGE_FN",
    "ALGORITHM_TYPE",
    "ENTROPY_LOSS_FN",
    "KL_FN",
    "POLICY_LOSS_FN",
    "SAMPLE_STRATEGY",
    "AdvantageFn",
    "AlgorithmType",
    "EntropyLossFn",
    "GroupAdvantage",
    "KLFn",
    "PolicyLossFn",
    "SampleStrategy",
]


def __getattr__(name: str) -> Any:
    """Import a base class when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
