"""Autocast on the strict device, with the lists of operations that CUDA has.

The data type of an argument is changed where it is a float of the device, as in PyTorch's own kernels. Casts are not
kept for a second use within one context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.strict_device.memory import NAME, is_strict

Op = torch._ops.OpOverload

_KEY = "AutocastPrivateUse1"
_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
NARROW = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "scaled_dot_product_attention",
]
WIDE = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "cosine_similarity",
    "cosine_embedding_loss",
    "nll_loss",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "cdist",
    "renorm",
    "logsumexp",
]
WIDE_RESULT = ["prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum"]
WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "index_put",
    "stack",
    "cat",
    "scatter_add",
    "tensordot",
]


def _is_eligible(value: Any) -> bool:
    return is_strict(value) and value.is_floating_point() and value.dtype != torch.float64


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _is_eligible(value) else value, values)


def _narrow(op: Op, args: Any, kwargs: Any) -> Any:
    return _cast((args, kwargs), torch.get_autocast_dtype(NAME))


def _wide(op: Op, args: Any, kwargs: Any) -> Any:
    return _cast((args, kwargs), torch.float32)


def _wide_result(op: Op, args: Any, kwargs: Any) -> Any:
    has_place = any(argument.name == "dtype" for argument in op._schema.arguments)
    if _is_eligible(args[0]) and has_place and kwargs.get("dtype") is None:
        names = [argument.name for argument in op._schema.arguments]
        given = dict(zip(names, args, strict=False))
        if given.get("dtype") is None:
            args, kwargs = args[: names.index("dtype")], kwargs | {"dtype": torch.float32}
    return args, kwargs


def _widest(op: Op, args: Any, kwargs: Any) -> Any:
    found: list[Tensor] = []
    tree_map(lambda value: found.append(value) if _is_eligible(value) else None, (args, kwargs))
    is_wide = any(value.dtype == torch.float32 for value in found)
    return _cast((args, kwargs), torch.float32) if is_wide else (args, kwargs)


def register() -> list[torch.library.Library]:
    """Give PyTorch the kernels; they last as long as what is returned."""
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, _KEY)
    own = torch.library.Library("aten", "IMPL")
    known = set(torch._C._dispatch_get_all_op_names())
    for names, policy in ((NARROW, _narrow), (WIDE, _wide), (WIDE_RESULT, _wide_result), (WIDEST, _widest)):
        for packet in (getattr(torch.ops.aten, name) for name in names):
            for op in (getattr(packet, overload) for overload in packet.overloads()):
                if op.name() in known and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "AutocastCUDA"):
                    own.impl(op.name().partition("::")[2], _kernel(op, policy), _KEY)
    return [own, rest]


def _kernel(op: Op, policy: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            args, kwargs = policy(op, args, kwargs)
            return op(*args, **kwargs)

    return run
