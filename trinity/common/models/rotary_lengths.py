"""Lengths beyond which rotary frequencies follow the row, read from `config.json` before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def rotary_refusal(config: Mapping[str, Any], max_model_len: int | None) -> str | None:
    """Return why rows of `max_model_len` tokens (None: of any length) have no fixed rotary frequencies; None if so.

    With `dynamic` scaling the frequencies follow the length of the row beyond the model's own: the tokens sampled
    first would have to be computed anew with each that follows. With `longrope` there is one other set of frequencies;
    rows that may become longer have it from their start, see `settle_rotary`.
    """
    limits = [limit for limit in _limits(config) if max_model_len is None or limit < max_model_len]
    if not limits:
        return None
    return (
        f"the rotary positions of this model (dynamic) change with the length of a row beyond {min(limits)} tokens, so "
        "that earlier tokens would get other log-probabilities, got model.max_model_len "
        f"{max_model_len or 'null'}; set it to {min(limits)} at most, or take another scaling, such as yarn, in the "
        "model's config.json"
    )


def _limits(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the lengths beyond which frequencies follow the length of the row, for each part of a model."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(given, Mapping):
        for rope in (given, *(one for one in given.values() if isinstance(one, Mapping))):
            kind, own = rope.get("rope_type", rope.get("type")), config.get("max_position_embeddings")
            if kind == "dynamic" and isinstance(own, int):
                yield own
            # Phi-3.5-MoE switches a factor of the scores, too, and its long frequencies never come into effect.
            if kind == "longrope" and "long_mscale" in rope:
                yield int(rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"])
    for name, part in config.items():
        if name.endswith("_config") and isinstance(part, Mapping):
            yield from _limits(part)
