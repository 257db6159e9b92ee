"""The start of vLLM: checks of the installation, and a trial update."""

from __future__ import annotations

import importlib.util
import os
from importlib import import_module
from typing import Any

import torch

from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.engine.vllm.settings import (
    IMAGE_WORKER_CALLS,
    SHARED_NAMES,
    TORCH_INSTEAD,
    check_device,
    check_version,
    process_environment,
)
from trinity.engine.vllm.state import start_lock
from trinity.engine.vllm.weights import ModelFacts
from trinity.runtime.scratch import Scratch
from trinity.utils.environment import environment

_FLOAT32_DIFFERENCE, _OTHER_DIFFERENCE = 1e-4, 0.1  # in nats: the order of summation may differ


def check_installed() -> None:
    """Verify that a supported vLLM is installed and fits this machine.

    Raises:
        EnvironmentProblem: vLLM is missing (E3301), of another version (E3221), or needs a GPU (E3201).
    """
    if importlib.util.find_spec("vllm") is None:
        raise EnvironmentProblem(
            f'engine_type vllm needs the package vllm: pip install "trinity-rft[vllm]", or {TORCH_INSTEAD}',
            code="E3301",
        )
    with start_lock, environment(process_environment(not torch.cuda.is_available())):
        import vllm
        from vllm.platforms import current_platform

    check_version(vllm.__version__)
    check_device(bool(current_platform.is_cpu()), has_cuda=torch.cuda.is_available())


def async_llm(arguments: dict[str, Any], *, is_cpu: bool) -> tuple[Any, Scratch]:
    """Return a started AsyncLLM and the scratch folder of its processes.

    Raises:
        ConfigError: an argument that vLLM does not know (E1612).
        EnvironmentProblem: there is no room for the folder (E3605).
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    if arguments["worker_extension_cls"] == IMAGE_WORKER_CALLS:
        import_module(IMAGE_WORKER_CALLS.rpartition(".")[0])  # this process asks for the sizes of images, too

    unknown = sorted(arguments.keys() - AsyncEngineArgs.__dataclass_fields__.keys())
    if unknown:
        raise ConfigError(
            f"explorer.rollout_model.extra_engine_args: this version of vLLM has no argument {unknown[0]!r}",
            code="E1612",
        )
    scratch = Scratch(os.environ.get("VLLM_RPC_BASE_PATH", ""))
    carried = arguments["additional_config"] | {SHARED_NAMES: scratch.names}
    variables = process_environment(is_cpu, str(scratch.path))
    try:
        with start_lock, environment(variables), scratch.names.given():
            made = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments | {"additional_config": carried}))
    except BaseException:
        scratch.remove()
        raise
    return made, scratch


def trial_of(facts: ModelFacts, dtype: torch.dtype) -> tuple[str, list[str], list[str], str]:
    """Return folder, trained and other weight names, and data type."""
    names = facts.names
    assert names is not None, "the weights of an auxiliary model stay as loaded"
    return str(facts.folder), list(names.written), sorted(names.constant), str(dtype).removeprefix("torch.")


def difference(before: list[float], after: list[float], *, dtype: torch.dtype) -> str | None:
    """Return how log-probabilities that should be equal differ, or None.

    Args:
        before: those of a sequence before a reload of the same weights.
        after: those after it.
        dtype: data type of the engine's weights.
    """
    allowed = _FLOAT32_DIFFERENCE if dtype == torch.float32 else _OTHER_DIFFERENCE
    found = float((torch.tensor(before) - torch.tensor(after)).abs().max()) if before else 0.0  # NaN is the largest
    return None if found <= allowed else f"whose log-probabilities differ by {found:.2g} on reloading the same weights"


def refusal(facts: ModelFacts, reason: str) -> EnvironmentProblem:
    """Return the error for a model whose weights cannot be replaced."""
    import vllm

    return EnvironmentProblem(
        f"vLLM {vllm.__version__} cannot take new weights of this {facts.model_type} model, {reason}; use "
        f"{TORCH_INSTEAD}",
        code="E3226",
    )
