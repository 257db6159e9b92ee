"""Loading of a Hugging Face model into the engine's fallback decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from trinity.common.errors import EngineError, EnvironmentProblem
from trinity.common.models.families import ENGINE_WAY_OUT
from trinity.common.models.rotary import settle_rotary
from trinity.engine.torch.decoder import Decoder
from trinity.engine.torch.hf_decoder import HFDecoder
from trinity.engine.torch.row_decoder import RowDecoder
from trinity.utils.device import is_out_of_memory
from trinity.utils.log import get_logger


def load_hf_decoder(
    folder: Path,
    config: PreTrainedConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    trust_remote_code: bool,
    rotary_len: int,
) -> Decoder:
    """Return the decoder of a folder's Hugging Face model, with its weights.

    See `load_decoder`.

    Raises:
        ConfigError: rotary positions that depend on the length of the row (E1895).
        EnvironmentProblem: the model cannot be loaded (E3101).
        EngineError: the family is not served (E5604).
    """
    transformers_logging.disable_progress_bar()
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
    settle_rotary(model, max_model_len=rotary_len)
    return hf_decoder(model.to(device).eval().requires_grad_(False), max_model_len=max_model_len)


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
