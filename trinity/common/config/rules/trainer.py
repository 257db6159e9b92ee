"""Rules of the trainer: settings with two names, and refused veRL keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity.common.config.following import (
    fall_back,
    fill_defaults,
    join_mirrors,
    join_older_names,
    mirrors,
    note_overridden,
)
from trinity.common.config.keys import (
    ACTOR,
    CRITIC,
    KEYS,
    REFERENCE,
    VERL_TRAINER,
    Key,
    key_at,
    key_named,
    last_part,
    part_of,
)
from trinity.common.config.noise import is_noise
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import critic_sharding
from trinity.common.config.rules.critic import reads_values
from trinity.common.config.schema_index import default_at, facts_at

MODEL = KEYS.trainer.trainer_config.actor_rollout_ref.model
OPTIMIZER = KEYS.algorithm.optimizer
NOT_OVERRIDDEN: dict[str, tuple[str, str]] = {
    "attn_implementation": ("the attention over packed sequences is the trainer's own", "remove it"),
    "_attn_implementation": ("the attention over packed sequences is the trainer's own", "remove it"),
    "dtype": ("it is the data type of stored files", "write `fsdp_config.mixed_precision.param_dtype`"),
    "torch_dtype": ("it is the data type of stored files", "write `fsdp_config.mixed_precision.param_dtype`"),
    "model_type": ("it says which code computes the model", "write another `model.model_path`"),
    "architectures": ("it says which code computes the model", "write another `model.model_path`"),
    "use_cache": ("a training pass keeps no cache", "remove it"),
    "num_labels": ("a value model has one output", "remove it"),
}
_ROUTER_LOSS = (
    "output_router_logits", "aux_loss_coef", "aux_loss_coeff", "aux_loss_alpha", "moe_loss_weight", "z_loss_coef",
    "z_loss_coefficient",
)  # fmt: skip
LOSS_OF_EXPERTS = "the trainer minimises the loss of the algorithm alone"


def resolve_trainer(resolution: Resolution) -> None:
    """Reconcile the two names of each trainer setting."""
    join_older_names(resolution, KEYS.trainer, but=(KEYS.trainer.trainer_config,))
    _resolve_budget(resolution)
    join_mirrors(resolution, VERL_TRAINER)
    join_mirrors(resolution, MODEL)
    join_mirrors(resolution, ACTOR, but=(ACTOR.optim,))
    _raise_budget(resolution)
    join_older_names(resolution, ACTOR)
    join_older_names(resolution, REFERENCE)
    _resolve_optimizer(resolution)
    fall_back(resolution, ACTOR.ppo_micro_batch_size_per_gpu)
    for section in (ACTOR, MODEL, REFERENCE):
        fill_defaults(resolution, section)
    steps = KEYS.trainer.total_steps
    if resolution.get(steps) is not None and resolution.get(ACTOR.optim.total_training_steps) == -1:
        resolution.follow(ACTOR.optim.total_training_steps, steps)
    _resolve_retention(resolution)


def _resolve_budget(resolution: Resolution) -> None:
    longest, parallel = resolution.config.model.max_model_len, resolution.config.trainer.ulysses_sequence_parallel_size
    key = KEYS.trainer.max_token_len_per_gpu
    if resolution.get(key) is None and resolution.get(ACTOR.ppo_max_token_len_per_gpu) is None and longest:
        resolution.derive(key, -(-2 * longest // parallel), "twice max_model_len over ulysses_sequence_parallel_size")


def _raise_budget(resolution: Resolution) -> None:
    longest = resolution.config.model.max_model_len
    if not longest:
        return
    is_pair = resolution.schema == "dpo"
    least = -(-longest * (2 if is_pair else 1) // resolution.config.trainer.ulysses_sequence_parallel_size)
    why = "a pair may have twice" if is_pair else "one sequence may have"
    for key in (
        KEYS.trainer.max_token_len_per_gpu,
        ACTOR.ppo_max_token_len_per_gpu,
        REFERENCE.log_prob_max_token_len_per_gpu,
    ):
        value = resolution.get(key)
        if value is not None and value < least:
            resolution.derive(key, least, f"raised from {value}: {why} max_model_len ({longest}) tokens")


def _resolve_optimizer(resolution: Resolution) -> None:
    optim = ACTOR.optim
    style = resolution.get(optim.warmup_style)
    for theirs, ours in mirrors(optim):
        value, is_schedule = resolution.get(theirs), last_part(theirs) == "lr_scheduler_type"
        is_ours = resolution.is_given(ours) or (is_schedule and resolution.is_given(OPTIMIZER.warmup_style))
        if value is None:
            resolution.follow(theirs, ours)
        elif value != resolution.get(ours) and is_ours:
            where = optim.warmup_style if is_schedule and style is not None else theirs
            resolution.problem(
                "E1815",
                where,
                f"`{where}` is {value}, but {ours} is {resolution.get(ours)}",
                involves=(ours,),
                suggestion=f"keep `{ours}`",
            )
        elif value != resolution.get(ours):
            resolution.follow(ours, theirs)


def _resolve_retention(resolution: Resolution) -> None:
    key, other = KEYS.trainer.max_checkpoints_to_keep, VERL_TRAINER.max_actor_ckpt_to_keep
    if resolution.get(VERL_TRAINER.remove_previous_ckpt_in_save) and not resolution.is_given(key):
        resolution.derive(key, 2, "remove_previous_ckpt_in_save; the newest two are kept")
    if resolution.get(other) is not None:
        if resolution.is_given(key) and resolution.get(key) != 0:
            why = f"overridden by {key} ({resolution.get(key)})"
            note_overridden(resolution, other, why, value=resolution.get(key), involves=key)
        else:
            resolution.derive(key, resolution.get(other), "max_actor_ckpt_to_keep, its veRL name")
    if resolution.get(key) == 1:
        written = key if resolution.is_given(key) else other
        resolution.problem(
            "W7030",
            written,
            f"`{written}: 1` keeps 2 until a newer checkpoint is complete",
            suggestion="write 2 or more",
        )
        resolution.derive(key, 2, "a checkpoint is removed only when two newer ones are complete")


def check_schedule(resolution: Resolution) -> None:
    """Refuse a learning-rate schedule over an unknown number of steps.

    The number of all steps is unknown if a queue is trained alone.
    """
    buffer = resolution.config.buffer.trainer_input.experience_buffer
    if (
        resolution.mode != "train"
        or (buffer and buffer.storage_type == "file")
        or resolution.config.trainer.total_steps is not None
    ):
        return
    values = resolution.config.algorithm.optimizer
    schedule = OPTIMIZER.lr_scheduler_type if values.warmup_style is None else OPTIMIZER.warmup_style
    by_ratio = values.lr_warmup_steps_ratio if values.lr_warmup_steps < 0 else 0
    checks: tuple[tuple[Key[object], object], ...] = (
        (schedule, resolution.get(schedule)),
        (OPTIMIZER.lr_warmup_steps_ratio, by_ratio),
    )
    for key, value in checks:
        if value not in ("constant", 0):
            resolution.problem(
                "E1873",
                key,
                f"`{key}: {value}` needs the number of all training steps, which is not known when a buffer of "
                "experiences is trained in mode train",
                involves=(KEYS.trainer.total_steps, KEYS.buffer.total_steps, KEYS.mode),
                suggestion="write `trainer.total_steps`",
            )


def check_derived_keys(resolution: Resolution) -> None:
    """Refuse veRL keys that are set from other keys and differ."""
    for leaf in resolution.tree.leaves():
        path, facts = facts_at(leaf)
        # A list is one value, whose first item stands for it.
        source = facts.set_from if all(part == 0 for part in leaf[len(path) :]) else None
        value = resolution.tree.get(path) if source is not None else None
        if source is None or value is None or value == default_at(path)[1] or value == -1:
            continue
        key = key_at(path)
        try:
            same = resolution.get(key_named(source)) == value
        except (KeyError, TypeError):
            same = False
        if not same:
            resolution.problem("E1816", key, f"`{key}` is set from {source}", suggestion=f"write `{source}`")


def check_refusals(resolution: Resolution) -> None:
    """Refuse model entries and checkpoint parts; warn about idle switches."""
    _check_overrides(resolution, MODEL.override_config)
    if reads_values(resolution):
        _check_overrides(resolution, CRITIC.model.override_config)
    _check_loaded(resolution)
    _check_host(resolution)


def _check_overrides(resolution: Resolution, key: Key[dict[str, Any]]) -> None:
    """Refuse entries of the model's configuration that the trainer would undo."""
    for name, value in (resolution.get(key) or {}).items():
        reason, way_out = NOT_OVERRIDDEN.get(str(name), (None, "remove it"))
        if reason is None and is_noise(str(name)) and value not in (0, None):
            reason = "with dropout, the log-probabilities of one policy would differ from pass to pass"
        if reason is None and str(name).endswith(_ROUTER_LOSS) and value not in (0, False, None):
            reason, way_out = f"{LOSS_OF_EXPERTS}, and adds none of the model's own", "remove it, or write 0"
        if isinstance(value, Mapping):
            _check_overrides(resolution, key[name])
        if reason is not None:
            message = f"`{key[name]}` is not overridden: {reason}"
            resolution.problem("E1885", key[name], message, suggestion=way_out)


def _check_loaded(resolution: Resolution) -> None:
    """Read weights that are to come from an exported part from `model`."""
    sections = (ACTOR, CRITIC) if reads_values(resolution) else (ACTOR,)
    for section in sections:
        key = section.checkpoint.load_contents
        if "hf_model" in (resolution.get(key) or ()):
            resolution.problem(
                "W1887",
                key,
                f"`{key}` names hf_model, which is written for others to read: a run continues from the part `model`, "
                "which has the same weights",
                suggestion="remove hf_model; to start from such a folder, write it as `model.model_path`",
            )
            parts = ["model", *resolution.get(key)]
            read = [part for part in dict.fromkeys(parts) if part != "hf_model"]
            resolution.derive(key, read, "the part `model` has the weights of hf_model")


def _check_host(resolution: Resolution) -> None:
    """Warn if one way to offload weights to the host makes another idle."""
    sections = [ACTOR.fsdp_config, REFERENCE.fsdp_config]
    sections += [critic_sharding(resolution.config)] if reads_values(resolution) else []
    for section in sections:
        if not resolution.get(section.offload_policy):
            continue
        for name in ("param_offload", "optimizer_offload"):
            names = (part_of(section, name), part_of(KEYS.trainer, name))
            written = [key for key in names if resolution.is_given(key) and resolution.get(key)]
            if written and resolution.get(part_of(section, name)):
                resolution.problem(
                    "W1902",
                    written[0],
                    f"`{written[0]}` has no effect: {section.offload_policy} keeps weights and optimizer state in host "
                    "memory, also during a step",
                    suggestion="remove it",
                )
