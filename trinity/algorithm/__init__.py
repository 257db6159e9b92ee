"""Algorithms: the torch-free tables of contents, and the base classes that plugins derive from.

Each table lists every built-in by name with its constructor's arguments and defaults, and with what it makes the
run load. An algorithm type's `args` are the defaults that it gives the `algorithm` section of a configuration.
"""

from __future__ import annotations

import importlib
from typing import Any

from trinity.algorithm.advantage_fn import ADVANTAGE_CONTENTS as ADVANTAGE_CONTENTS
from trinity.algorithm.algorithm_types import ALGORITHM_CONTENTS as ALGORITHM_CONTENTS
from trinity.algorithm.kl_fn import KL_CONTENTS as KL_CONTENTS
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_CONTENTS as POLICY_LOSS_CONTENTS
from trinity.utils.registry import Entry, Registry

ENTROPY_LOSS_CONTENTS: dict[str, Entry] = {
    "default": Entry(
        "trinity.algorithm.entropy_loss_fn:DefaultEntropyLossFn",
        args={"entropy_coef": 0.0},
        needs=frozenset({"entropy"}),
        doc="entropy_coef times the aggregated entropy, subtracted from the loss",
        formula="{entropy_coef} H\nH = -sum over the vocabulary of p ln p",
    ),
    "mix": Entry(
        "trinity.algorithm.entropy_loss_fn:MixEntropyLossFn",
        args={"entropy_coef": 0.0},
        needs=frozenset({"entropy", "expert_mask"}),
        doc="as default, over the rows that are no expert data",
        formula="{entropy_coef} H\nH = -sum over the vocabulary of p ln p, of the rows that are no expert data",
    ),
    "none": Entry(
        "trinity.algorithm.entropy_loss_fn:NoneEntropyLossFn",
        args={"entropy_coef": 0.0},
        doc="no entropy term",
        formula="0",
    ),
}
SAMPLE_STRATEGY_CONTENTS: dict[str, Entry] = {
    "default": Entry(
        "trinity.algorithm.sample_strategy.default:DefaultSampleStrategy",
        doc="the next train_batch_size experiences of the experience buffer",
    ),
    "mix": Entry(
        "trinity.algorithm.sample_strategy.mix:MixSampleStrategy",
        args={"expert_data_ratio": 0.5, "sft_dataset_name": "sft_dataset"},
        doc="a share of the batch from a dataset of demonstrations, the rest from the experience buffer",
    ),
    "staleness_control": Entry(
        "trinity.algorithm.sample_strategy.staleness_control:StalenessControlStrategy",
        args={"max_staleness": None},
        doc="as default, without experiences that are more than max_staleness training steps old",
    ),
    "warmup": Entry(
        "trinity.algorithm.sample_strategy.default:DefaultSampleStrategy", doc="deprecated, the same as default"
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
    "KLFn": "trinity.algorithm.kl_fn.kl_fn",
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
