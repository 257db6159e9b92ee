"""Vision-language models: their language model and names of weights."""

from __future__ import annotations

import copy
import re
from typing import Any

from transformers import PreTrainedConfig

from trinity.common.models.families import VISION

_OLD_NAMES = (
    (re.compile(r"^visual\."), "model.visual."),
    (re.compile(r"^model\.(?=embed|layers|norm)"), "model.language_model."),
)


def is_vision(config: PreTrainedConfig) -> bool:
    """Return whether the model reads images here."""
    return config.model_type in VISION


def language_config(config: Any) -> PreTrainedConfig:
    """Return the configuration of a model's language model."""
    text: PreTrainedConfig = copy.deepcopy(config.text_config)
    text.tie_word_embeddings = config.tie_word_embeddings
    return text


def module_name(name: str) -> str:
    """Return the name in the model of a weight in a file, new or old."""
    for pattern, new in _OLD_NAMES:
        name = pattern.sub(new, name)
    return name
