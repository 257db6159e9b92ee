"""Which models the torch engine does not serve: pure rules over `config.json`, read before anything is loaded.

The table of families is what the tests find for every causal family of the installed transformers; a family that it
does not name is judged by the engine when it loads the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WAY_OUT = "use explorer.rollout_model.engine_type: vllm, which may serve it"

_ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
)
_NEVER = {
    "blt": "its tokens are bytes that a second model puts into patches",
    "cpmant": "it puts trained tokens before each call's tokens",
    "gemma3n": "it is loaded with encoders of images and sound; take its text model (gemma3n_text)",
    "gemma4_assistant": "it continues the states of another model",
    "gemma4_unified_assistant": "it continues the states of another model",
    "musicgen": "it generates sound",
    "musicgen_melody": "it generates sound",
    "nemotron_h": "the step of its recurrent layers in transformers leaves out a bound that the forward pass has",
    "openai-gpt": "it keeps nothing between tokens",
    "prophetnet": "its step in transformers does not agree with its forward pass",
    "qwen4_exp": "it is loaded with encoders of images; take its text model (qwen4_exp_text)",
    "recurrent_gemma": "it keeps the state of its recurrent layers in the model and not with the row",
    "reformer": "its tokens see those after them",
    "xlm": "its tokens see those after them",
    "xlnet": "its tokens see those after them",
    "xlstm": "its step in transformers does not take the state that its forward pass leaves",
    "zamba2": "the step of its recurrent layers in transformers leaves out a bound that the forward pass has",
}
UNSERVED: Mapping[str, str] = _NEVER | dict.fromkeys(_ENCODERS.split(), "its tokens see those after them")
"""Family, and what the engine lacks for it. An encoder is served where it is made a decoder (`is_decoder: true`)."""


def engine_refusal(config: Mapping[str, Any]) -> str | None:
    """Return why the torch engine does not serve the model of a `config.json`, and the way out; None if it may."""
    family = str(config.get("model_type"))
    if family not in UNSERVED or (family in _ENCODERS.split() and config.get("is_decoder")):
        return None
    return f"the torch engine does not serve the model family {family}: {UNSERVED[family]}; {WAY_OUT}"


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
