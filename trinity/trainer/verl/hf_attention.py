"""Our attention over packed sequences, registered with Hugging Face.

A model makes its masks through one function and computes each layer's attention through another. Ours make no mask:
the rule of the layer carries what its mask would say (causal, in a window). Any other demand of a family on its
attention is refused here, and the family is then computed in another way (see `layout.py`).
"""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trinity.trainer.verl.attention import attend
from trinity.trainer.verl.attention_rule import Rule
from trinity.trainer.verl.packing import Packed

NAME = "trinity_packed"

# Functions of transformers whose masks are plainly causal, or causal in a window.
_PLAIN_MASKS = {"create_causal_mask", "create_sliding_window_causal_mask"}
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}
# Others that modeling files import for uses that never occur here: generation, images.
_UNUSED_MASKS = {"create_masks_for_generate", "create_masks_for_vision_model", "create_bidirectional_mask"}
# Further arguments of attention functions that do not change the result.
_IDLE = {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}
_IDLE |= {"is_causal", "sliding_window", "position_embeddings", "logits_to_keep", "past_key_values", "layer_idx"}

_computed: list[Packed] = []  # not a context variable: a backward pass on CUDA recomputes in another thread


class NotPackable(Exception):
    """Our own attention cannot compute a model's; the message says why."""


class computing:
    """Context in which our attention attends within `packed`'s sequences."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    def __enter__(self) -> None:
        _computed.append(self.packed)

    def __exit__(self, *_: object) -> None:
        _computed.pop()


class _Seen(Tensor):
    """A stand-in for a mask that holds the window only; it has no entries."""

    window: int | None


def packed_mask(
    *args: Any, local_size: int | None = None, use_vmap: bool = False, device: torch.device | None = None, **_: Any
) -> Tensor:
    """Return a stand-in mask [0] that tells `packed_attention` the window.

    This is the mask function for Hugging Face models.

    Raises:
        NotPackable: the model changes the mask by functions of its own.
    """
    if use_vmap:
        raise NotPackable("a mask of its own")
    mask = torch.empty(0, dtype=torch.bool, device=device).as_subclass(_Seen)
    mask.window = local_size
    return mask


def packed_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Return the attention of the current packed list [1, N, heads, size].

    This is the attention function for Hugging Face models; its tensors are [1, heads, N, size].

    Raises:
        NotPackable: the layer wants more than a window, a soft cap, sinks and a scale.
    """
    if type(attention_mask) is not _Seen:
        raise NotPackable("a mask of its own")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise NotPackable("attention to later tokens")
    if kwargs.pop("dropout", 0.0):
        raise NotPackable("dropout")
    rule = Rule(
        scale=kwargs.pop("scaling", None),
        window=attention_mask.window,
        softcap=kwargs.pop("softcap", None),
        sinks=kwargs.pop("s_aux", None),
    )
    unknown = sorted(name for name, value in kwargs.items() if value is not None and name not in _IDLE)
    if unknown:
        raise NotPackable(", ".join(unknown))
    q, k, v = (t[0].transpose(0, 1) for t in _of_one_type(query, key, value))
    # Autocast would narrow the products of the forward pass, and not those of the backward pass, which has left it.
    with torch.autocast("cpu", enabled=False) if query.device.type == "cpu" else nullcontext():
        out = attend(q, k, v, _computed[-1], rule)
    return out.view(1, -1, query.shape[1], value.shape[-1]), None


def _of_one_type(*tensors: Tensor) -> list[Tensor]:
    """Return tensors of one data type.

    Under autocast rotated queries and keys are float32, values bfloat16. A CPU computes them in the widest type; CUDA
    in autocast's, which its kernels serve.
    """
    device = tensors[0].device.type
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if device != "cpu" and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return [tensor.to(dtype) for tensor in tensors]


def register() -> str:
    """Register both functions with transformers; return their name."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, packed_mask)
    return NAME


def packing_problem(model: PreTrainedModel) -> str | None:
    """Return the model's masks and layers that our attention cannot compute.

    Return None if there are none. Some rules have an effect on long rows only (attention in chunks or in selected
    blocks), so that a trial with short rows is not enough. Nor is it for a mask of as many tokens as a row may have: a
    packed list has more.
    """
    if not model._supports_attention_backend and _has_mask(model):
        return "a mask of a fixed length"
    module = sys.modules[type(model).__module__]
    made = {name for name in vars(module) if name.startswith("create_") and "mask" in name}
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    unknown = sorted(made - _PLAIN_MASKS - _UNUSED_MASKS) + sorted(layers - _PLAIN_LAYERS)
    return ", ".join(unknown) or None


def _has_mask(model: PreTrainedModel) -> bool:
    """Return whether a layer holds which tokens of a longest row see which."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return any(buffer.dim() > 1 and buffer.shape[-2:] == (length, length) for buffer in model.buffers())
