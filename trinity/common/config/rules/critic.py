"""Rules of the critic: whether the run has one, and its absent keys."""

from __future__ import annotations

from trinity.common.config.following import fall_back, fill_defaults, join_older_names, note_overridden, override
from trinity.common.config.keys import ACTOR, CRITIC, KEYS, VERL_TRAINER
from trinity.common.config.resolution import Resolution
from trinity.common.config.verl_critic import CriticConfig

PATH = KEYS.model.critic_model_path
_BOTH = "a checkpoint holds policy and critic"


def reads_values(resolution: Resolution) -> bool:
    """Return whether the run has a critic.

    The advantage asks for `values`, or is a plugin with `enable: true`.
    """
    name = resolution.config.algorithm.advantage_fn
    entry = resolution.catalogue.entry("advantage_fn", name)
    if entry is None:
        return name is not None and resolution.get(CRITIC.enable) is True
    return "values" in entry.reads


def may_read_values(resolution: Resolution) -> bool:
    """Return whether the run may have a critic; a plugin's need is unknown."""
    name = resolution.config.algorithm.advantage_fn
    is_plugin = name is not None and resolution.catalogue.entry("advantage_fn", name) is None
    return is_plugin or reads_values(resolution)


def resolve_critic(resolution: Resolution) -> None:
    """Enable the critic if the advantage reads values; fill it from the actor."""
    join_older_names(resolution, CRITIC.model)
    fill_defaults(resolution, KEYS.model)
    name, is_on = resolution.config.algorithm.advantage_fn, reads_values(resolution)
    written = resolution.get(CRITIC.enable)
    if written is not None and written != is_on:
        resolution.problem(
            "E1816",
            CRITIC.enable,
            f"`{CRITIC.enable}` is set from algorithm.advantage_fn: {name} {'reads' if is_on else 'reads no'} values",
            involves=(KEYS.algorithm.advantage_fn, KEYS.algorithm.algorithm_type),
            suggestion="remove it" if is_on else "write `algorithm.advantage_fn: ppo`, or remove it",
        )
    if not may_read_values(resolution):
        return
    if resolution.trains_on_dataset:
        return  # no advantage fits a dataset, and the algorithm's rules say so
    if is_on:
        resolution.derive(CRITIC.enable, True, f"advantage_fn {name} reads values")
    _fill(resolution)


def check_unused_critic(resolution: Resolution) -> None:
    """Warn about keys of a critic if this run has none."""
    if may_read_values(resolution):
        return
    if resolution.is_given(PATH) and resolution.get(PATH) != resolution.config.model.model_path:
        resolution.problem(
            "W1813", PATH, f"`{PATH}` has no effect: this algorithm has no critic", suggestion="remove it"
        )
    written = resolution.typed.trainer.trainer_config.critic
    if resolution.is_own(CRITIC) and written.model_copy(update={"enable": None}) != CriticConfig():
        resolution.problem("W1902", CRITIC, f"`{CRITIC}` has no effect: this algorithm has no critic")
    for key in (KEYS.trainer.critic_warmup, VERL_TRAINER.critic_warmup):
        if resolution.is_own(key) and resolution.get(key):
            resolution.problem("W1902", key, f"`{key}` has no effect: this algorithm has no critic")


def _fill(resolution: Resolution) -> None:
    join_older_names(resolution, CRITIC, but=(CRITIC.model,))
    _resolve_places(resolution)
    _resolve_retention(resolution)
    is_split = resolution.get(KEYS.trainer.mini_batch_size) is not None
    override(
        resolution,
        CRITIC.ppo_mini_batch_size,
        by=KEYS.trainer.mini_batch_size if is_split else KEYS.buffer.train_batch_size,
    )
    fall_back(resolution, CRITIC.optim.lr)
    budget = resolution.get(ACTOR.ppo_max_token_len_per_gpu)
    if resolution.get(CRITIC.ppo_max_token_len_per_gpu) is None and budget is not None:
        resolution.derive(CRITIC.ppo_max_token_len_per_gpu, 2 * budget, "twice the actor's")
    fall_back(resolution, CRITIC.ppo_micro_batch_size_per_gpu)
    idle = CRITIC.fsdp if resolution.get(CRITIC.fsdp) is None else CRITIC.model.fsdp_config
    fill_defaults(resolution, CRITIC, but=(idle,), also=(-1,))
    longest = resolution.config.model.max_model_len
    for key in (CRITIC.ppo_max_token_len_per_gpu, CRITIC.forward_max_token_len_per_gpu):
        value = resolution.get(key)
        if longest and value is not None and value < longest:
            resolution.derive(
                key, longest, f"raised from {value}: one sequence may have max_model_len ({longest}) tokens"
            )


def _resolve_retention(resolution: Resolution) -> None:
    """Keep the larger number: a checkpoint holds both policy and critic."""
    key, own = KEYS.trainer.max_checkpoints_to_keep, VERL_TRAINER.max_critic_ckpt_to_keep
    kept, asked = resolution.get(key), resolution.get(own)
    if asked is None or asked == resolution.get(VERL_TRAINER.max_actor_ckpt_to_keep):
        return
    if not resolution.is_given(key) and 0 < kept < asked:
        policies = VERL_TRAINER.max_actor_ckpt_to_keep
        note_overridden(resolution, policies, f"overridden by {own} ({asked}): {_BOTH}", value=asked, involves=own)
        resolution.derive(key, asked, f"{own}: {_BOTH}")
        return
    note_overridden(resolution, own, f"overridden by {key} ({kept or 'all'}): {_BOTH}", value=kept, involves=key)


def _resolve_places(resolution: Resolution) -> None:
    """Refuse data types in both `fsdp` and the older `model.fsdp_config`."""
    newer, older = CRITIC.fsdp, CRITIC.model.fsdp_config
    if resolution.is_given(newer) and resolution.is_given(older):
        resolution.problem(
            "E1815", newer, f"`{newer}` and {older} are two places of one thing", involves=(older,),
            suggestion=f"keep `{older}`",
        )  # fmt: skip
