"""Token ids that may be drawn: a tokenizer's need not be contiguous."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.common.errors import EnvironmentProblem
from trinity.common.models.hub import model_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Drawable:
    """The token ids that may be drawn.

    Attributes:
        num_tokens: ids from here on are never drawn.
        unknown_ids: smaller ids that are not drawn either, ascending.
        stop_ids: ids that may be drawn and end a response, ascending.
    """

    num_tokens: int
    unknown_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]


def known_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of all tokens of a tokenizer, added ones included."""
    return frozenset(tokenizer.get_vocab().values()) | frozenset(tokenizer.added_tokens_decoder)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the tokens that a text without special tokens lacks."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(tokenizer.all_special_ids) | {index for index, token in added if token.special}


def drawable(tokenizer: PreTrainedTokenizerBase, vocab_size: int, stop_ids: Collection[int]) -> Drawable:
    """Return the ids that a model may draw.

    They are those of the tokenizer and the stop ids, as far as the model has logits for them.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: width of the logits.
        stop_ids: ids that end a response; the model's files may name one that the tokenizer lacks.
    """
    ids = {index for index in known_ids(tokenizer) | frozenset(stop_ids) if index < vocab_size}
    num_tokens = max(ids, default=-1) + 1
    stops = tuple(sorted(index for index in set(stop_ids) if index < vocab_size))
    return Drawable(num_tokens, tuple(index for index in range(num_tokens) if index not in ids), stops)


def stop_token_ids(model_path: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids that end a response.

    They are those of `generation_config.json` and the tokenizer's end of sequence.

    Raises:
        EnvironmentProblem: no such model (E3101), or a file that cannot be read (E3102).
    """
    found: set[int] = set()
    file = model_folder(model_path) / "generation_config.json"
    if file.is_file():
        try:
            named = dict(json.loads(file.read_text(encoding="utf-8"))).get("eos_token_id")
        except (OSError, TypeError, ValueError) as error:
            raise EnvironmentProblem(f"cannot read {file}: {error}", code="E3102") from error
        found |= {named} if isinstance(named, int) else set(named or [])
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    return sorted(found)
