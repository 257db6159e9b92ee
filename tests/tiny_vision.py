"""A tiny Qwen2.5-VL made in the tests: patches of 4 x 4 pixels, one token for 8 x 8, and a character tokenizer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from tests.tiny import CHARACTERS, spread, tiny_tokenizer
from trinity.common.experience import Experience
from trinity.common.images.picture import ImageReader, of_inputs

IMAGE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% elif message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}"
)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}


def tiny_vision_model(
    path: Path | str, seed: int = 0, *, scale: float = 4.0, characters: str = CHARACTERS, **text: Any
) -> PreTrainedModel:
    """Write a vision-language model with random float32 weights to the folder `path`; return it.

    Args:
        path: the folder, made if absent.
        seed: of the weights; the caller's random generator is left alone.
        scale: factor on the usual initial weights.
        characters: the tokenizer's characters.
        text: sizes of the language model.
    """
    tokenizer = tiny_tokenizer(path, characters=characters, chat_template=CHAT_TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    tokenizer.save_pretrained(path)
    ids = dict(zip(IMAGE_TOKENS, tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS)), strict=True))
    language = TEXT | {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0} | text
    config = Qwen2_5_VLConfig(
        text_config=language,
        vision_config=VISION | {"out_hidden_size": language["hidden_size"]},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config).float()
        spread(model, scale)
    model.eval()
    model.save_pretrained(path)
    size = {"shortest_edge": 64, "longest_edge": 4096}
    Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size).save_pretrained(path)
    return model


def picture(seed: int, width: int = 16, height: int = 24) -> bytes:
    """Return an image of noise as PNG."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    stream = io.BytesIO()
    Image.fromarray(numbers.numpy()).save(stream, "PNG")
    return stream.getvalue()


def asked(text: str, *images: bytes) -> list[dict[str, Any]]:
    """Return the messages of one question about images."""
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def reference_logprobs(model: PreTrainedModel, folder: Path | str, exp: Experience) -> torch.Tensor:
    """Return the log-probabilities of an experience's response by Hugging Face's own forward pass of the whole row."""
    given: dict[str, Any] = {}
    tokens = exp.tokens[None]
    if exp.multi_modal_inputs:
        reader = ImageReader(folder, merge_size=2)
        images = of_inputs(exp.multi_modal_inputs, length=exp.prompt_length, name=exp.eid.uid)
        pictures = [reader.read(data) for data, _ in images]
        given["pixel_values"] = torch.cat([each.pixels for each in pictures])
        given["image_grid_thw"] = torch.tensor([each.grid for each in pictures])
        given["mm_token_type_ids"] = (tokens == model.config.image_token_id).int()
    model.model.rope_deltas = None
    logits = model(input_ids=tokens, use_cache=False, **given).logits[0]
    logprobs = torch.log_softmax(logits[:-1].float(), -1).gather(1, exp.tokens[1:, None])[:, 0]
    return logprobs[exp.prompt_length - 1 :]
