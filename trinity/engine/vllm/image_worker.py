"""The calls of a worker whose model reads images, which come prepared.

vLLM imports this module by name in the worker's process, before it asks for the sizes of images. On a CPU vLLM's own
preparation is left out: it is not used (see `pictures`), and needs torchvision, whose usual build needs CUDA.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from vllm import ModelRegistry
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.platforms import current_platform

from trinity.engine.vllm.worker import WorkerCalls

__all__ = ["WorkerCalls"]

_UNUSED = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")


@contextmanager
def _spared_torchvision() -> Iterator[None]:
    """Let modules that import torchvision be imported where it is missing.

    They do not use it here: vLLM's model file imports transformers' image preparation only for a function that computes
    sizes. The empty modules are removed after the import, so that no other code takes them for the package.
    """
    if importlib.util.find_spec(_UNUSED[0]) is not None:
        yield
        return
    import transformers  # noqa: F401 (it records which packages are installed, and must not find the empty modules)

    made = {name: ModuleType(name) for name in _UNUSED}
    for name, module in made.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, module)
    sys.modules |= made
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


def _take_prepared_images() -> None:
    with _spared_torchvision():
        from vllm.model_executor.models import qwen2_5_vl as family

    class PreparedSizes(family.Qwen2_5_VLProcessingInfo):
        """What vLLM asks before it starts: the most tokens of an image."""

        def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
            """Return `seq_len`: a prompt holds no larger image."""
            return {"image": seq_len}

    model = family.Qwen2_5_VLForConditionalGeneration
    MULTIMODAL_REGISTRY.register_processor(
        family.Qwen2_5_VLMultiModalProcessor, info=PreparedSizes, dummy_inputs=family.Qwen2_5_VLDummyInputsBuilder
    )(model)
    ModelRegistry.register_model(model.__name__, model)  # else vLLM imports it in a process without this module


if current_platform.is_cpu():
    _take_prepared_images()
