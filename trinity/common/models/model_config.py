"""A model's configuration with the entries that a run overrides.

Also imports the modules that a model needs before it is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, PreTrainedConfig

from trinity.common.config.nearest import nearest
from trinity.common.config.noise import is_noise
from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.common.models.experts import experts_problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOISE = "noise_before"  # model attribute: the configuration entries that `silence` has set to 0, with their old values
MODEL_KEY = "trainer.trainer_config.actor_rollout_ref.model"


def import_libraries(names: str | Iterable[str] | None, *, section: str = MODEL_KEY) -> None:
    """Import the modules of `external_lib` before a model is loaded.

    What they register, such as model types, is then known.

    Args:
        names: one module or several; None: none.
        section: configuration section of `external_lib`, for the message.

    Raises:
        ConfigError: a module cannot be imported (E1863).
    """
    for name in (names,) if isinstance(names, str) else names or ():
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"{section}.external_lib names the module {name}, which cannot be imported: {error}; install it, or "
                "add its folder to PYTHONPATH",
                code="E1863",
            ) from error


def read_model_config(
    path: str, overrides: Mapping[str, Any], *, trust_remote_code: bool = False, section: str = MODEL_KEY
) -> PreTrainedConfig:
    """Return a model's configuration with `override_config` applied.

    Args:
        path: folder of the model.
        overrides: entries to set; a mapping changes entries of the existing one.
        trust_remote_code: run Python code that comes with the model.
        section: configuration section of `override_config`, for the message.

    Raises:
        ConfigError: the model's configuration has no such entry, or has a mapping there and the override is none
            (E1885).
        OSError, ValueError: there is no readable configuration.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    _set(config, overrides, key=f"{section}.override_config")
    return config


def read_trained_config(
    path: str, overrides: Mapping[str, Any], *, trust_remote_code: bool = False, section: str = MODEL_KEY
) -> PreTrainedConfig:
    """Return the configuration of a model to train; see `read_model_config`.

    Raises:
        ConfigError, OSError, ValueError: see `read_model_config`.
        EnvironmentProblem: the configuration asks for a loss that the trainer does not add (E3125).
    """
    config = read_model_config(path, overrides, trust_remote_code=trust_remote_code, section=section)
    problem = experts_problem(config.to_dict(), {}, key=f"{section}.override_config")
    if problem is not None:
        raise EnvironmentProblem(f"{path}: {problem}", code="E3125")
    return config


def _set(config: PreTrainedConfig, overrides: Mapping[str, Any], *, key: str) -> None:
    known = config.to_dict()
    for name, value in overrides.items():
        if name not in known:
            close = nearest(name, known)
            raise ConfigError(
                f"`{key}.{name}`: the configuration of a {config.model_type} model has no such entry; "
                + (f"did you mean {close}?" if close else f"it has {', '.join(sorted(known))}"),
                code="E1885",
            )
        old = vars(config).get(name)
        if isinstance(old, PreTrainedConfig | Mapping) and not isinstance(value, Mapping):
            raise ConfigError(
                f"`{key}.{name}` must be a mapping, as in the model's config.json, got {value!r}", code="E1885"
            )
        if isinstance(old, PreTrainedConfig):
            _set(old, value, key=f"{key}.{name}")
        else:
            setattr(config, name, {**old, **value} if isinstance(old, Mapping) else value)


def silence(config: PreTrainedConfig) -> dict[str, float]:
    """Set every dropout rate in a model's configuration to 0.

    Return the old values; names in nested configurations are joined by dots. The configuration is changed rather than
    modules, since many families call dropout functions in their forward passes.
    """
    changed: dict[str, float] = {}
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            changed |= {f"{name}.{inner}": old for inner, old in silence(value).items()}
        elif is_noise(name) and isinstance(value, int | float) and not isinstance(value, bool) and value:
            changed[name] = value
            setattr(config, name, type(value)(0))
    return changed


def config_to_save(model: PreTrainedModel) -> PreTrainedConfig:
    """Return a copy of the configuration from before `silence`, for saving."""
    copied = copy.deepcopy(model.config)
    for name, value in getattr(model, NOISE, {}).items():
        *outer, last = name.split(".")
        place: Any = copied
        for part in outer:
            place = getattr(place, part)
        setattr(place, last, value)
    return copied


def check_loaded(info: Mapping[str, Any], overrides: Mapping[str, Any], *, path: str, section: str) -> None:
    """Verify that the weights of `path` fit the model of `override_config`.

    Args:
        info: loading information from transformers.
        overrides: entries that were set; without any, nothing is checked.
        path: folder of the model.
        section: configuration section of `override_config`.

    Raises:
        EnvironmentProblem: weights are missing, left over, or of another shape (E3101).
    """
    if not overrides:
        return
    wrong = [
        f"{', '.join(sorted(map(str, info[f'{kind}_keys']))[:3])} {word}"
        for kind, word in (("missing", "missing"), ("unexpected", "left over"), ("mismatched", "of another shape"))
        if info[f"{kind}_keys"]
    ]
    if wrong:
        raise EnvironmentProblem(
            f"{section}.override_config does not fit the weights of {path}: {'; '.join(wrong)}; remove the entries "
            f"that change their number or shape ({', '.join(overrides)})",
            code="E3101",
        )
