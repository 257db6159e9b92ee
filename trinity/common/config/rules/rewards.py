"""Rules of reward model, components, greedy baseline and reward steps."""

from __future__ import annotations

from trinity.common.config.following import fall_back, join_older_names
from trinity.common.config.keys import ACTOR, KEYS, REWARD_MODEL, Key, args_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.reward_shaping import NAME as SHAPING
from trinity.common.config.reward_shaping import RewardShaping
from trinity.common.config.rules.registered import Chosen, check_arguments, check_name
from trinity.common.errors import ConfigError
from trinity.utils.entry import Entry

ADVANTAGE = KEYS.algorithm.advantage_fn
OPERATORS = KEYS.data_processor.experience_pipeline.operators
# What the explorer takes of the rewards before an operator may change them.
TAKEN = {
    "reward_baselines": "the rewards of greedy rollouts",
    "reward_components": "the components of the reward",
    "step_reward": "the rewards of the steps",
}


def has_reward_model(resolution: Resolution) -> bool:
    """Return whether a model scores the rollouts of this run."""
    return resolution.explores and resolution.get(REWARD_MODEL.enable)


def resolve_reward_model(resolution: Resolution) -> None:
    """Fill absent keys of the section, and check the needs of a classifier."""
    if not has_reward_model(resolution):
        if resolution.is_own(REWARD_MODEL.enable) and resolution.get(REWARD_MODEL.enable):
            message = f"`{REWARD_MODEL.enable}` has no effect in mode train"
            resolution.problem("W1902", REWARD_MODEL.enable, message, involves=(KEYS.mode,))
        return
    worker = resolution.get(REWARD_MODEL.worker)
    check_name(resolution, REWARD_MODEL.worker, "reward_model", worker)
    entry = resolution.catalogue.entry("reward_model", worker)
    if entry is not None:
        _check_worker(resolution, worker, entry)
    join_older_names(resolution, REWARD_MODEL)
    fall_back(resolution, REWARD_MODEL.micro_batch_size_per_gpu)
    tokens = REWARD_MODEL.forward_max_token_len_per_gpu
    if resolution.get(tokens) is None and resolution.get(REWARD_MODEL.use_dynamic_bsz):
        resolution.follow(tokens, ACTOR.ppo_max_token_len_per_gpu)


def _check_worker(resolution: Resolution, worker: str, entry: Entry) -> None:
    if entry.is_classifier and not resolution.get(REWARD_MODEL.model.path):
        resolution.problem(
            "E1860",
            REWARD_MODEL.model.path,
            f"`{REWARD_MODEL.model.path}` is missing: `enable: true` needs a reward model",
            involves=(REWARD_MODEL,),
            suggestion="write the folder of a sequence classifier with one label",
        )
    check_arguments(resolution, Chosen(REWARD_MODEL.worker, REWARD_MODEL.worker_args, "reward_model", worker))


def check_reward_components(resolution: Resolution) -> None:
    """Check that reward components are named, each with at most one weight."""
    if "reward_components" not in _needs(resolution):
        return
    arguments = resolution.get(args_of(ADVANTAGE)) or {}
    keys, weights = arguments.get("gdpo_reward_keys"), arguments.get("gdpo_reward_weights")
    of_keys, of_weights = (args_of(ADVANTAGE)[name] for name in ("gdpo_reward_keys", "gdpo_reward_weights"))
    if not isinstance(keys, list | tuple) or not keys or not all(isinstance(key, str) for key in keys):
        resolution.problem(
            "E1883",
            of_keys,
            f"`{of_keys}` must be a list of metrics, such as the scores of the reward function, got {keys}",
            involves=(ADVANTAGE,),
            suggestion="write `gdpo_reward_keys: [accuracy, format_score]`",
        )
    elif weights is not None and (not isinstance(weights, list | tuple) or len(weights) != len(keys)):
        resolution.problem(
            "E1883",
            of_weights,
            f"`{of_weights}` must be a list of {len(keys)} numbers, one for each of gdpo_reward_keys, got {weights}",
            involves=(of_keys,),
            suggestion="remove it to weigh all alike",
        )


def check_reshaping(resolution: Resolution) -> None:
    """Refuse reward changes that bypass what the advantage also reads.

    Baseline, components or steps of the reward would stay as they were.
    """
    advantage = resolution.get(ADVANTAGE)
    taken = sorted(_needs(resolution) & TAKEN.keys())
    if not taken or not resolution.explores:
        return
    names = [OPERATORS[index].name for index in range(len(resolution.get(OPERATORS)))]
    entries = [resolution.catalogue.entry("operator", resolution.get(name)) for name in names]
    found: list[Key[object]] = [
        name for name, entry in zip(names, entries, strict=True) if entry is not None and entry.changes_rewards
    ]
    if has_reward_model(resolution):
        found.append(REWARD_MODEL.enable)
    for key in found:
        resolution.problem(
            "E1884",
            key,
            f"`{key}: {str(resolution.get(key)).lower()}` changes the reward, but advantage_fn {advantage} also reads "
            f"{TAKEN[taken[0]]}, which would stay as they were",
            involves=(ADVANTAGE, KEYS.algorithm.algorithm_type),
            suggestion="give the reward its final form in the reward function",
        )


def check_shaping(resolution: Resolution) -> None:
    """Check the terms of `reward_shaping_mapper` as the operator does (E1707)."""
    for index, operator in enumerate(resolution.get(OPERATORS)):
        if operator.name != SHAPING or not resolution.catalogue.is_built_in("operator", SHAPING):
            continue
        key = OPERATORS[index].args["reward_shaping_configs"]
        try:
            RewardShaping.parse_all(operator.args.get("reward_shaping_configs"))
        except ConfigError as error:
            resolution.problem(
                error.code,
                key,
                f"`{key}`: {error.args[0]}",
                suggestion="write `reward_shaping_configs: [{stats_key: bonus, op_type: ADD, weight: 1.0}]`",
            )


def _needs(resolution: Resolution) -> frozenset[str]:
    """Return what the advantage function needs; unknown for a plugin."""
    entry = resolution.catalogue.entry("advantage_fn", resolution.get(ADVANTAGE))
    return entry.reads if entry is not None and resolution.explores else frozenset()
