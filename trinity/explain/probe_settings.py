"""The settings that reach the loss, and the values that the probe tries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trinity.algorithm import BY_ROLE
from trinity.algorithm.advantage_fn.opmd import BASELINES
from trinity.algorithm.aggregation import LOSS_AGG_MODES, VERL_LOSS_AGG_MODES
from trinity.algorithm.policy_loss_fn.bypass_mode import LOSS_TYPES
from trinity.algorithm.policy_loss_fn.rec import CLIP_MODES, REGULARIZERS, WEIGHTS
from trinity.common.config import StagePlan, keys
from trinity.common.config.keys import KEYS
from trinity.common.config.overrides import parse_path
from trinity.common.config.resolved import has_critic, training_tasksets
from trinity.explain.algorithms import scalar
from trinity.explain.functions import IN_LOSS
from trinity.trainer.verl.settings import is_supervised
from trinity.utils.kinds import ROLES

TERMS = ("kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")
# Values of the arguments that are one of a few words.
CHOICES: dict[str, tuple[str, ...]] = {
    "loss_agg_mode": tuple(dict.fromkeys((*LOSS_AGG_MODES, *VERL_LOSS_AGG_MODES))),
    "sft_loss_agg_mode": LOSS_AGG_MODES,
    "grpo_loss_agg_mode": LOSS_AGG_MODES,
    "clip_mode": CLIP_MODES,
    "weight": WEIGHTS,
    "regularizer": REGULARIZERS,
    "opmd_baseline": BASELINES,
    "std_cal_level": ("group", "batch"),
    "loss_agg_scope": ("mini_batch", "micro_batch"),
    "loss_type": LOSS_TYPES,
    "preset": ("disabled",),
    "rollout_is": ("token", "sequence"),
}
_NUMBER = re.compile(r"[0-9.]+")
ALGORITHM = KEYS.algorithm
CRITIC = str(keys.CRITIC)


@dataclass(frozen=True)
class Setting:
    """A setting of the loss.

    Attributes:
        key: its key in a stage.
        value: its value.
        role: the function that it is an argument of, such as `policy_loss_fn`, or `CRITIC`; empty for others.
        is_term: the choice of a term, which is probed by leaving the term out.
        is_optional: its default is null.
        is_written: it is in the file or in `--set`.
    """

    key: str
    value: Any
    role: str = ""
    is_term: bool = False
    is_optional: bool = False
    is_written: bool = False

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]


def settings_of(stage: StagePlan) -> list[Setting]:
    """Return the settings that reach the loss of a stage, without nulls.

    Settings of the optimizer (`lr`, `grad_clip`, ...) are left out: they affect the step, not the gradient. So
    is the split of a batch into micro-batches, which changes nothing unless each is normalised by itself.
    """
    found = [replace(setting, is_written=_is_written(stage, setting)) for setting in _all(stage)]
    inner = str(keys.part_of(ALGORITHM.policy_loss_fn_args, "loss_agg_mode"))
    has_inner = any(setting.key == inner for setting in found)
    is_inner_written = any(setting.key == inner and setting.is_written for setting in found)
    # The two keys are one setting; two values for it are refused.
    hidden = str(ALGORITHM.loss_agg_mode) if is_inner_written else (inner if has_inner else "")
    return [setting for setting in found if setting.key != hidden and setting.value is not None]


def _all(stage: StagePlan) -> Iterator[Setting]:
    config = stage.config
    algorithm = vars(config.algorithm)
    for role in IN_LOSS:
        name = algorithm[role]
        if name in (None, "none"):
            continue
        if role in TERMS:
            yield Setting(str(keys.part_of(ALGORITHM, role)), name, role, is_term=True)
        entry = stage.catalogue.entry(ROLES[role], name)
        defaults = dict(entry.args) if entry is not None else BY_ROLE[role].get(name).default_args()
        for argument, value in (defaults | dict(algorithm[f"{role}_args"] or {})).items():
            is_optional = defaults.get(argument, 0) is None
            yield Setting(str(keys.part_of(ALGORITHM, f"{role}_args", argument)), value, role, is_optional=is_optional)
    yield Setting(str(ALGORITHM.loss_agg_mode), config.algorithm.loss_agg_mode)
    if config.algorithm.loss_agg_scope == "micro_batch":  # which is not for every loss, so that it is not tried
        yield Setting(str(ALGORITHM.loss_agg_scope), config.algorithm.loss_agg_scope)
    yield Setting(str(ALGORITHM.bypass_old_logprobs), config.algorithm.bypass_old_logprobs)
    input_, trained = config.buffer.explorer_input, training_tasksets(config)
    if trained and trained[0].rollout_args.temperature is not None:
        key = keys.TASKSET if input_.taskset is not None else KEYS.buffer.explorer_input.tasksets[0]
        yield Setting(str(key.rollout_args.temperature), trained[0].rollout_args.temperature)
    elif not is_supervised(config):
        yield Setting(str(KEYS.model.temperature), config.model.temperature)
    if has_critic(config):
        critic = config.trainer.trainer_config.critic
        yield Setting(str(keys.CRITIC.cliprange_value), critic.cliprange_value, CRITIC)
        yield Setting(str(keys.CRITIC.loss_agg_mode), critic.loss_agg_mode, CRITIC)
    correction = config.algorithm.rollout_correction
    for name, value in () if correction is None else correction.model_dump(exclude={"preset"}).items():
        yield Setting(
            str(keys.part_of(ALGORITHM.rollout_correction, name)), value, "rollout_correction", is_optional=True
        )


def _is_written(stage: StagePlan, setting: Setting) -> bool:
    """Return whether a setting, or an argument of a term, is in the file."""
    path = parse_path(setting.key) or ()
    *section, name = path
    places = [path, (*section, f"{name}_args")] if setting.is_term else [path]
    for place in places:
        try:
            stage.tree.get(place)
            return True
        except KeyError:
            continue
    return False


def candidates(setting: Setting) -> list[Any]:
    """Return other values of a setting, a near one first.

    Returns none for text whose choices are unknown.
    """
    value = setting.value
    if setting.is_term:
        return ["none"]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + 2, 2 * value + 3, *([value - 1] if value > 0 else [])]
    if isinstance(value, float):
        tried = (1.25 * value, 0.5 * value, value + 0.1, 10.0 * value + 1.0, 0.1 * value)
        return [each for each in dict.fromkeys(float(f"{one:.6g}") for one in tried) if each != value]
    if setting.name.endswith("_threshold"):
        return [_scaled(str(value), factor) for factor in (1.25, 0.5, 4.0, 0.1)]
    return [choice for choice in CHOICES.get(setting.name, ()) if choice != value]


def _scaled(bounds: str, factor: float) -> str:
    """Return bounds such as `2.0` or `0.5_5.0`, each times `factor`."""
    return _NUMBER.sub(lambda found: f"{float(found.group()) * factor:.6g}", bounds)


def as_override(key: str, value: Any) -> str:
    """Return `key=value` as `--set` takes it."""
    return f"{key}={scalar(value)}"
