"""Which tokens end a response."""

from __future__ import annotations

from transformers import GenerationConfig, PreTrainedTokenizerBase

from trinity.common.models.torch_engine.weights import model_folder


def stop_token_ids(model_path: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids that end a response: those of `generation_config.json` and the tokenizer's end of sequence."""
    found: set[int] = set()
    folder = model_folder(model_path)
    if (folder / "generation_config.json").is_file():
        named = GenerationConfig.from_pretrained(folder).eos_token_id
        found |= {named} if isinstance(named, int) else set(named or [])
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    return sorted(found)
