"""Older names of keys, and veRL names of keys that differ here."""

from __future__ import annotations

import functools

from trinity.common.config.base import is_derived
from trinity.common.config.config import Config
from trinity.common.config.problems import Finding
from trinity.common.config.schema_index import facts_at, facts_below, fields_of
from trinity.common.config.tree import Path, Tree, dotted

# veRL's names of what has a key of its own outside the veRL tree, besides those that the tree's fields say themselves.
VERL_NAMES: dict[str, str] = {
    "ppo_mini_batch_size": "buffer.train_batch_size",
    "ppo_micro_batch_size": "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "use_kl_loss": "algorithm.kl_loss_fn",
    "kl_coef": "algorithm.kl_loss_fn_args.kl_coef",
    "train_files": "buffer.explorer_input.taskset.path",
    "val_files": "buffer.explorer_input.eval_tasksets",
    "tensor_model_parallel_size": "explorer.rollout_model.tensor_parallel_size",
    "rollout_n": "algorithm.repeat_times",
    "max_actor_ckpt_to_keep": "trainer.max_checkpoints_to_keep",
    "actor_rollout_ref": "trainer.trainer_config.actor_rollout_ref",
    "critic": "trainer.trainer_config.critic",
}


@functools.cache
def _verl_names() -> dict[str, str]:
    """Return the key for each veRL name that has no key of its own elsewhere."""
    root = ("trainer", "trainer_config")
    elsewhere = ((path, field) for path, field in fields_of(Config) if path[0] != "stages" and path[:2] != root)
    own = {str(path[-1]) for path, field in elsewhere if not is_derived(field)}
    said = {str(path[-1]): facts.set_from for path, facts in facts_below(root) if facts.set_from is not None}
    return {name: source for name, source in said.items() if name not in own} | VERL_NAMES


def verl_name(path: Path) -> str | None:
    """Return the key for a veRL key outside `trainer.trainer_config`."""
    if path[:2] == ("trainer", "trainer_config"):
        return None
    return _verl_names().get(str(path[-1]))


def check_older_names(tree: Tree) -> list[Finding]:
    """Return a warning for each accepted older key that is written."""
    problems = []
    for path in tree.origins:
        place, facts = facts_at(path)
        renamed = facts.renamed
        if renamed is not None and place == path and tree.get(path) not in (None, False):
            problems.append(
                tree.problem(
                    "W1301",
                    path,
                    f"`{dotted(path)}` is deprecated since {renamed.since}",
                    suggestion=f"write `{renamed.new}`",
                )
            )
    return problems
