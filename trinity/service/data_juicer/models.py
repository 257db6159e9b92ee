"""Which model the operators of a recipe ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trinity.common.errors import ConfigError
from trinity.service.data_juicer.recipe import Recipe
from trinity.utils.log import redact

_SAMPLING = (
    "engine_type",
    "dtype",
    "temperature",
    "top_p",
    "top_k",
    "max_model_len",
    "max_prompt_tokens",
    "max_response_tokens",
    "min_response_tokens",
    "enable_thinking",
    "chat_template",
    "seed",
)
ASKED = ("api_or_hf_model", "api_model")
BASE_URL_ENV_VAR = "OPENAI_BASE_URL"


def asked_models(recipe: Recipe) -> list[str]:
    """Return the models that operators ask over HTTP, each once."""
    return list(dict.fromkeys(str(args[name]) for _, args in recipe.operators for name in ASKED if name in args))


def identities(recipe: Recipe, models: Mapping[str | int, Any]) -> list[dict[str, Any]]:
    """Return what the answers of the asked models depend on, in JSON types.

    Of a model of the run that is its files and how it samples; of a service, its address.
    """
    found: list[dict[str, Any]] = []
    for name in asked_models(recipe):
        own = models.get(name)
        if own is None:
            found.append({"model": name, "address": redact(os.environ.get(BASE_URL_ENV_VAR, ""))})
            continue
        sampling = own.model_config.model_dump(mode="json", include=set(_SAMPLING))
        found.append({"model": name, "path": own.model_path, "files": _files(Path(own.model_path)), **sampling})
    return found


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of the files of a model."""
    if not folder.is_dir():
        return []
    stats = ((path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file())
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def with_models(recipe: Recipe, models: Mapping[str | int, Any], *, timeout_s: float) -> Recipe:
    """Return the recipe with the addresses of the models of this run.

    Args:
        recipe: as written.
        models: those of the run by name, with `api_address` and `api_key`.
        timeout_s: longest wait for one answer.

    Raises:
        ConfigError: a model is none of them, and nothing says where else it answers (E1933).
    """
    found = tuple((name, _with_model(name, args, models, timeout_s)) for name, args in recipe.operators)
    seeded = frozenset(_address(models[name]) for name in asked_models(recipe) if name in models)
    return replace(recipe, operators=found, seeded=seeded)


def _address(model: Any) -> str:
    return f"{model.api_address}/v1"


def _with_model(name: str, args: dict[str, Any], models: Mapping[str | int, Any], timeout_s: float) -> dict[str, Any]:
    asked = next((str(args[key]) for key in ASKED if key in args), None)
    params = dict(args.get("model_params") or {})
    if asked is None or "base_url" in params:
        return args
    own = models.get(asked)
    if own is not None:
        place = {"base_url": _address(own), "api_key": own.api_key, "max_retries": 0, "timeout": timeout_s}
        return {**args, "model_params": place | params}
    if os.environ.get(BASE_URL_ENV_VAR):
        return args
    known = ", ".join(str(each) for each in models if isinstance(each, str)) or "none"
    raise ConfigError(
        f"the operator {name} asks the model {asked!r}, which is none of explorer.auxiliary_models (by name: {known}); "
        f"name one of them, or set {BASE_URL_ENV_VAR} and OPENAI_API_KEY to those of a service",
        code="E1933",
    )
