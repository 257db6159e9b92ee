"""What the engine needs of a model: prefill of prompts, one decoding step over slots, logprobs of a sequence.

Dimension key: B = rows of a step, G = prompts, P = prompt tokens, T = tokens of a sequence, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from trinity.common.errors import EngineError, EnvironmentProblem, SyncError
from trinity.common.models.model_config import read_model_config
from trinity.common.models.torch_engine.fast_decoder import FastDecoder, is_fast
from trinity.common.models.torch_engine.hf_decoder import HFDecoder
from trinity.common.models.torch_engine.kv_cache import KVCache, Prefix
from trinity.common.models.torch_engine.weights import copy_weights, has_safetensors, model_folder, read_tensors


@runtime_checkable
class Decoder(Protocol):
    """A causal language model with its own copy of the weights.

    Attributes:
        vocab_size: V, the width of the logits.
        kv_bytes_per_token: memory of one cached position, in bytes; 0 if unknown.
        device: where it computes.
        kind: `fast` or `hf`, for the log.
        can_share_prompts: a step may attend to prompts that several slots share; their slots hold what follows.
    """

    vocab_size: int
    kv_bytes_per_token: int
    device: torch.device
    kind: str
    can_share_prompts: bool

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], Prefix]:
        """Return the float32 logits after position `last` of each prompt (padded on the right), and the cache."""

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the float32 logits after `tokens`, which stand at `positions` of slots 0 to B - 1.

        Writes the keys and values of the tokens to the cache; attends to the first `width` positions of its slots
        and to the prompts that they share.
        """

    def sequence_logprobs(self, tokens: Int[Tensor, "T"], temperature: float) -> Float[Tensor, "T-1"]:
        """Return the logprob of each token but the first, given those before it, in float32."""

    def targets(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name, as views that may be written to."""

    def optional_names(self) -> frozenset[str]:
        """Return names that a state dict may hold besides: tied copies."""


def load_decoder(
    model_path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    trust_remote_code: bool = False,
    is_fast_allowed: bool = True,
    overrides: Mapping[str, Any] | None = None,
) -> Decoder:
    """Return the decoder of a Hugging Face folder with its weights loaded: the fast path where it fits.

    `overrides` are set in the model's configuration (`override_config`).

    Raises:
        ConfigError: an override that the model's configuration does not have (E1885).
        EnvironmentProblem: the folder has no readable model (E3101), or no safetensors (E3104).
        EngineError: a sliding window shorter than `max_model_len` (E5603).
    """
    folder = model_folder(model_path)
    try:
        config = read_model_config(str(folder), overrides or {}, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot read the model in {folder}: {error}", code="E3101") from error
    if not has_safetensors(folder):
        raise EnvironmentProblem(
            f"{folder} has no weights in safetensors files; pickle files (*.bin) can run code when read and are not "
            "read; convert them with save_pretrained of a trusted copy",
            code="E3104",
        )
    if is_fast_allowed and is_fast(config, max_model_len=max_model_len):
        fast = FastDecoder(config, dtype=dtype, device=device, max_model_len=max_model_len)
        try:
            copy_weights(fast.targets(), _read(folder), optional=fast.optional_names(), source=str(folder))
        except (SyncError, SafetensorError, OSError) as error:
            raise EnvironmentProblem(f"cannot read the weights in {folder}: {error}", code="E3101") from error
        return fast
    check_window(config, max_model_len=max_model_len)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, trust_remote_code=trust_remote_code, use_safetensors=True
    )
    return HFDecoder(model.to(device).eval().requires_grad_(False))


def _read(folder: Path) -> Mapping[str, Tensor]:
    # Older Llama folders hold a table that is computed, not learnt.
    return {name: tensor for name, tensor in read_tensors(folder) if not name.endswith("rotary_emb.inv_freq")}


def check_window(config: PreTrainedConfig, *, max_model_len: int) -> None:
    """Refuse a sliding attention window that a sequence could outgrow.

    Raises:
        EngineError: the window is active and shorter than `max_model_len` (E5603).
    """
    values = config.to_dict()
    window = values.get("sliding_window")
    is_active = values.get("use_sliding_window", True) and "sliding_attention" in (values.get("layer_types") or [])
    if window and is_active and window < max_model_len:
        raise EngineError(
            f"the torch engine does not serve sequences longer than the model's sliding window ({window} tokens), "
            f"got model.max_model_len {max_model_len}; lower it or use explorer.rollout_model.engine_type=vllm",
            code="E5603",
        )
