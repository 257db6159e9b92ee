"""Lengths beyond which rotary frequencies vary, from `config.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def rotary_refusal(config: Mapping[str, Any], max_model_len: int | None) -> str | None:
    """Return why rows lack fixed rotary frequencies, or None if they do not.

    With `dynamic` scaling, frequencies follow the row's length once it exceeds the model's own: each new token would
    require computing the earlier ones again. `longrope` has one other set of frequencies, and rows that may grow that
    long use it from their start; see `settle_rotary`.

    Args:
        config: contents of the model's `config.json`.
        max_model_len: tokens of the longest row; None: any length.
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
    """Yield, per part of a model, the length beyond which frequencies vary."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(given, Mapping):
        for rope in (given, *(one for one in given.values() if isinstance(one, Mapping))):
            kind, own = rope.get("rope_type", rope.get("type")), config.get("max_position_embeddings")
            if kind == "dynamic" and isinstance(own, int):
                yield own
            # Phi-3.5-MoE also switches a factor of the scores, and its long frequencies never take effect.
            if kind == "longrope" and "long_mscale" in rope:
                yield int(rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"])
    for name, part in config.items():
        if name.endswith("_config") and isinstance(part, Mapping):
            yield from _limits(part)
