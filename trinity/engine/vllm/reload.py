"""Replacement of all weights of a loaded vLLM model, in place.

vLLM allocates each layer's weights once all of them have arrived, and repacks them. Two faults raise no error: weights
that a model copies outside that order are lost, and weights that a kernel packed elsewhere stay as they were. So a
layer that loses weights is allocated first, and kernels that pack experts are created again. `try_reload` then compares
the state after reloading the folder with the state after the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import deterministic
from vllm.model_executor.model_loader.reload.layerwise import (
    _layerwise_process,
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.meta import materialize_layer
from vllm.platforms import current_platform

from trinity.common.weights.ticket import tensor_digest

Weights = Iterable[tuple[str, Tensor]]


class Reloader:
    """Reloads the weights of one vLLM model.

    Args:
        model: the model as vLLM has loaded it.
        model_config: vLLM's configuration of it.

    Attributes:
        early: names of the layers to allocate before their weights arrive.
    """

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        self.model, self.model_config = model, model_config
        self.early: set[str] = set()

    @torch.no_grad()
    def reload(self, weights: Weights) -> list[str]:
        """Load `weights`, named as in files; return parameters that got none."""
        self._forget_kernels()
        initialize_layerwise_reload(self.model)
        layers = dict(self.model.named_modules())
        for name in self.early:
            _give_memory(layers[name])
        self.model.load_weights(weights)  # type: ignore[operator]
        lost = _lost(layers)
        for name in self.early:
            lost = [each for each in lost if each.rpartition(".")[0] != name]
            if get_layerwise_info(layers[name]).can_load():
                _layerwise_process(layers[name], get_layerwise_info(layers[name]))
        finalize_layerwise_reload(self.model, self.model_config)
        for name, module in layers.items():
            method: Any = getattr(module, "quant_method", None)
            if name.rpartition(".")[2] == "lm_head" and method is not None:
                # A head tied to the embedding keeps a copy in another layout, which a reload does not update.
                method.process_weights_after_loading(module)
        return lost

    def try_reload(self, weights: Callable[[], Weights]) -> str | None:
        """Reload the model's folder; return how the result differs, or None.

        Args:
            weights: returns the tensors of the folder.
        """
        before = self._digests()
        with _marked_memory():
            lost = self.reload(weights())
            if lost:
                self.early = {name.rpartition(".")[0] for name in lost}
                self.reload(weights())
        after = self._digests()
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if not changed:
            return None
        return f"of which a reload changes {len(changed)} of {len(before)} tensors (first {changed[0]})"

    def _forget_kernels(self) -> None:
        """Force a CPU to repack the experts, which only a new kernel does."""
        for module in self.model.modules():
            method: Any = getattr(module, "quant_method", None)
            if current_platform.is_cpu() and getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None

    def _digests(self) -> dict[str, str]:
        held = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return {name: tensor_digest(tensor) for name, tensor in held.items()}


def loaded_dtypes(model: nn.Module) -> list[str]:
    """Return the data types that weights are read in, before packing."""
    tensors = (t for layer in model.modules() for t in get_layerwise_info(layer).restore_metadata[0].values())
    return sorted({str(tensor.dtype) for tensor in tensors if tensor.is_floating_point()})


def _give_memory(layer: nn.Module) -> None:
    """Allocate a layer: parameters filled with NaN, buffers as they are now."""
    info = get_layerwise_info(layer)
    materialize_layer(layer, info)
    assert info.kernel_tensors is not None, "a reload has begun"
    for tensor in layer._parameters.values():
        if tensor is not None and tensor.is_floating_point():
            tensor.fill_(math.nan)
    for name, buffer in layer._buffers.items():
        present = info.kernel_tensors[1].get(name)
        if buffer is not None and present is not None and present.shape == buffer.shape:
            buffer.copy_(present)


def _lost(layers: dict[str, nn.Module]) -> list[str]:
    """Return the names of parameters for which no weight has arrived.

    A tied parameter may arrive under its other name.
    """
    came: set[int] = set()
    left: list[tuple[str, int | None]] = []
    for name, layer in layers.items():
        info = get_layerwise_info(layer)
        loaded = None if not info.can_load() else {each for each, _ in info.loaded_weights}
        kernel = {} if info.kernel_tensors is None else info.kernel_tensors[0]
        for parameter, tensor in layer._parameters.items():
            if tensor is None:
                continue
            held = kernel.get(parameter, tensor if loaded is None else None)
            if loaded is None or parameter in loaded:
                came |= {id(held)}
            else:
                left.append((f"{name}.{parameter}", None if held is None else id(held)))
    return [name for name, held in left if held is None or held not in came]


@contextmanager
def _marked_memory() -> Iterator[None]:
    """Fill new memory with NaN, so that unwritten weights are noticed."""
    settings: Any = deterministic
    was_on, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(was_on, warn_only=warned)
