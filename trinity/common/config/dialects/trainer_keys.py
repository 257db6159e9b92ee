"""veRL's sections of critic, reward model, algorithm and loop."""

from __future__ import annotations

from collections.abc import Iterator

from trinity.common.config.dialects.data_keys import TASKSET
from trinity.common.config.dialects.foreign_key import ForeignKey, harmless, honoured, older, refused, section
from trinity.common.config.dialects.policy_keys import (
    PER_RANK,
    checkpoint_keys,
    fsdp_keys,
    fused_keys,
    model_keys,
    optimizer_keys,
)
from trinity.common.config.rollout_correction import RolloutCorrectionConfig

_ADVANTAGE = "algorithm.advantage_fn_args"
_PENALTY = "algorithm.kl_penalty_fn_args"
_TREE = "trainer.trainer_config"
_GLOBAL = "experiences of all workers, divided by them"
_ALL_KEPT = "every rollout is in the database of the run, and every evaluated response in its folder"
_OVERLONG = ("enable", "len", "penalty_factor", "log")
VETO = "rollout_token_veto_threshold"
"""Key of `algorithm.rollout_correction` in veRL 0.6 and 0.7."""
_OPERATORS = "data_processor.experience_pipeline.operators"

CRITIC_KEYS: tuple[ForeignKey, ...] = (
    honoured("critic.enable"),
    honoured("critic.strategy"),
    honoured("critic.model.path", "model.critic_model_path", via="model"),
    honoured("critic.model.tokenizer_path", "model.critic_model_path", via="model", note="only that of the policy"),
    *model_keys("critic.model"),
    *fsdp_keys("critic.model.fsdp_config", "critic"),
    *fsdp_keys("critic.fsdp", "critic"),
    refused("critic.model.lora_rank", "a critic is trained as a whole", "write 0, or remove it", 0),
    harmless("critic.model.lora_alpha", "a critic has no adapter"),
    harmless("critic.model.target_modules", "a critic has no adapter"),
    harmless("critic.model.exclude_modules", "a critic has no adapter"),
    refused("critic.model.lora_adapter_path", "a critic is trained as a whole", "remove it"),
    harmless("critic.model.custom_chat_template", "prompts are rendered for the policy, and a critic has its tokens"),
    *fused_keys("critic.model"),
    honoured("critic.ppo_mini_batch_size", "trainer.mini_batch_size", via="mini_batch", note="only that of the actor"),
    honoured(
        "critic.ppo_micro_batch_size", f"{_TREE}.critic.ppo_micro_batch_size_per_gpu", via="micro_batches", note=_GLOBAL
    ),
    honoured("critic.ppo_micro_batch_size_per_gpu", via="micro_batches", note=PER_RANK),
    honoured(
        "critic.forward_micro_batch_size",
        f"{_TREE}.critic.forward_micro_batch_size_per_gpu",
        via="micro_batches",
        note=_GLOBAL,
    ),
    honoured("critic.forward_micro_batch_size_per_gpu", via="micro_batches", note=PER_RANK),
    honoured("critic.use_dynamic_bsz"),
    honoured("critic.ppo_max_token_len_per_gpu"),
    honoured("critic.forward_max_token_len_per_gpu"),
    older("critic.ppo_infer_max_token_len_per_gpu", "critic.forward_max_token_len_per_gpu"),
    honoured("critic.ulysses_sequence_parallel_size"),
    honoured("critic.ppo_epochs"),
    honoured("critic.shuffle"),
    harmless("critic.data_loader_seed", "policy and critic are shuffled by `actor.data_loader_seed`", 42),
    honoured("critic.grad_clip"),
    honoured("critic.cliprange_value", default=0.5),
    honoured("critic.loss_agg_mode"),
    refused("critic.loss_scale_factor", "seq-mean-token-sum-norm divides by `data.max_response_length`", "remove it"),
    harmless("critic.rollout_n", "it is `rollout.n`"),
    harmless("critic.profiler", "there is no profiler", is_section=True),
    section("critic.megatron"),
    *checkpoint_keys("critic.checkpoint"),
    *optimizer_keys("critic.optim", f"{_TREE}.critic.optim", lr=1e-5),
)


def _scored_keys() -> Iterator[ForeignKey]:
    """Yield the keys of where scores are computed, in all places of veRL."""
    for place in ("reward_model.", "reward.", ""):
        name = f"{place}sandbox_fusion"
        yield refused(f"{name}.url", "code is scored here in its own sandbox", "remove it")
        yield harmless(f"{name}.max_concurrent", "it counts with `url`", 64)
        yield harmless(f"{name}.memory_limit_mb", "it counts with `url`", 1024)
    for place in ("reward_model", "reward.reward_model"):
        yield harmless(f"{place}.rollout", "a reward model is no engine here", is_section=True)
        yield refused(f"{place}.enable_resource_pool", "a reward model has no devices of its own", "write false", False)
        yield harmless(f"{place}.n_gpus_per_node", "it counts with `enable_resource_pool`", 8)
        yield harmless(f"{place}.nnodes", "it counts with `enable_resource_pool`", 0)
    for place in ("reward.reward_manager", "reward_manager"):
        yield harmless(f"{place}.source", "a reward manager is always chosen by its name", "register")
        yield refused(f"{place}.module.path", "only built-in reward managers are used, chosen by name", "remove it")
        yield harmless(f"{place}.module.name", "it counts with `path`", "custom_reward_manager")
    for name in ("source", "module_path", "class_name"):
        accepted = ("register",) if name == "source" else ()
        yield refused(
            f"reward_model.reward_loop_{name}",
            "only built-in reward managers are used, chosen by name",
            "remove it, and write a function for `custom_reward_function`",
            *accepted,
        )
    yield harmless("reward_model.use_reward_loop", "scores are computed beside generation anyway", True)


REWARD_KEYS: tuple[ForeignKey, ...] = (
    honoured(
        "reward_model.enable",
        f"{_TREE}.reward_model.enable",
        f"{TASKSET}.workflow_args.is_scored",
        via="reward_model",
        default=False,
        note="true: its scores are the rewards, and no function scores",
    ),
    honoured("reward_model.strategy"),
    honoured("reward_model.model.input_tokenizer"),
    honoured("reward_model.model.path"),
    honoured("reward_model.model.external_lib"),
    honoured("reward_model.model.trust_remote_code"),
    honoured("reward_model.model.use_remove_padding"),
    older("reward_model.model.use_rmpad", "reward_model.model.use_remove_padding"),
    harmless("reward_model.model.use_fused_kernels", "logits are always computed in pieces", False),
    honoured("reward_model.model.fsdp_config.min_num_params"),
    harmless("reward_model.model.fsdp_config.param_offload", "a reward model stays where it is computed", False),
    *fsdp_keys("reward_model.model.fsdp_config", "reward_model", is_trained=False),
    honoured(
        "reward_model.micro_batch_size",
        f"{_TREE}.reward_model.micro_batch_size_per_gpu",
        via="micro_batches",
        note=_GLOBAL,
    ),
    honoured("reward_model.micro_batch_size_per_gpu", via="micro_batches", note=PER_RANK),
    honoured("reward_model.use_dynamic_bsz"),
    honoured("reward_model.forward_max_token_len_per_gpu"),
    honoured("reward_model.ulysses_sequence_parallel_size"),
    honoured("reward_model.max_length"),
    honoured(
        "reward_model.reward_manager",
        f"{TASKSET}.workflow_args.overlong",
        via="tasks",
        default="naive",
        note="naive, prime and batch: a score a response; dapo: also the cost of length",
    ),
    honoured(
        "reward_model.reward_kwargs.max_resp_len", f"{TASKSET}.workflow_args.overlong", via="tasks", kind="integer"
    ),
    section(
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        f"{TASKSET}.workflow_args.overlong",
        via="tasks",
        keys=_OVERLONG,
    ),
    harmless("reward_model.launch_reward_fn_async", "scores are computed beside generation anyway", False),
    harmless("reward_model.num_workers", "scores are computed by the runners"),
    harmless("reward_model.profiler", "there is no profiler", is_section=True),
    *_scored_keys(),
    older("reward.reward_model.enable", "reward_model.enable"),
    older("reward.reward_model.model_path", "reward_model.model.path"),
    older("reward.reward_manager.name", "reward_model.reward_manager"),
    older("reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len"),
    older(
        "reward.reward_kwargs.overlong_buffer_cfg", "reward_model.reward_kwargs.overlong_buffer_cfg", is_section=True
    ),
    harmless("reward.num_workers", "scores are computed by the runners"),
    older("reward_manager.name", "reward_model.reward_manager"),
    harmless("reward_model.model.use_shm", "files are read where they are", False),
)

ALGORITHM_KEYS: tuple[ForeignKey, ...] = (
    honoured("algorithm.gamma", _ADVANTAGE, via="advantage", default=1.0, note="gae and reinforce_plus_plus"),
    honoured("algorithm.lam", _ADVANTAGE, via="advantage", default=1.0, note="gae"),
    honoured(
        "algorithm.adv_estimator",
        "algorithm.algorithm_type",
        "algorithm.advantage_fn",
        _ADVANTAGE,
        via="advantage",
        default="gae",
    ),
    honoured(
        "algorithm.norm_adv_by_std_in_grpo", _ADVANTAGE, via="advantage", default=True, note="grpo, grpo_passk, gdpo"
    ),
    honoured("algorithm.gdpo_reward_keys", _ADVANTAGE, via="advantage", note="gdpo"),
    honoured("algorithm.gdpo_reward_weights", _ADVANTAGE, via="advantage", note="gdpo"),
    honoured(
        "algorithm.use_kl_in_reward",
        "algorithm.kl_penalty_fn",
        via="kl_reward",
        kind="flag",
        note="absent in a file that has `kl_ctrl`: true unless `use_kl_loss` is, as in veRL before 0.4",
    ),
    honoured("algorithm.kl_penalty", "algorithm.kl_penalty_fn", via="kl_reward", default="kl"),
    honoured("algorithm.kl_ctrl.type", f"{_PENALTY}.adaptive", via="kl_reward", default="fixed"),
    honoured("algorithm.kl_ctrl.kl_coef", f"{_PENALTY}.kl_coef", via="kl_reward", default=0.001),
    honoured("algorithm.kl_ctrl.horizon", f"{_PENALTY}.horizon", via="kl_reward", default=10000),
    honoured("algorithm.kl_ctrl.target_kl", f"{_PENALTY}.target_kl", via="kl_reward", default=0.1),
    refused("algorithm.use_pf_ppo", "rollouts are not drawn again by their reward", "write false", False),
    harmless("algorithm.pf_ppo", "it counts with `use_pf_ppo` only", is_section=True),
    refused(
        "algorithm.filter_groups",
        "groups without a signal are not sampled again in a veRL file",
        f"remove it, and write `{_OPERATORS}` with reward_std_filter, and `max_refill_batches`, in our own file",
        switched=("enable", "metric", "max_num_gen_batches", "max_inflight_gen_batches"),
    ),
    section(
        "algorithm.rollout_correction",
        "algorithm.rollout_correction",
        via="correction",
        keys=(*RolloutCorrectionConfig.model_fields, VETO),
    ),
)

TRAINER_KEYS: tuple[ForeignKey, ...] = (
    honoured("trainer.total_epochs", "buffer.total_epochs", default=30),
    honoured(
        "trainer.total_training_steps", "buffer.total_steps", via="steps", note="wins over the epochs", kind="integer"
    ),
    honoured("trainer.project_name", "project", via="names", default="verl_examples"),
    honoured("trainer.experiment_name", "name", via="names", default="gsm8k"),
    honoured(
        "trainer.logger",
        "monitor.monitor_type",
        "monitor.verl_names",
        via="logger",
        kind="texts",
        note="console and file are always there; tensorboard, wandb (`tracking`), mlflow and swanlab beside",
    ),
    honoured("trainer.nnodes", "cluster.node_num", via="devices", default=1),
    honoured(
        "trainer.n_gpus_per_node",
        "cluster.gpu_per_node",
        "explorer.rollout_model.engine_num",
        via="devices",
        default=8,
        note="0: a CPU; of several GPUs, engines and trainer have their own",
    ),
    honoured(
        "trainer.save_freq", "trainer.save_interval", via="intervals", default=-1, note="-1: only the last step's"
    ),
    honoured("trainer.test_freq", "explorer.eval_interval", via="intervals", default=-1, note="-1: never"),
    honoured("trainer.val_before_train", "explorer.eval_on_startup", via="intervals", default=True),
    honoured("trainer.val_only", "mode", via="intervals", default=False, note="mode bench"),
    honoured(
        "trainer.critic_warmup",
        "trainer.critic_warmup",
        via="intervals",
        default=0,
        note="N leaves out the policy's first N - 1 updates",
    ),
    honoured("trainer.balance_batch", "trainer.balance_batch", default=True),
    honoured(
        "trainer.default_local_dir", "checkpoint_root_dir", via="names", note="a folder per project and experiment"
    ),
    honoured(
        "trainer.default_hdfs_dir",
        "trainer.checkpoint_upload_dir",
        via="names",
        note="a folder per project and experiment; a path without an address is this machine's, and is not needed",
    ),
    honoured("trainer.remove_previous_ckpt_in_save"),
    harmless("trainer.del_local_ckpt_after_load", "checkpoints are read where they are; none is copied", False),
    honoured("trainer.max_actor_ckpt_to_keep"),
    honoured("trainer.max_critic_ckpt_to_keep"),
    honoured("trainer.resume_mode", default="auto"),
    honoured("trainer.resume_from_path"),
    harmless("trainer.log_val_generations", _ALL_KEPT, 0),
    older("trainer.val_generations_to_log_to_wandb", "trainer.log_val_generations"),
    older("trainer.val_generations_to_log", "trainer.log_val_generations"),
    refused("trainer.rollout_data_dir", _ALL_KEPT, "remove it, and use `trinity export`"),
    refused("trainer.validation_data_dir", _ALL_KEPT, "remove it, and use `trinity show`"),
    harmless("trainer.esi_redundant_time", "a signal ends a run with a checkpoint", 0),
    harmless("trainer.device", "the device is the one that the machine has"),
    harmless(
        "trainer.ray_wait_register_center_timeout", "waits of workers end at `--set trainer.rank_timeout=SECONDS`"
    ),
    harmless("trainer.use_legacy_worker_impl", "the trainer is this project's"),
    harmless("trainer.use_v1", "the trainer is this project's"),
    harmless("trainer.v1", "the trainer is this project's", is_section=True),
    refused("trainer.checkpoint_callback_class", "checkpoints have no callbacks", "remove it"),
    harmless("trainer.profile_steps", "there is no profiler"),
    harmless("trainer.npu_profile", "there is no profiler", is_section=True),
)

_PARTS = "its parts have no counterpart here"
OTHER_KEYS: tuple[ForeignKey, ...] = (
    honoured(
        "compat",
        "algorithm.loss_agg_scope",
        via="compat",
        default="verl-0.9",
        note="our own key: `verl-0.6` averages the losses of micro-batches and of workers, as veRL did until 0.6",
    ),
    harmless("ray_init", "a cluster is named by `--set cluster.ray_address=...`", is_section=True),
    harmless("ray_kwargs", "a cluster is named by `--set cluster.ray_address=...`", is_section=True),
    harmless("global_profiler", "there is no profiler", is_section=True),
    harmless("profiler", "there is no profiler", is_section=True),
    harmless("transfer_queue", "experiences are in the database of the run", is_section=True),
    harmless("hydra", "outputs are in the folder of the job", is_section=True),
    harmless("model_engine", "the trainer is this project's"),
    refused(
        "distillation",
        "a veRL file is not distilled here",
        "write a file of ours with `algorithm_type: on_policy_distill`",
        is_section=True,
    ),
    refused("mtp", _PARTS, "remove it", is_section=True),
    refused("skip", "prompts are always sampled", "remove it", is_section=True),
)
