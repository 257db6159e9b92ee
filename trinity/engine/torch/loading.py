"""Loading of a model folder into the decoder that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedConfig

from trinity.common.errors import EngineError, EnvironmentProblem, SyncError
from trinity.common.models.families import engine_problem
from trinity.common.models.hub import model_folder
from trinity.common.models.model_config import read_model_config
from trinity.common.models.vision import is_vision, language_config, module_name
from trinity.common.models.weights import copy_weights, has_safetensors, read_tensors
from trinity.engine.torch.decoder import Decoder
from trinity.engine.torch.fast_decoder import FastDecoder, is_fast


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
    is_exact: bool = True,
) -> Decoder:
    """Return a Hugging Face folder's decoder, loaded; fast path if possible.

    `overrides` are set in the model's configuration (`override_config`). `rotary_len` is the length by which rotary
    frequencies are chosen; None: `max_model_len`. With `is_exact` the fast path's bits of a row do not depend on other
    rows.

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
    language = language_config(config) if is_vision(config) else config
    if is_fast_allowed and is_fast(language, max_model_len=max_model_len):
        fast = _fast_class(config)(config, dtype=dtype, device=device, max_model_len=max_model_len, is_exact=is_exact)
        try:
            weights = _read(folder, is_vision=is_vision(config))
            copy_weights(fast.targets(), weights, optional=fast.optional_names(), source=str(folder))
        except (SyncError, SafetensorError, OSError) as error:
            raise EnvironmentProblem(f"cannot read the weights in {folder}: {error}", code="E3101") from error
        return fast
    if is_vision(config):
        raise _unusual(config.model_type)
    from trinity.engine.torch.hf_loading import load_hf_decoder  # with all of transformers, seconds of imports

    return load_hf_decoder(
        folder,
        config,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        trust_remote_code=trust_remote_code,
        rotary_len=rotary_len or max_model_len,
    )


def _fast_class(config: PreTrainedConfig) -> type[FastDecoder]:
    if not is_vision(config):
        return FastDecoder
    from trinity.engine.torch.vision_decoder import VisionDecoder  # with all of transformers, seconds of imports

    return VisionDecoder


def _unusual(kind: str) -> EngineError:
    return EngineError(
        f"the torch engine does not serve this model of type {kind}: its language model has a window, scaled rotary "
        "positions or another activation",
        code="E5604",
    )


def _read(folder: Path, *, is_vision: bool) -> Mapping[str, Tensor]:
    # Older Llama folders hold a table that is computed, not learned.
    read = {name: tensor for name, tensor in read_tensors(folder) if not name.endswith("rotary_emb.inv_freq")}
    return {module_name(name): tensor for name, tensor in read.items()} if is_vision else read
