"""Algorithms: torch-free tables of contents, and bases for plugins.

Every class declares its properties (`trinity.utils.declaration`). `contents.json`, which `python -m tools.contents`
writes from the classes, has them for code that needs them before it imports anything. An algorithm type's `args` are
its defaults for the `algorithm` section of a configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity.utils.entry import Contents, Entry
from trinity.utils.kinds import ROLES
from trinity.utils.registry import Registry

CONTENTS = Contents.read(Path(__file__).with_name("contents.json"))
ALGORITHM_CONTENTS: Mapping[str, Entry] = CONTENTS.names["algorithm_type"]
ADVANTAGE_CONTENTS: Mapping[str, Entry] = CONTENTS.names["advantage_fn"]
POLICY_LOSS_CONTENTS: Mapping[str, Entry] = CONTENTS.names["policy_loss_fn"]
KL_CONTENTS: Mapping[str, Entry] = CONTENTS.names["kl_fn"]
ENTROPY_LOSS_CONTENTS: Mapping[str, Entry] = CONTENTS.names["entropy_loss_fn"]
SAMPLE_STRATEGY_CONTENTS: Mapping[str, Entry] = CONTENTS.names["sample_strategy"]

ALGORITHM_TYPE = Registry("algorithm_type", ALGORITHM_CONTENTS)
ADVANTAGE_FN = Registry("advantage_fn", ADVANTAGE_CONTENTS)
POLICY_LOSS_FN = Registry("policy_loss_fn", POLICY_LOSS_CONTENTS)
KL_FN = Registry("kl_fn", KL_CONTENTS)
ENTROPY_LOSS_FN = Registry("entropy_loss_fn", ENTROPY_LOSS_CONTENTS)
SAMPLE_STRATEGY = Registry("sample_strategy", SAMPLE_STRATEGY_CONTENTS)
_REGISTRIES = (ADVANTAGE_FN, POLICY_LOSS_FN, KL_FN, ENTROPY_LOSS_FN, SAMPLE_STRATEGY)
# Registries by the key under `algorithm` that names one of their classes.
BY_ROLE = {role: registry for role, name in ROLES.items() for registry in _REGISTRIES if registry.name == name}

_LAZY = {
    "AlgorithmType": "trinity.algorithm.algorithm",
    "AdvantageFn": "trinity.algorithm.advantage_fn.advantage_fn",
    "GroupAdvantage": "trinity.algorithm.advantage_fn.advantage_fn",
    "PolicyLossFn": "trinity.algorithm.policy_loss_fn.policy_loss_fn",
    "KLFn": "trinity.algorithm.kl_fn.kl_fn",
    "EntropyLossFn": "trinity.algorithm.entropy_loss_fn.entropy_loss_fn",
    "SampleStrategy": "trinity.algorithm.sample_strategy.sample_strategy",
}

__all__ = [
    "ADVANTAGE_FN",
    "ALGORITHM_TYPE",
    "BY_ROLE",
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
