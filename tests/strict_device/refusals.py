"""What CUDA refuses: devices that do not fit, generators, deterministic mode, data types."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.strict_device.memory import NAME, is_strict

Op = torch._ops.OpOverload

CPU_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# Elementwise operations take one CPU number, but for those whose tensor iterator was not told so.
NO_CPU_NUMBER = {"clamp", "clamp_", "complex", "polar", "_prelu_kernel", "_prelu_kernel_backward", "masked_fill"}
CPU_NUMBERS = {"where", "addr", "addr_"}
NUMBER_ARGUMENTS = {"masked_fill": "value", "masked_fill_": "value", "index_fill": "value", "index_fill_": "value"}
NUMBER_ARGUMENTS |= {"fill": "value", "fill_": "value"}
# From PyTorch's page on deterministic algorithms, under the names of their CUDA kernels.
NONDETERMINISTIC = {
    "put_": "put_",
    "histc": "_histc_cuda",
    "nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template",
    "nll_loss2d_backward": "nll_loss2d_backward_out_cuda_template",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad2d_backward": "reflection_pad2d_backward_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
}
PRODUCTS = {
    name: f"{kernel}_cuda"
    for kernel, names in {
        "addmm": ("mm", "addmm", "addmm_", "_addmm_activation"),
        "baddbmm": ("bmm", "baddbmm", "baddbmm_"),
        "addmv_impl": ("mv", "addmv", "addmv_"),
        "dot": ("dot", "vdot"),
    }.items()
    for name in names
}


def check(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what CUDA raises for `op` with these arguments.

    Raises:
        RuntimeError: it is refused; NotImplementedError, one of its kinds, where CUDA has no kernel for a data type.
    """
    given = _named(op, args, kwargs)
    name = op._schema.name.partition("::")[2]
    _check_devices(name, op, given)
    generator = given.get("generator")
    if isinstance(generator, torch.Generator):  # all are of the CPU: PyTorch makes none for this device
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{generator.device.type}'")
    _check_products(name, given)
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        _check_determinism(name, op, given)


def _named(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in op._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _tensors(given: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in given.items():
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                yield name, item


def _check_devices(name: str, op: Op, given: dict[str, Any]) -> None:
    tensors = list(_tensors(given))
    of_host = [(argument, tensor) for argument, tensor in tensors if not is_strict(tensor)]
    if not of_host or len(of_host) == len(tensors):
        return
    if name in CPU_INDICES:
        _check_index(given)
        return
    if name == "equal":
        raise RuntimeError(
            f"Cannot compare two tensors on different devices. Got: {tensors[0][1].device} and {tensors[1][1].device}"
        )
    if name in ("masked_fill", "masked_fill_") and not is_strict(given["mask"]):
        raise RuntimeError(f"expected self and mask to be on the same device, but got mask on cpu and self on {NAME}:0")
    written = {
        argument.name for argument in op._schema.arguments if argument.alias_info and argument.alias_info.is_write
    }
    numbers = [argument for argument, tensor in of_host if tensor.dim() == 0 and argument not in written]
    if len(numbers) == len(of_host):
        if name in CPU_NUMBERS or set(numbers) == {NUMBER_ARGUMENTS.get(name)}:
            return
        is_elementwise = torch.Tag.pointwise in op.tags or name.startswith("_foreach_")
        if is_elementwise and name not in NO_CPU_NUMBER and len(numbers) == 1:
            return
    if torch.Tag.pointwise in op.tags:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu!"
        )
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but got {of_host[0][0]} is on cpu, different from other "
        f"tensors on {NAME}:0 (when checking argument in method wrapper_{NAME.upper()}__{name})"
    )


def _check_index(given: dict[str, Any]) -> None:
    if not is_strict(given["self"]):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    values = given.get("values")
    if isinstance(values, Tensor) and not is_strict(values) and values.dim():
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu!"
        )


def _check_products(name: str, given: dict[str, Any]) -> None:
    first = given.get("mat2", given.get("batch2", given.get("vec", given.get("tensor"))))
    if name in PRODUCTS and isinstance(first, Tensor) and not (first.is_floating_point() or first.is_complex()):
        kind = {torch.int64: "Long", torch.int32: "Int", torch.bool: "Bool"}.get(first.dtype, str(first.dtype))
        raise NotImplementedError(f"\"{PRODUCTS[name]}\" not implemented for '{kind}'")


def _check_determinism(name: str, op: Op, given: dict[str, Any]) -> None:
    kernel = NONDETERMINISTIC.get(name)
    first: Any = given.get("self")
    if name in ("cumsum", "cumsum_") and (given.get("dtype") or first.dtype).is_floating_point:
        kernel = "cumsum_cuda_kernel"
    elif name == "bincount" and given.get("weights") is not None:
        kernel = "_bincount_cuda"
    elif name in ("median", "nanmedian") and "dim" in given:
        kernel = "median CUDA with indices output"
    elif name in ("scatter_reduce", "scatter_reduce_") and given["reduce"] == "prod":
        kernel = "scatter_reduce_cuda_prod_"
    if kernel is not None:
        raise RuntimeError(
            f"{kernel} does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or you "
            "can use the 'warn_only=True' option, if that's acceptable for your application."
        )
    if name in PRODUCTS and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        raise RuntimeError(
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
            "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
            "CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an "
            "environment variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
            "CUBLAS_WORKSPACE_CONFIG=:16:8."
        )
