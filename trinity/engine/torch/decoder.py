"""The engine's interface to a model: prefill, decoding step, logprobs.

Dimension key: B = rows of a step, G = prompts, P = prompt tokens, T = tokens of a sequence, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from trinity.common.errors import EngineError, EnvironmentProblem, SyncError
from trinity.common.models.families import ENGINE_WAY_OUT, engine_problem
from trinity.common.models.model_config import read_model_config
from trinity.common.models.rotary import settle_rotary
from trinity.common.models.weights import copy_weights, has_safetensors, model_folder, read_tensors
from trinity.engine.torch.fast_decoder import FastDecoder, is_fast
from trinity.engine.torch.hf_decoder import HFDecoder
from trinity.engine.torch.row_decoder import RowDecoder
from trinity.utils.device import is_out_of_memory
from trinity.utils.log import get_logger


class Prompts(Protocol):
    """A decoder's cache of prompts after their prefill."""

    def row(self, index: int, length: int) -> Prompts:
        """Return the cache of one prompt of `length` tokens."""


class SlotStates(Protocol):
    """A decoder's cache of the rows in slots; see `KVCache`."""

    def reserve(self, rows: int, width: int) -> None:
        """Allocate at least `rows` slots of `width` positions."""

    def write(self, slots: Sequence[int], prefix: Any) -> None:
        """Copy a prompt into each of `slots`; the same decoder made `prefix`."""

    def share(self, slots: Sequence[int], prefix: Any) -> None:
        """Let `slots` read one prompt, if the decoder can share prompts."""

    def release(self, slots: Sequence[int]) -> None:
        """Release the prompts that `slots` share."""

    def move(self, sources: Sequence[int], targets: Sequence[int], *, width: int) -> None:
        """Move the first `width` positions of slots `sources` to `targets`."""

    def clear(self) -> None:
        """Free the memory."""


@runtime_checkable
class Decoder(Protocol):
    """A causal language model with its own copy of the weights.

    Attributes:
        vocab_size: V, the width of the logits.
        kv_bytes_per_token: memory of one cached position, in bytes; 0 if unknown.
        device: device of the weights.
        kind: `fast`, `hf` or `hf, row by row`, for the log.
        can_share_prompts: a step may attend to prompts that several slots share; their slots hold what follows.
    """

    vocab_size: int
    kv_bytes_per_token: int
    device: torch.device
    kind: str
    can_share_prompts: bool

    def new_cache(self, num_slots: int, max_length: int, *, is_fixed: bool) -> SlotStates:
        """Return the cache of `num_slots` rows of up to `max_length` tokens.

        See `KVCache`.
        """

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], Prompts]:
        """Return float32 logits after `last` of right-padded prompts, and a cache."""

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: Any, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the float32 logits after `tokens` in slots 0 to B - 1.

        The tokens are at `positions`. Their keys and values are written to the cache. They attend to the first `width`
        positions of their slots and to the prompts that the slots share.
        """

    def sequence_logprobs(self, tokens: Int[Tensor, "T"], temperature: float) -> Float[Tensor, "T-1"]:
        """Return the float32 logprob of each token but the first.

            logprobs[t] = log_softmax(logits after tokens[..t] / temperature)[tokens[t + 1]]

        The sequence is scored in one forward pass.
        """

    def targets(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name, as writable views."""

    def optional_names(self) -> frozenset[str]:
        """Return further names that a state dict may hold, such as tied copies."""


def load_decoder(
    model_path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    trust_remote_code: bool = False,
    is_fast_allowed: bool = True,
    overrides: Mapping[str, Any] | None = None,
    rotary_len: int | None = None,
) -> Decoder:
    """Return a Hugging Face folder's decoder, loaded; fast path if possible.

    `overrides` are set in the model's configuration (`override_config`). `rotary_len` is the length by which rotary
    frequencies are chosen; None: `max_model_len`.

    Raises:
        ConfigError: an override that the model's configuration does not have (E1885), or rotary positions that depend
            on the length of the row (E1895).
        EnvironmentProblem: the folder has no readable model (E3101), or no safetensors (E3104).
        EngineError: the family is not served (E5604).
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
    if problem := engine_problem(config.to_dict()):
        raise EngineError(problem, code="E5604")
    if is_fast_allowed and is_fast(config, max_model_len=max_model_len):
        fast = FastDecoder(config, dtype=dtype, device=device, max_model_len=max_model_len)
        try:
            copy_weights(fast.targets(), _read(folder), optional=fast.optional_names(), source=str(folder))
        except (SyncError, SafetensorError, OSError) as error:
            raise EnvironmentProblem(f"cannot read the weights in {folder}: {error}", code="E3101") from error
        return fast
    try:
        # The families' own attention: with PyTorch's, older families do not always compute the same.
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            attn_implementation="eager",
        )
    except (OSError, ValueError, ImportError) as error:
        raise EnvironmentProblem(f"cannot load the model in {folder}: {error}", code="E3101") from error
    settle_rotary(model, max_model_len=rotary_len or max_model_len)
    return hf_decoder(model.to(device).eval().requires_grad_(False), max_model_len=max_model_len)


def _read(folder: Path) -> Mapping[str, Tensor]:
    # Older Llama folders hold a table that is computed, not learned.
    return {name: tensor for name, tensor in read_tensors(folder) if not name.endswith("rotary_emb.inv_freq")}


def hf_decoder(model: PreTrainedModel, *, max_model_len: int) -> Decoder:
    """Return the decoder of a Hugging Face model: over slots, else row by row.

    Raises:
        EngineError: the model supports neither (E5604).
    """
    try:
        return HFDecoder(model)
    # A family that works differently may raise any error.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        get_logger("explorer").debug("%s does not fit slots: %s", type(model).__name__, error)
    try:
        decoder = RowDecoder(model, max_model_len=max_model_len)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise EngineError(
            f"the torch engine does not serve the model family {model.config.model_type}: {error}; {ENGINE_WAY_OUT}",
            code="E5604",
        ) from error
    get_logger("explorer").warning(
        "the torch engine computes one row a call for the model family %s, which is slow: its state or its attention "
        "is of its own kind; %s",
        *(model.config.model_type, ENGINE_WAY_OUT),
    )
    return decoder
