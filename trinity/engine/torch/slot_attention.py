"""Attention of Hugging Face models over slots with rows of unequal length.

Transformers calls functions that are registered under a name for every mask and every attention. A model provides its
mask as a function of positions, which it composes itself (causal, window, chunk). Transformers evaluates it at one
query position for all rows; ours evaluates it at each row's own position.

Dimension key: B = rows of a step, K = positions of the cache.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

EAGER, SDPA = "slots_eager", "slots_sdpa"
_PLAIN = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}
_MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_seen: ContextVar[list[bool] | None] = ContextVar("attention calls", default=None)


def slots_mask(mask_function: _MaskFunction, attention_mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B 1 1 K"]:
    """Return the cache positions that the last token of each row may see.

    Args:
        mask_function: the model's own, of row, head, query position and key position.
        attention_mask: the positions that each row holds, from the first on without gaps.
    """
    device = attention_mask.device
    rows = torch.arange(len(attention_mask), device=device)[:, None, None, None]
    queries = attention_mask.sum(-1)[:, None, None, None] - 1
    keys = torch.arange(attention_mask.shape[1], device=device)
    return mask_function(rows, torch.zeros_like(rows[:1]), queries, keys) & attention_mask[:, None, None]


def _slots_of(attention_mask: Tensor | None, sizes: dict[str, Any]) -> Tensor | None:
    """Return [B, K] positions for a mask of one query over slots, else None."""
    if attention_mask is None or sizes["q_length"] > 1 or sizes.get("kv_offset", 0):
        return None
    return attention_mask if attention_mask.shape[1] == sizes["kv_length"] else None


def _sdpa_mask(*, mask_function: _MaskFunction, attention_mask: Tensor | None = None, **sizes: Any) -> Tensor | None:
    slots = _slots_of(attention_mask, sizes)
    if slots is not None:
        return slots_mask(mask_function, slots)
    mask: Tensor | None = sdpa_mask(mask_function=mask_function, attention_mask=attention_mask, **sizes)
    return mask


def _eager_mask(*, mask_function: _MaskFunction, attention_mask: Tensor | None = None, **sizes: Any) -> Tensor:
    slots = _slots_of(attention_mask, sizes)
    if slots is not None:
        return _bias(slots_mask(mask_function, slots), sizes["dtype"])
    return eager_mask(mask_function=mask_function, attention_mask=attention_mask, **sizes)


def _bias(seen: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """Return a mask as the bias that the families' own attentions expect."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def _home(module: nn.Module) -> str:
    """Return the name of the Python module with a submodel's forward pass."""
    return next(base for base in type(module).__mro__ if "forward" in vars(base)).__module__


@cache
def _own_attention(home: str) -> tuple[Callable[..., Any] | None, frozenset[str]]:
    """Return a family's own attention, and the arguments that only it knows."""
    own: Callable[..., Any] | None = vars(sys.modules[home]).get("eager_attention_forward")
    return own, frozenset() if own is None else frozenset(inspect.signature(own).parameters.keys() - _PLAIN)


def _note(mask: Tensor | None, key: Tensor) -> None:
    seen = _seen.get()
    if seen is not None:
        seen.append(mask is not None and mask.shape[-1] == key.shape[-2] and mask.shape[0] == key.shape[0])


def _eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> Any:
    _note(attention_mask, key)
    own, _ = _own_attention(_home(module))
    assert own is not None, "a module that asks for a registered attention has one of its own"
    return own(module, query, key, value, attention_mask, **settings)


def _sdpa_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> Any:
    own, extras = _own_attention(_home(module))
    if own is None or all(settings.get(name) is None for name in extras):
        _note(attention_mask, key)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    if attention_mask is None and query.shape[2] > 1:  # None means the causal mask
        sizes = (query.shape[2], key.shape[2])
        attention_mask = torch.ones(sizes, dtype=torch.bool, device=query.device).tril(sizes[1] - sizes[0])[None, None]
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = _bias(attention_mask, query.dtype)
    return _eager_attention(module, query, key, value, attention_mask, **settings)


AttentionInterface.register(EAGER, _eager_attention)
AttentionInterface.register(SDPA, _sdpa_attention)
AttentionMaskInterface.register(EAGER, _eager_mask)
AttentionMaskInterface.register(SDPA, _sdpa_mask)


def use_slot_attention(model: PreTrainedModel) -> None:
    """Make the model use attention over slots, if it uses a registered one.

    This is PyTorch's attention if the family allows it, except for calls with features that only the family's own
    attention has, such as a soft cap.
    """
    _set(model, SDPA if type(model)._supports_sdpa else EAGER)


def use_own_attention(model: PreTrainedModel) -> None:
    """Use PyTorch's attention, or the family's own where that computes more."""
    extras = any(_own_attention(_home(module))[1] for module in model.modules())
    _set(model, "sdpa" if type(model)._supports_sdpa and not extras else "eager")


def _set(model: PreTrainedModel, name: str) -> None:
    parts = {type(part) for part in model.modules() if isinstance(part, PreTrainedModel)}
    if any(part._can_set_attn_implementation() for part in parts):
        model.set_attn_implementation(name)


@contextmanager
def noted_attention() -> Iterator[list[bool]]:
    """Record for each attention whether its mask covers all keys and rows."""
    seen: list[bool] = []
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)
