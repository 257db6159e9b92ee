"""What this version can do with the sections of the critic and the reward model; see `available`."""

from __future__ import annotations

from typing import Any

ANY = object()

_CRITIC = "trainer.trainer_config.critic"
_ANY_VALUE = (
    "enable", "ppo_mini_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "forward_micro_batch_size",
    "forward_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "forward_max_token_len_per_gpu",
    "ppo_epochs", "shuffle", "grad_clip", "cliprange_value", "loss_agg_mode", "optim.lr", "optim.lr_warmup_steps",
    "optim.lr_warmup_steps_ratio", "optim.min_lr_ratio", "optim.warmup_style", "optim.lr_scheduler_type",
    "optim.weight_decay", "optim.betas*", "optim.total_training_steps", "model.path",
    "model.enable_gradient_checkpointing", "model.trust_remote_code",
    "model.use_remove_padding",  # values are the same with and without padding; this trainer never pads
    "model.external_lib", "model.override_config*", "model.use_fused_kernels",
    "model.fused_kernel_options.impl_backend",
)  # fmt: skip
_NUMBER_TYPES: dict[str, tuple[Any, ...]] = {
    "wrap_policy.*": (ANY,),
    "fsdp_size": (ANY,),
    "forward_prefetch": (ANY,),
    "grad_offload": (ANY,),
    "param_offload": (ANY,),
    "optimizer_offload": (ANY,),
    "offload_policy": (ANY,),
    "mixed_precision.reduce_dtype": (ANY,),
    "reshard_after_forward": (ANY,),
    "use_orig_params": (ANY,),
    "dtype": (ANY,),
    "mixed_precision.param_dtype": (ANY,),
    "model_dtype": (None, "fp32", "float32"),
}

_REWARD_MODEL = "trainer.trainer_config.reward_model"

REWARD_MODEL_KEYS: dict[str, tuple[Any, ...]] = {
    f"{_REWARD_MODEL}.strategy": ("fsdp", "fsdp2"),
    f"{_REWARD_MODEL}.ulysses_sequence_parallel_size": (1,),
    f"{_REWARD_MODEL}.reward_manager": ("naive",),
    **{
        f"{_REWARD_MODEL}.{name}": (ANY,)
        for name in (
            "enable", "model.path", "model.input_tokenizer", "model.external_lib", "model.trust_remote_code",
            "worker", "worker_args*", "dtype", "micro_batch_size",
            "micro_batch_size_per_gpu", "use_dynamic_bsz", "forward_max_token_len_per_gpu", "max_length",
            "model.fsdp_config.min_num_params", "model.fsdp_config.wrap_policy.*", "model.fsdp_config.fsdp_size",
            "model.fsdp_config.forward_prefetch", "model.fsdp_config.reshard_after_forward",
        )
    },
}  # fmt: skip

CRITIC_KEYS: dict[str, tuple[Any, ...]] = {
    f"{_CRITIC}.strategy": ("fsdp", "fsdp2", "megatron"),
    f"{_CRITIC}.megatron.*": (ANY,),
    f"{_CRITIC}.ulysses_sequence_parallel_size": (ANY,),
    f"{_CRITIC}.checkpoint.save_contents": (ANY,),
    f"{_CRITIC}.checkpoint.load_contents": (ANY,),
    **{f"{_CRITIC}.{name}": (ANY,) for name in _ANY_VALUE},
    **{f"{_CRITIC}.{place}.{name}": allowed
       for place in ("fsdp", "model.fsdp_config") for name, allowed in _NUMBER_TYPES.items()},
}  # fmt: skip
