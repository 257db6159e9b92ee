"""The engine protocol, the workflow's model wrapper, and chat templates.

The engines themselves are in `trinity.engine`; the functions that create them are published here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.common.models.chat_template import load_tokenizer
    from trinity.common.models.inference_model import InferenceModel
    from trinity.common.models.model import ModelWrapper
    from trinity.engine.create import create_auxiliary_models, create_inference_model

_HOMES = {
    "InferenceModel": "trinity.common.models.inference_model",
    "ModelWrapper": "trinity.common.models.model",
    "create_auxiliary_models": "trinity.engine.create",
    "create_inference_model": "trinity.engine.create",
    "load_tokenizer": "trinity.common.models.chat_template",
}

__all__ = [
    "InferenceModel",
    "ModelWrapper",
    "create_auxiliary_models",
    "create_inference_model",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
