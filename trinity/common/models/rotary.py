"""Rotary frequencies by position alone, for engine and trainer alike.

Dimension key: D = head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from trinity.common.errors import ConfigError
from trinity.common.models.rotary_lengths import rotary_refusal

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def settle_rotary(model: PreTrainedModel, *, max_model_len: int | None) -> None:
    """Fix rotary frequencies, whatever the longest row of a call.

    Transformers would choose them again in each call. With `longrope`, all rows get the long frequencies if
    `max_model_len` exceeds the model's original length, and the short ones otherwise, as in vLLM. A row that crosses
    that length keeps its frequencies. The model's configuration is not changed.

    Args:
        model: the loaded model, changed in place.
        max_model_len: tokens of the longest row; None: unknown.

    Raises:
        ConfigError: the frequencies follow the length itself (E1895).
    """
    if refusal := rotary_refusal(model.config.to_dict(), max_model_len):
        raise ConfigError(refusal, code="E1895")
    for module in model.modules():
        kinds = vars(module).get("rope_type")
        for layer_type, kind in kinds.items() if isinstance(kinds, Mapping) else [(None, kinds)]:
            if kind == "longrope":
                _settle(module, layer_type, max_model_len)


def _settle(module: nn.Module, layer_type: str | None, max_model_len: int | None) -> None:
    config: Any = module.config
    rope = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    original = int(rope["original_max_position_embeddings"])
    if max_model_len is not None and max_model_len <= original:
        return
    prefix, settings = ("", {}) if layer_type is None else (f"{layer_type}_", {"layer_type": layer_type})
    old = dict(module.named_buffers(recurse=False))[f"{prefix}inv_freq"]
    long, _ = ROPE_INIT_FUNCTIONS["longrope"](config, old.device, seq_len=original + 1, **settings)
    module.register_buffer(f"{prefix}inv_freq", long, persistent=False)
    # Transformers restores these in calls of short rows.
    setattr(module, f"{prefix}original_inv_freq", long.clone())


def rotary_axes(config: Any) -> Int[Tensor, "D"]:
    """Return the axis whose position rotates each number of a head.

    0 is time, 1 height, 2 width.

    `mrope_section` numbers of each half belong to one axis (Qwen2-VL, arXiv:2409.12191, section 2.1).
    """
    sections = config.rope_parameters.get("mrope_section", [16, 24, 24])
    half = torch.cat([torch.full((size,), axis % 3) for axis, size in enumerate(sections)])
    return torch.cat([half, half])
