"""Configurations of tests, with all that `resolve` fills in."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from trinity.catalogue import BUILT_IN
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.keys import ACTOR, EXPERIENCES, KEYS, part_of, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolve import RULES, resolved_values
from trinity.common.config.rules.batches import resolve_batches
from trinity.common.config.rules.job import derive_names
from trinity.common.config.tree import Tree, value_at
from trinity.utils.kinds import ROLES

MINI_BATCH = ACTOR.ppo_mini_batch_size


def resolved(values: dict[str, Any]) -> Config:
    """Return a configuration that the trainer can be made from, whatever else of a run is missing in it.

    The folder of the job is the one that `values` names, mini-batches may be smaller than the batch, and what a
    function is given is what `values` says, also if it has no such argument.
    """
    typed = Config.model_validate(values)
    resolution = Resolution(typed, Tree(copy.deepcopy(values)), BUILT_IN, Path("/"))
    for rule in RULES:
        rule(resolution)
        if rule is derive_names and typed.checkpoint_job_dir:
            resolution.put(KEYS.checkpoint_job_dir, typed.checkpoint_job_dir)
            resolution.put(KEYS.buffer.cache_dir, f"{typed.checkpoint_job_dir}/buffer")
        if rule is resolve_batches and resolution.is_given(MINI_BATCH):
            resolution.put(MINI_BATCH, value_at(typed, path_of(MINI_BATCH)))
    for name in ROLES:
        arguments = part_of(KEYS.algorithm, f"{name}_args")
        resolution.put(arguments, (resolution.get(arguments) or {}) | (value_at(typed, path_of(arguments)) or {}))
    if resolution.config.buffer.trainer_input.experience_buffer is None:  # of a trainer that is handed its rows
        resolution.put(EXPERIENCES, ExperienceBufferConfig(schema_type=resolution.schema))
    return resolved_values(resolution)
