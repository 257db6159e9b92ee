"""veRL's sections of the trained model, its training and its reference."""

from __future__ import annotations

from collections.abc import Iterator

from trinity.common.config.dialects.foreign_key import (
    UNSET,
    ForeignKey,
    harmless,
    honoured,
    older,
    refused,
    section,
)

_MODEL, _ACTOR, _REF = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_LOSS = "algorithm.policy_loss_fn_args"
_ADAPTER = "model.lora_configs"
PER_RANK = "experiences of one worker"
_PROMPTS = "prompts; times `rollout.n` it is rollouts of an optimizer step"
_COMPILED = "nothing is compiled; the numbers are the same"
_ENTROPY = "a reference computes no entropy"
_PIECES = "logits are always computed in pieces"
_AGAIN = "the entropy is always computed again in the backward pass"
_UNPADDED = "sequences are packed at their own lengths, which gives the same numbers"
_NO_QAT = "weights are not trained for an engine that quantizes them"
_NO_HEADS = "heads that predict further tokens are not trained"
_OF_MODELS = (
    "attn_implementation", "_attn_implementation", "attention_dropout", "rope_scaling", "rope_theta",
    "max_position_embeddings", "sliding_window", "use_sliding_window", "moe_config", "model_config",
)  # fmt: skip
_NO_OTHER = "the model has one folder for its weights, config.json and tokenizer"


def optimizer_keys(place: str, to: str, *, lr: float) -> Iterator[ForeignKey]:
    """Yield the keys of an optimizer.

    Args:
        place: veRL's section.
        to: ours, where its keys have the same names.
        lr: the default of the learning rate.
    """
    yield honoured(f"{place}.lr", f"{to}.lr", via="schedule", default=lr)
    yield honoured(f"{place}.lr_warmup_steps", f"{to}.lr_warmup_steps", via="warmup", default=-1, note="training steps")
    yield honoured(
        f"{place}.lr_warmup_steps_ratio",
        f"{to}.lr_warmup_steps_ratio",
        via="warmup",
        default=0.0,
        note="the first step already learns; veRL's first step of a warm-up has the rate 0",
    )
    yield honoured(f"{place}.min_lr_ratio", f"{to}.min_lr_ratio", via="schedule", default=0.0)
    yield honoured(f"{place}.lr_scheduler_type", f"{to}.lr_scheduler_type", via="schedule", default="constant")
    yield older(f"{place}.warmup_style", f"{place}.lr_scheduler_type")
    yield refused(f"{place}.num_cycles", "the cosine falls once", "write 0.5, or remove it", 0.5)
    yield refused(f"{place}.zero_indexed_step", "steps of a schedule are counted from 1", "remove it", True, False)
    yield refused(f"{place}.init_lr_ratio", "a warm-up begins at 0", "remove it", 0, 0.0)
    yield harmless(f"{place}.total_training_steps", "veRL overwrites it, and here too the steps of the run count", -1)
    yield honoured(f"{place}.weight_decay", f"{to}.weight_decay", via="schedule", default=0.01)
    yield honoured(f"{place}.betas", f"{to}.betas")
    yield refused(f"{place}.optimizer", "AdamW is the one optimizer of a veRL file here", "write AdamW", "AdamW")
    yield refused(f"{place}.optimizer_impl", "the optimizer is PyTorch's", "write torch.optim", "torch.optim")
    yield refused(
        f"{place}.override_optimizer_config", "the optimizer takes no further arguments", "remove it", is_section=True
    )
    yield older(f"{place}.clip_grad", f"{place.rpartition('.')[0]}.grad_clip")
    yield older(f"{place}.grad_clip", f"{place.rpartition('.')[0]}.grad_clip")


_FSDP = (
    "wrap_policy.transformer_layer_cls_to_wrap", "wrap_policy.min_num_params", "wrap_policy.disable", "param_offload",
    "grad_offload", "optimizer_offload", "offload_policy", "reshard_after_forward", "fsdp_size", "forward_prefetch",
    "model_dtype", "mixed_precision.param_dtype", "mixed_precision.reduce_dtype", "mixed_precision.buffer_dtype",
    "dtype", "use_orig_params", "seed", "full_determinism", "forward_only", "use_no_sync_for_gradient_accumulation",
)  # fmt: skip
_OWN_DEFAULT = {"seed", "full_determinism", "forward_only", "use_no_sync_for_gradient_accumulation"}


def fsdp_keys(place: str, above: str, *, to: str = "", is_trained: bool = True) -> Iterator[ForeignKey]:
    """Yield the keys of a model's sharding.

    Args:
        place: veRL's section.
        above: the section of the model's training, which has the names that moved there.
        to: our section below `trainer.trainer_config`; empty: of the same name.
        is_trained: the model is trained, so that its weights may be stored otherwise than they are computed with.
    """
    for name in _FSDP:
        if name == "model_dtype" and not is_trained:
            yield refused(
                f"{place}.{name}",
                "a model that is not trained is stored as it is computed with",
                "write bf16, or remove it",
                "fp32", "float32", "bf16", "bfloat16",
            )  # fmt: skip
        elif name not in _OWN_DEFAULT:
            yield honoured(f"{place}.{name}", f"trainer.trainer_config.{to or place}.{name}")
    yield refused(f"{place}.seed", "the seed of a run is one for all", "remove it, or write `data.seed`", 42)
    yield refused(
        f"{place}.full_determinism",
        "a run is deterministic as a whole",
        "remove it, and add --set deterministic=true",
        False,
    )
    yield harmless(f"{place}.forward_only", "what is trained follows from the section", False, True)
    yield harmless(f"{place}.use_no_sync_for_gradient_accumulation", "the sums are the same", False, True)
    yield older(f"{place}.ulysses_sequence_parallel_size", f"{above}.ulysses_sequence_parallel_size")
    yield harmless(f"{place}.use_torch_compile", _COMPILED)
    yield harmless(f"{place}.strategy", "it is that of the section above", "fsdp", "fsdp2")
    yield from _memory_keys(place)
    yield harmless(f"{place}.pad_to_length_bucket", _UNPADDED, 1024)
    yield harmless(f"{place}.entropy_from_logits_with_chunking", _PIECES, False)
    yield harmless(f"{place}.entropy_checkpointing", _AGAIN, False)
    yield refused(f"{place}.qat", _NO_QAT, "remove it", is_section=True)
    yield harmless(f"{place}.turbo_config", "it is of another engine than FSDP", is_section=True)


def _memory_keys(place: str) -> Iterator[ForeignKey]:
    """Yield what a section of training and its sharding both have."""
    yield harmless(f"{place}.entropy_from_logits_chunk_size", "pieces follow the memory", 2048)
    yield harmless(f"{place}.pad_to_length", _UNPADDED, False)


def fused_keys(place: str) -> Iterator[ForeignKey]:
    """Yield the keys of a model's kernels."""
    yield harmless(f"{place}.use_fused_kernels", _PIECES, False)
    yield harmless(f"{place}.fused_kernel_options", f"{_PIECES}, by PyTorch", is_section=True)
    yield harmless(f"{place}.use_liger", "its kernels give the same numbers as those here", False)
    yield harmless(f"{place}.lora", "it is Megatron's", is_section=True)
    yield harmless(f"{place}.tiled_mlp", "it saves memory and changes no number", is_section=True)
    yield refused(f"{place}.mtp", _NO_HEADS, "remove it", is_section=True)


def checkpoint_keys(place: str) -> Iterator[ForeignKey]:
    """Yield the keys of what a checkpoint holds."""
    yield honoured(f"{place}.load_contents")
    yield honoured(f"{place}.save_contents")
    yield older(f"{place}.contents", f"{place}.save_contents")
    yield honoured(f"{place}.async_save")
    yield honoured(f"{place}.strict")
    yield honoured(f"{place}.save_lora_only")
    yield refused(f"{place}.mbridge_config", "no bridge to Megatron is used", "remove it", is_section=True)


def model_keys(place: str) -> Iterator[ForeignKey]:
    """Yield the keys of loading and running a model."""
    yield honoured(f"{place}.external_lib")
    yield older(f"{place}.external_libs", f"{place}.external_lib")
    yield section(f"{place}.override_config", keys=_OF_MODELS, is_open=True)
    yield honoured(f"{place}.enable_gradient_checkpointing", default=UNSET)
    yield honoured(f"{place}.enable_activation_offload")
    yield honoured(f"{place}.use_remove_padding")
    yield older(f"{place}.use_rmpad", f"{place}.use_remove_padding")
    yield refused(f"{place}.hf_config_path", _NO_OTHER, "put its files into the folder of `path`")
    yield honoured(f"{place}.trust_remote_code", via="trust", default=False)
    yield harmless(f"{place}.use_shm", "files are read where they are", False)


MODEL_KEYS: tuple[ForeignKey, ...] = (
    honoured("actor_rollout_ref.hybrid_engine"),
    harmless("actor_rollout_ref.nccl_timeout", "waits of workers end at `--set trainer.rank_timeout=SECONDS`", 600),
    honoured(f"{_MODEL}.path", "model.model_path", via="model"),
    *(key for key in model_keys(_MODEL) if not key.name.endswith("trust_remote_code")),
    honoured(f"{_MODEL}.trust_remote_code", "model.trust_remote_code", via="trust", default=False),
    refused(f"{_MODEL}.tokenizer_path", _NO_OTHER, "put its files into the folder of `path`"),
    honoured(f"{_MODEL}.custom_chat_template", "model.custom_chat_template"),
    *fused_keys(_MODEL),
    honoured(f"{_MODEL}.lora_rank", _ADAPTER, via="adapter", default=0),
    honoured(f"{_MODEL}.lora_alpha", _ADAPTER, via="adapter", default=16),
    honoured(f"{_MODEL}.target_modules", _ADAPTER, via="adapter", default="all-linear", kind="texts"),
    honoured(f"{_MODEL}.exclude_modules", _ADAPTER, via="adapter", kind="texts"),
    honoured(f"{_MODEL}.lora_adapter_path", _ADAPTER, via="adapter"),
)

ACTOR_KEYS: tuple[ForeignKey, ...] = (
    honoured(f"{_ACTOR}.strategy", "trainer.trainer_strategy", default="fsdp"),
    honoured(f"{_ACTOR}.ppo_mini_batch_size", "trainer.mini_batch_size", via="mini_batch", default=256, note=_PROMPTS),
    honoured(
        f"{_ACTOR}.ppo_micro_batch_size",
        f"trainer.trainer_config.{_ACTOR}.ppo_micro_batch_size_per_gpu",
        via="micro_batches",
        note="experiences of all workers, divided by them",
    ),
    honoured(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", via="micro_batches", note=PER_RANK),
    honoured(f"{_ACTOR}.use_dynamic_bsz", "trainer.use_dynamic_bsz", default=False),
    honoured(
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        "trainer.max_token_len_per_gpu",
        via="token_budgets",
        default=16384,
        note="tokens of one worker; counts with `use_dynamic_bsz: true`",
    ),
    harmless(f"{_ACTOR}.ppo_infer_max_token_len_per_gpu", "passes without gradient have the budget of those with one"),
    honoured(f"{_ACTOR}.grad_clip", "trainer.grad_clip", default=1.0),
    honoured(f"{_ACTOR}.clip_ratio", _LOSS, via="policy_loss", default=0.2),
    honoured(f"{_ACTOR}.clip_ratio_low", _LOSS, via="policy_loss"),
    honoured(f"{_ACTOR}.clip_ratio_high", _LOSS, via="policy_loss"),
    honoured(f"{_ACTOR}.clip_ratio_c", _LOSS, via="policy_loss", default=3.0),
    section(
        f"{_ACTOR}.policy_loss",
        "algorithm.policy_loss_fn",
        _LOSS,
        via="policy_loss",
        note="`loss_mode` and its numbers",
        keys=(
            "loss_mode",
            "clip_cov_ratio",
            "clip_cov_lb",
            "clip_cov_ub",
            "kl_cov_ratio",
            "ppo_kl_coef",
            "dro_beta",
        ),  # fmt: skip
    ),
    honoured(f"{_ACTOR}.loss_agg_mode", "algorithm.loss_agg_mode", _LOSS, via="policy_loss", default="token-mean"),
    refused(
        f"{_ACTOR}.loss_scale_factor", "seq-mean-token-sum-norm divides by `data.max_response_length`", "remove it"
    ),
    honoured(f"{_ACTOR}.tau_pos", _LOSS, via="policy_loss", default=1.0),
    honoured(f"{_ACTOR}.tau_neg", _LOSS, via="policy_loss", default=1.05),
    honoured(
        f"{_ACTOR}.entropy_coeff",
        "algorithm.entropy_loss_fn",
        "algorithm.entropy_loss_fn_args.entropy_coef",
        via="entropy",
        default=0.0,
    ),
    honoured(f"{_ACTOR}.use_kl_loss", "algorithm.kl_loss_fn", via="kl_loss", default=False),
    honoured(f"{_ACTOR}.kl_loss_coef", "algorithm.kl_loss_fn_args.kl_coef", via="kl_loss", default=0.001),
    honoured(f"{_ACTOR}.kl_loss_type", "algorithm.kl_loss_fn", via="kl_loss", default="low_var_kl"),
    honoured(f"{_ACTOR}.ppo_epochs", default=1),
    honoured(f"{_ACTOR}.shuffle", default=False),
    honoured(f"{_ACTOR}.data_loader_seed"),
    honoured(
        f"{_ACTOR}.ulysses_sequence_parallel_size", "trainer.ulysses_sequence_parallel_size", default=1, kind="integer"
    ),
    honoured(f"{_ACTOR}.entropy_from_logits_with_chunking"),
    honoured(f"{_ACTOR}.entropy_checkpointing"),
    *_memory_keys(_ACTOR),
    harmless(f"{_ACTOR}.use_fused_kernels", _PIECES, False),
    harmless(f"{_ACTOR}.use_remove_padding", _UNPADDED, True),
    refused(f"{_ACTOR}.qat", _NO_QAT, "remove it", is_section=True),
    harmless(f"{_ACTOR}.use_torch_compile", _COMPILED),
    harmless(f"{_ACTOR}.calculate_entropy", "the entropy is a metric where the loss has it", False),
    harmless(f"{_ACTOR}.calculate_sum_pi_squared", "it is computed where the advantage reads it", False, True),
    harmless(f"{_ACTOR}.sum_pi_squared_checkpointing", "it saves memory and changes no number", False),
    harmless(f"{_ACTOR}.use_prefix_grouper", "what prompts have in common is always computed once", False),
    honoured(f"{_ACTOR}.freeze_vision_tower"),
    honoured(
        f"{_ACTOR}.use_rollout_log_probs",
        "algorithm.bypass_old_logprobs",
        via="old_logprobs",
        default=False,
        note="false: the trainer computes the old log-probabilities, at the weights before the step",
    ),
    refused(f"{_ACTOR}.tis_imp_ratio_cap", "it is in no release of veRL", "write `algorithm.rollout_correction`", -1),
    harmless(f"{_ACTOR}.rollout_n", "it is `rollout.n`"),
    harmless(f"{_ACTOR}.router_replay", "routes are not replayed", is_section=True),
    harmless(f"{_ACTOR}.profiler", "there is no profiler", is_section=True),
    section(f"{_ACTOR}.megatron"),
    *checkpoint_keys(f"{_ACTOR}.checkpoint"),
    *optimizer_keys(f"{_ACTOR}.optim", "algorithm.optimizer", lr=1e-6),
    *fsdp_keys(f"{_ACTOR}.fsdp_config", _ACTOR),
)

REF_KEYS: tuple[ForeignKey, ...] = (
    harmless(f"{_REF}.strategy", "a reference is divided as the policy is", "fsdp", "fsdp2"),
    honoured(
        f"{_REF}.log_prob_micro_batch_size",
        f"trainer.trainer_config.{_REF}.log_prob_micro_batch_size_per_gpu",
        via="micro_batches",
        note="experiences of all workers, divided by them",
    ),
    honoured(f"{_REF}.log_prob_micro_batch_size_per_gpu", via="micro_batches", note=PER_RANK),
    honoured(f"{_REF}.log_prob_use_dynamic_bsz"),
    honoured(f"{_REF}.log_prob_max_token_len_per_gpu", via="token_budgets"),
    honoured(f"{_REF}.ulysses_sequence_parallel_size"),
    harmless(f"{_REF}.entropy_from_logits_with_chunking", _ENTROPY, False),
    harmless(f"{_REF}.entropy_checkpointing", _ENTROPY, False),
    *_memory_keys(_REF),
    harmless(f"{_REF}.use_torch_compile", _COMPILED),
    harmless(f"{_REF}.rollout_n", "it is `rollout.n`"),
    harmless(f"{_REF}.router_replay", "routes are not replayed", is_section=True),
    harmless(f"{_REF}.profiler", "there is no profiler", is_section=True),
    refused(f"{_REF}.model", "the reference is the policy as the run begins with it", "remove it", is_section=True),
    section(f"{_REF}.megatron"),
    *fsdp_keys(f"{_REF}.fsdp_config", _REF, is_trained=False),
)
