"""Prompts with images for vLLM, prepared here.

vLLM is handed what its own preparation would return: tokens, pixels, places and a name. So they are
bitwise those of the trainer.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BatchFeature
from vllm.inputs.engine import mm_input
from vllm.multimodal import MultiModalKwargsItems
from vllm.multimodal.inputs import MultiModalFieldConfig, PlaceholderRange

from trinity.common.images.picture import places_of
from trinity.engine.image_prompts import SeenPrompt

_IMAGE = "image"


def engine_input(prompt: SeenPrompt) -> Any:
    """Return a prompt with images as vLLM's engine takes it.

    Each image is known by the hash of its content, so that vLLM's caches serve equal images alone.
    """
    pictures, places = prompt.pictures, places_of(prompt.keys, prompt.pictures)
    grids = torch.tensor([picture.grid for picture in pictures])
    given = {"pixel_values": torch.cat([picture.pixels for picture in pictures]), "image_grid_thw": grids}
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes(_IMAGE, grids.prod(-1)),
        "image_grid_thw": MultiModalFieldConfig.batched(_IMAGE, keep_on_cpu=True),
    }
    return mm_input(
        prompt.tokens,
        MultiModalKwargsItems.from_hf_inputs(BatchFeature(given), fields),
        {_IMAGE: [f"{picture.number:x}" for picture in pictures]},
        {_IMAGE: [PlaceholderRange(offset=place.start, length=place.count) for place in places]},
    )
