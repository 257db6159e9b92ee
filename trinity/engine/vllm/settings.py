"""Settings of the vLLM engine, taken from the configuration.

Keys of `explorer.rollout_model` become arguments of vLLM's engine; unsupported ones are refused by name. Imports no
vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import xxhash

from trinity.common.config import Config
from trinity.common.config.engine_args import IMAGE_CACHE_ARGS
from trinity.common.config.engine_refusals import unspread_replicas, vllm_refusals
from trinity.common.config.keys import value_of
from trinity.common.errors import EnvironmentProblem
from trinity.engine.settings import EngineSettings, check, section_key, shared_settings
from trinity.engine.vllm.core_watch import ProbeTimes
from trinity.utils.device import total_memory_bytes
from trinity.utils.log import get_logger

OWN_ARGS = "trinity"
"""Name of this project's part of vLLM's `additional_config` and of a request's `extra_args`."""

SHARED_NAMES = "shared_names"
"""Name of the part of `additional_config` with the prefix of the processes' names in shared memory."""

MIN_VERSION, END_VERSION = (0, 32), (0, 34)
TORCH_INSTEAD = "--set explorer.rollout_model.engine_type=torch"

SAMPLER = "trinity.engine.vllm.worker:RowSampler"
WORKER_CALLS = "trinity.engine.vllm.worker.WorkerCalls"
IMAGE_WORKER_CALLS = "trinity.engine.vllm.image_worker.WorkerCalls"

_CPU_CACHE_FRAC = 0.4
_MIN_CACHE_BYTES = 64 << 20
_CPU_BLOCK_TOKENS = 32


@dataclass(frozen=True)
class VLLMSettings(EngineSettings):
    """Settings of one vLLM engine.

    Attributes:
        engine_args: arguments of vLLM's engine as written, without those that depend on model and device.
        has_request_log: log every request.
        probes: interval and deadlines of the health probes.
    """

    engine_args: Mapping[str, Any] = field(default_factory=dict)
    has_request_log: bool = False
    probes: ProbeTimes = field(default_factory=ProbeTimes)


def vllm_settings(config: Config, auxiliary: int | None = None) -> VLLMSettings:
    """Return the engine settings of the rollout or an auxiliary model.

    Raises:
        ConfigError: `deterministic` (E3220), replicas inside the engine (E3223), an argument of vLLM that has its own
            key or that only the engine may set (E3224).
        NotAvailableError: a value that no engine serves (E1900).
    """
    key = section_key(auxiliary)
    check(chain(vllm_refusals(config, key), unspread_replicas(config, key)))
    explorer, rollout, base = config.explorer, value_of(config, key), shared_settings(config, auxiliary)
    own = ("tensor_parallel_size", "pipeline_parallel_size", "enforce_eager", "enable_prefix_caching",
           "enable_chunked_prefill", "gpu_memory_utilization", "enable_expert_parallel", "seed")  # fmt: skip
    return VLLMSettings(
        **{name: base.__dict__[name] for name in EngineSettings.__dataclass_fields__},
        engine_args={name: rollout.__dict__[name] for name in own} | rollout.extra_engine_args,
        has_request_log=rollout.enable_log_requests,
        probes=ProbeTimes(explorer.engine_probe_interval, explorer.engine_probe_timeout, base.timeout_s),
    )


def check_version(version: str) -> None:
    """Verify that this engine supports a version of vLLM.

    Raises:
        EnvironmentProblem: it does not (E3221).
    """
    parts = version.split(".")
    try:
        found = int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        found = (0, 0)
    if not MIN_VERSION <= found < END_VERSION:
        raise EnvironmentProblem(
            f'vLLM must be {version_range()}, got {version}; pip install "trinity-rft[vllm]", or {TORCH_INSTEAD}',
            code="E3221",
        )


def version_range() -> str:
    """Return the supported versions of vLLM, as pip writes them."""
    return f">={MIN_VERSION[0]}.{MIN_VERSION[1]},<{END_VERSION[0]}.{END_VERSION[1]}"


def check_device(is_cpu_build: bool, *, has_cuda: bool) -> None:
    """Verify that vLLM's build fits the machine.

    Raises:
        EnvironmentProblem: a CUDA build without a GPU (E3201).
    """
    if not is_cpu_build and not has_cuda:
        raise EnvironmentProblem(
            f"this build of vLLM needs a GPU, and PyTorch sees none; use {TORCH_INSTEAD}, or install a CPU build of "
            "vLLM",
            code="E3201",
        )


def process_environment(is_cpu: bool, folder: str = "") -> dict[str, str]:
    """Return the environment variables of vLLM's processes.

    Variables that the user has set are kept, but for the places of sockets and temporary files, which are in `folder`.
    On a CPU: one OpenMP thread, since a waiting one spins, and two beside a busy process are slower than one; nothing
    compiled, since the first request with log-probabilities would wait for it; and no binding to cores, which the
    trainer uses as well.
    """
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_LEVEL": "ERROR" if is_cpu else "WARNING",
    }
    if is_cpu:
        wanted |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
        }
    places = {"VLLM_RPC_BASE_PATH": folder, "TMPDIR": folder} if folder else {}
    return {name: os.environ.get(name, value) for name, value in wanted.items()} | places


def engine_arguments(
    settings: VLLMSettings,
    text_config: Any,
    *,
    folder: Path,
    dtype: torch.dtype,
    is_cpu: bool,
    own: Mapping[str, Any],
    changed: Mapping[str, Any] | None = None,
    has_images: bool = False,
) -> dict[str, Any]:
    """Return the arguments of vLLM's engine.

    They are those a CPU needs, those configured, and those the engine relies on.

    Args:
        settings: settings of the engine.
        text_config: sizes of the language model.
        folder: folder of the model.
        dtype: data type of the weights; vLLM's own choice would round a float32 model to bfloat16.
        is_cpu: vLLM computes on a CPU.
        own: parameters of the sampler.
        changed: entries of the model's configuration, which vLLM replaces as a whole.
        has_images: the model's family is one whose images are served.
    """
    arguments: dict[str, Any] = {"max_num_seqs": settings.max_num_seqs} | _image_arguments(has_images, is_cpu=is_cpu)
    arguments |= {name: value for name, value in settings.engine_args.items() if name not in IMAGE_CACHE_ARGS}
    if is_cpu:
        needed = _cpu_arguments(settings, text_config, element_bytes=dtype.itemsize)
        arguments = needed | arguments | {"enforce_eager": True}
        shown = {name: arguments[name] for name in needed}
        get_logger("explorer").info("vLLM on a CPU: %s, environment %s", shown, process_environment(True))
    return arguments | {
        "model": str(folder),
        "hf_overrides": settings.engine_args.get("hf_overrides", {}) | dict(changed or {}),
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": settings.model.max_model_len,
        "trust_remote_code": settings.model.trust_remote_code,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logits",
        "logits_processors": [SAMPLER],
        "worker_extension_cls": IMAGE_WORKER_CALLS if has_images else WORKER_CALLS,
        "additional_config": {OWN_ARGS: dict(own)},
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enable_log_requests": settings.has_request_log,
    }


def _image_arguments(has_images: bool, *, is_cpu: bool) -> dict[str, Any]:
    """Return what vLLM starts and keeps for images.

    If the model's images are not served, its image part is not started, and vLLM need not know the names of that part's
    weights. Prepared images are kept by this engine alone.
    """
    if not has_images:
        return {"language_model_only": True}
    # Pixels are handed over as the model takes them, so vLLM must not normalise them again.
    own = {"limit_mm_per_prompt": {"video": 0}, "mm_processor_cache_gb": 0, "mm_device_do_normalize": False}
    return own | ({"skip_mm_profiling": True} if is_cpu else {})


def _cpu_arguments(settings: VLLMSettings, text_config: Any, *, element_bytes: int) -> dict[str, Any]:
    """Return vLLM's arguments for a CPU: eager mode and a small fixed cache."""
    query_heads = getattr(text_config, "num_attention_heads", None) or 1  # a family without attention has none
    heads = getattr(text_config, "num_key_value_heads", None) or query_heads
    head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // query_heads
    token_bytes = 2 * text_config.num_hidden_layers * heads * head_dim * element_bytes
    length = -(-(settings.model.max_model_len or 1) // _CPU_BLOCK_TOKENS) * _CPU_BLOCK_TOKENS
    room = int(total_memory_bytes(torch.device("cpu")) * _CPU_CACHE_FRAC)
    cache = min(room, token_bytes * length * (settings.max_num_seqs + 1))
    return {
        "enforce_eager": True,
        "block_size": _CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": max(_MIN_CACHE_BYTES, cache),
    }


def file_digest(path: str | Path) -> str:
    """Return the 128-bit xxh3 of a file's bytes, in hexadecimal digits."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
