"""Older names of keys, and veRL's names for what has a key of its own here."""

from __future__ import annotations

from dataclasses import dataclass

from trinity.common.config.problems import Finding
from trinity.common.config.tree import Path, Tree, dotted


@dataclass(frozen=True)
class Renamed:
    """An accepted older key.

    Attributes:
        new: the key to write instead.
        since: the version that introduced the new name.
    """

    new: str
    since: str


OLDER: dict[str, Renamed] = {
    "algorithm.optimizer.warmup_style": Renamed("algorithm.optimizer.lr_scheduler_type", "Trinity-RFT 0.6"),
    "explorer.runner_num": Renamed("explorer.runner_per_model", "Trinity-RFT 0.3"),
    "buffer.explorer_input.taskset.task_selector": Renamed("data_selector", "Trinity-RFT 0.6"),
    "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size": Renamed(
        "ppo_micro_batch_size_per_gpu", "veRL 0.2"
    ),
    "trainer.trainer_config.actor_rollout_ref.ref.log_prob_micro_batch_size": Renamed(
        "log_prob_micro_batch_size_per_gpu", "veRL 0.2"
    ),
    "trainer.trainer_config.trainer.remove_previous_ckpt_in_save": Renamed(
        "trainer.max_checkpoints_to_keep", "veRL 0.3"
    ),
}

VERL_NAMES: dict[str, str] = {
    "ppo_mini_batch_size": "buffer.train_batch_size",
    "ppo_micro_batch_size": "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "total_training_steps": "trainer.total_steps",
    "save_freq": "trainer.save_interval",
    "test_freq": "explorer.eval_interval",
    "val_before_train": "explorer.eval_on_startup",
    "n_gpus_per_node": "cluster.gpu_per_node",
    "nnodes": "cluster.node_num",
    "project_name": "project",
    "experiment_name": "name",
    "logger": "monitor.monitor_type",
    "max_prompt_length": "model.max_prompt_tokens",
    "max_response_length": "model.max_response_tokens",
    "use_kl_loss": "algorithm.kl_loss_fn",
    "kl_loss_type": "algorithm.kl_loss_fn",
    "kl_loss_coef": "algorithm.kl_loss_fn_args.kl_coef",
    "kl_coef": "algorithm.kl_loss_fn_args.kl_coef",
    "entropy_coeff": "algorithm.entropy_loss_fn_args.entropy_coef",
    "clip_ratio": "algorithm.policy_loss_fn_args.clip_range",
    "adv_estimator": "algorithm.advantage_fn",
    "gamma": "algorithm.advantage_fn_args.gamma",
    "lam": "algorithm.advantage_fn_args.lam",
    "train_files": "buffer.explorer_input.taskset.path",
    "val_files": "buffer.explorer_input.eval_tasksets",
    "tensor_model_parallel_size": "explorer.rollout_model.tensor_parallel_size",
    "rollout_n": "algorithm.repeat_times",
    "default_local_dir": "checkpoint_root_dir",
    "max_actor_ckpt_to_keep": "trainer.max_checkpoints_to_keep",
    "actor_rollout_ref": "trainer.trainer_config.actor_rollout_ref",
    "critic": "trainer.trainer_config.critic",
}


SET_FROM: dict[str, str] = {
    "total_epochs": "buffer.total_epochs",
    "total_training_steps": "trainer.total_steps",
    "project_name": "project",
    "experiment_name": "name",
    "logger": "monitor.monitor_type",
    "nnodes": "cluster.node_num",
    "n_gpus_per_node": "cluster.gpu_per_node",
    "save_freq": "trainer.save_interval",
    "test_freq": "explorer.eval_interval",
    "val_before_train": "explorer.eval_on_startup",
    "default_local_dir": "checkpoint_root_dir",
    "train_batch_size": "buffer.batch_size",
    "max_prompt_length": "model.max_prompt_tokens",
    "max_response_length": "model.max_response_tokens",
    "adv_estimator": "algorithm.advantage_fn",
    "use_kl_in_reward": "algorithm.kl_penalty_fn",
    "kl_penalty": "algorithm.kl_penalty_fn",
    "gamma": "algorithm.advantage_fn_args.gamma",
    "lam": "algorithm.advantage_fn_args.lam",
}
OF_ACTOR: dict[str, str] = {
    "clip_ratio": "algorithm.policy_loss_fn_args.clip_range",
    "clip_ratio_low": "algorithm.policy_loss_fn_args.clip_range_low",
    "clip_ratio_high": "algorithm.policy_loss_fn_args.clip_range_high",
    "clip_ratio_c": "algorithm.policy_loss_fn_args.clip_ratio_c",
    "entropy_coeff": "algorithm.entropy_loss_fn_args.entropy_coef",
    "kl_loss_coef": "algorithm.kl_loss_fn_args.kl_coef",
    "kl_loss_type": "algorithm.kl_loss_fn",
}
OF_KL_CONTROL: dict[str, str] = {
    name: f"algorithm.kl_penalty_fn_args.{name}" for name in ("kl_coef", "target_kl", "horizon")
}


def set_from(path: Path) -> str | None:
    """Return the key that a key of veRL's blocks (`trainer`, `data`, `algorithm`, the actor) is set from, if it is."""
    block, name = path[2:-1], str(path[-1])
    if path[:2] != ("trainer", "trainer_config") or not block:
        return None
    if block == ("actor_rollout_ref", "actor"):
        return OF_ACTOR.get(name)
    if block[-1] == "optim" and name == "total_training_steps":
        return SET_FROM[name]
    if block == ("algorithm", "kl_ctrl"):
        return OF_KL_CONTROL.get(name)
    return SET_FROM.get(name) if block[0] in ("trainer", "data", "algorithm") else None


def verl_name(path: Path) -> str | None:
    """Return the key that stands for a veRL key written outside `trainer.trainer_config`."""
    if path[:2] == ("trainer", "trainer_config"):
        return None
    return VERL_NAMES.get(str(path[-1]))


def check_older_names(tree: Tree) -> list[Finding]:
    """Return a warning for each accepted older key that is written."""
    problems = []
    for path in tree.origins:
        renamed = OLDER.get(dotted(path))
        if renamed is not None and tree.get(path) not in (None, False):
            problems.append(
                tree.problem(
                    "W1301",
                    path,
                    f"`{dotted(path)}` is deprecated since {renamed.since}",
                    suggestion=f"write `{renamed.new}`",
                )
            )
    return problems
