"""What CUDA refuses under `torch.use_deterministic_algorithms`, refused on the CPU too.

The list is that of PyTorch's documentation of the function, as far as a language model could call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

REFUSED = frozenset(
    {"put_", "histc", "nll_loss_forward", "nll_loss2d_forward", "kthvalue", "median.dim", "_ctc_loss", "resize_"}
)
"""Operations that are refused whatever they get."""


class RefusedError(RuntimeError):
    """An operation has no deterministic implementation on CUDA."""


class _Refusals(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        wide = f"{name}.{func._overloadname}"
        dtype = kwargs.get("dtype") or (args[0].dtype if args and isinstance(args[0], torch.Tensor) else None)
        is_float_sum = name in ("cumsum", "cumsum_") and dtype is not None and dtype.is_floating_point
        is_weighted = name == "bincount" and (len(args) > 1 or kwargs.get("weights") is not None)
        is_product = name.startswith("scatter_reduce") and "prod" in (*args, kwargs.get("reduce"))
        if name in REFUSED or wide in REFUSED or is_float_sum or is_weighted or is_product:
            raise RefusedError(f"{wide} has no deterministic implementation on CUDA")
        return func(*args, **kwargs)


@contextmanager
def refusing() -> Iterator[None]:
    """Compute as a deterministic run on CUDA does: what it has no algorithm for raises `RefusedError`."""
    torch.use_deterministic_algorithms(True)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        with _Refusals():
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
