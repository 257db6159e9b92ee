"""Configurations of tests, with all that `resolve` fills in."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from trinity.catalogue import BUILT_IN
from trinity.common.config import Config
from trinity.common.config.draft import Draft, path_of, plain_values
from trinity.common.config.resolve import RULES, resolved_values
from trinity.common.config.rules.algorithm import FUNCTIONS
from trinity.common.config.rules.batches import ACTOR, resolve_batches
from trinity.common.config.rules.names import derive_names
from trinity.common.config.tree import Tree, value_at

MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"


def resolved(values: dict[str, Any]) -> Config:
    """Return a configuration that the trainer can be made from, whatever else of a run is missing in it.

    The folder of the job is the one that `values` names, mini-batches may be smaller than the batch, and what a
    function is given is what `values` says, also if it has no such argument.
    """
    typed = plain_values(Config.model_validate(values))
    draft = Draft(copy.deepcopy(typed), Tree(copy.deepcopy(values)), BUILT_IN, Path("/"), typed=typed)
    for rule in RULES:
        rule(draft)
        if rule is derive_names and typed["checkpoint_job_dir"]:
            job = draft.values["checkpoint_job_dir"] = typed["checkpoint_job_dir"]
            draft.values["buffer"]["cache_dir"] = f"{job}/buffer"
        if rule is resolve_batches and draft.is_given(MINI_BATCH):
            value_at(draft.values, path_of(ACTOR))["ppo_mini_batch_size"] = value_at(typed, path_of(MINI_BATCH))
    for name in FUNCTIONS:
        made = draft.values["algorithm"]
        made[f"{name}_args"] = (made[f"{name}_args"] or {}) | (typed["algorithm"][f"{name}_args"] or {})
    return resolved_values(draft)
