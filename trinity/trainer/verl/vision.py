"""The vision model of a policy that reads images.

Dimension key: n = image tokens, N = packed tokens, d = hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.images.picture import ImageReader
from trinity.common.models.families import VISION
from trinity.trainer.batch_images import BatchImage, PackedImages


class VisionPart:
    """Hugging Face's vision model over the parameters of the policy.

    It is no `nn.Module`: its parameters belong to the policy. Sharded ones are gathered together with the decoder's
    parameters outside of layers, even for rows without images, since every rank must take part.

    Args:
        model: the policy.
        dtype: data type of the products.
        is_adapted: compute with the adapter, where the vision model has one.

    Attributes:
        is_sharded: ranks hold parts of the parameters.
    """

    def __init__(self, model: Any, *, dtype: torch.dtype, is_adapted: bool = True) -> None:
        self.visual: nn.Module = model.model.visual
        self.dtype, self.is_adapted, self.is_sharded = dtype, is_adapted, False
        merge = int(model.config.vision_config.spatial_merge_size)
        self.reader = ImageReader(model.name_or_path, merge_size=merge)

    def seen(self, hidden: Float[Tensor, "N d"], packed: PackedImages | None) -> Float[Tensor, "N d"]:
        """Return the embeddings with those of images in their places.

        Without images, sharded parameters get a gradient of 0, since ranks add up the gradients of all parameters.
        """
        if packed is None:
            trained = [parameter for parameter in self.visual.parameters() if parameter.requires_grad]
            idle = self.is_sharded and torch.is_grad_enabled() and trained
            unchanged: Tensor = _Idle.apply(hidden, *trained) if idle else hidden
            return unchanged
        pictures = [self.reader.read(image.data) for image in packed.images]
        for image, picture in zip(packed.images, pictures, strict=True):
            if picture.grid != image.grid or picture.num_tokens != image.count:
                raise DataError(_other_grid(image, picture.grid), code="E4033")
        pixels = torch.cat([picture.pixels for picture in pictures]).to(hidden.device)
        grids = torch.tensor([picture.grid for picture in pictures], device=hidden.device)
        narrow = torch.autocast(hidden.device.type, self.dtype) if self.dtype != torch.float32 else nullcontext()
        with narrow, self._adapter():
            features = self.visual(pixels, grid_thw=grids, return_dict=True).pooler_output
        return hidden.index_copy(0, packed.places, features.to(hidden.dtype)[packed.parts])

    @contextmanager
    def _adapter(self) -> Iterator[None]:
        """Leave the adapter out in the context, unless `is_adapted`.

        PEFT's own switch is not used, because it also changes which parameters are trained.
        """
        modules = () if self.is_adapted else self.visual.modules()
        adapted: list[Any] = [module for module in modules if hasattr(module, "_disable_adapters")]
        before = [module._disable_adapters for module in adapted]
        for module in adapted:
            module._disable_adapters = True
        try:
            yield
        finally:
            for module, was_off in zip(adapted, before, strict=True):
                module._disable_adapters = was_off


class _Idle(torch.autograd.Function):
    """The embeddings [N, d] as they are; parameters get a gradient of 0."""

    @staticmethod
    def forward(ctx: Any, hidden: Float[Tensor, "N d"], *parameters: Shaped[Tensor, "..."]) -> Float[Tensor, "N d"]:
        ctx.save_for_backward(*parameters)
        return hidden.view_as(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "N d"]) -> tuple[Shaped[Tensor, "..."], ...]:
        return grad, *(torch.zeros_like(parameter) for parameter in ctx.saved_tensors)


def freeze_vision(model: Any) -> None:
    """Freeze the parameters of the vision model (`freeze_vision_tower`).

    Raises:
        EnvironmentProblem: the model has none (E3133).
    """
    if model.config.model_type not in VISION:
        raise EnvironmentProblem(
            f"freeze_vision_tower: a model of type {model.config.model_type} has no vision model here; remove it",
            code="E3133",
        )
    model.model.visual.requires_grad_(False)


def _other_grid(image: BatchImage, grid: tuple[int, int, int]) -> str:
    return (
        f"an image of the batch has the grid {image.grid} for the engine and {grid} for the trainer: both must have "
        "the same preprocessor_config.json"
    )
