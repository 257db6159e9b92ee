"""Parts of the veRL tree that actor, reference and critic share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity.common.config.algorithm import SchedulerType
from trinity.common.config.base import (
    GUIDE,
    VERL,
    Args,
    Count,
    Float,
    Fraction,
    Int,
    Natural,
    NonNegative,
    Section,
    key,
    section,
)

Strategy = Literal["fsdp", "fsdp2", "megatron"]
Content = Literal["model", "optimizer", "extra", "hf_model"]
FloatType = Literal["fp32", "float32", "bf16", "bfloat16", "fp16", "float16"]


class WrapPolicy(Section):
    """Which modules are sharded on their own."""

    transformer_layer_cls_to_wrap: str | tuple[str, ...] | None = key(
        None, "Class names; null: the model's own list.", GUIDE
    )
    min_num_params: Natural = key(0, "Shard modules of at least so many parameters; 0: by class.", GUIDE)
    disable: bool = key(False, "Shard the root only.", VERL)


class MixedPrecision(Section):
    """Number types of computation and reduction."""

    param_dtype: FloatType = key("bf16", "Weights in computation.", VERL)
    reduce_dtype: FloatType = key("fp32", "Sums over workers.", VERL)
    buffer_dtype: FloatType = key("fp32", "Buffers.", VERL)


class FsdpConfig(Section):
    """Sharding, offload and number types of one model."""

    wrap_policy: WrapPolicy = section(WrapPolicy, "Which modules are sharded on their own.")
    param_offload: bool = key(False, "Weights in host memory between phases.", GUIDE)
    grad_offload: bool = key(False, "Gradients in host memory; freed between phases anyway.", VERL)
    optimizer_offload: bool = key(False, "Optimizer state in host memory between phases.", GUIDE)
    offload_policy: bool = key(False, "Offload during computation (fsdp2).", VERL)
    reshard_after_forward: bool = key(True, "Free gathered weights after the forward pass.", VERL)
    fsdp_size: Annotated[Int, Field(ge=-1)] = key(-1, "Workers per shard group; -1: all.", GUIDE)
    forward_prefetch: bool = key(False, "Gather the next module early.", GUIDE)
    model_dtype: FloatType | None = key(None, "Stored weights; null: fp32 if trained, else bf16.", VERL)
    mixed_precision: MixedPrecision | None = key(None, "Number types; null: bf16 with fp32 sums.", VERL)
    dtype: FloatType = key("bfloat16", "Number type of autocast.", VERL)
    use_orig_params: bool = key(False, "Accepted: shapes are always kept.", VERL)
    ulysses_sequence_parallel_size: Count | None = key(None, "Devices per sequence; null: of the model.", VERL)
    entropy_from_logits_with_chunking: bool | None = key(None, "As of the model; null inherits.", VERL)
    entropy_checkpointing: bool | None = key(None, "As of the model; null inherits.", VERL)
    use_torch_compile: bool | None = key(None, "As of the model; null inherits.", VERL)
    forward_only: bool = key(False, "The model is never trained.", VERL)
    seed: Int = key(42, "Seed of the worker.", VERL)
    full_determinism: bool = key(False, "Only deterministic kernels.", VERL)
    use_no_sync_for_gradient_accumulation: bool = key(False, "Reduce gradients once a mini-batch.", VERL)
    pad_to_length: Count | None = key(None, "Fixed length of micro-batches in tokens.", VERL)
    pad_to_length_bucket: Count | None = key(None, "Lengths rounded up to a multiple of it, in tokens.", VERL)


class MegatronEngineConfig(Section):
    """veRL's section of Megatron for one model; what is left out is that of `trainer.megatron`."""

    tensor_model_parallel_size: Count | None = key(None, "Tensor parallelism; null: of trainer.megatron.", VERL)
    pipeline_model_parallel_size: Count | None = key(None, "Pipeline parallelism; null: of trainer.megatron.", VERL)
    virtual_pipeline_model_parallel_size: Count | None = key(None, "Virtual pipeline stages.", VERL)
    expert_model_parallel_size: Count | None = key(None, "Expert parallelism.", VERL)
    expert_tensor_parallel_size: Count | None = key(None, "Tensor parallelism of experts.", VERL)
    context_parallel_size: Count | None = key(None, "Context parallelism.", VERL)
    sequence_parallel: bool | None = key(None, "Sequence parallelism of norms; null: of trainer.megatron.", VERL)
    param_offload: bool | None = key(None, "As fsdp_config.param_offload.", VERL)
    grad_offload: bool | None = key(None, "Gradients in host memory; freed between phases anyway.", VERL)
    optimizer_offload: bool | None = key(None, "As fsdp_config.optimizer_offload.", VERL)
    use_distributed_optimizer: bool = key(True, "Optimizer state divided over data-parallel workers.", VERL)
    use_dist_checkpointing: bool = key(False, "Weights from a checkpoint of Megatron.", VERL)
    dist_checkpointing_path: str | None = key(None, "Folder of that checkpoint.", VERL)
    dist_checkpointing_prefix: str = key("", "Prefix of its tensors.", VERL)
    use_mbridge: bool = key(False, "Weights from Hugging Face files; this trainer always reads them.", VERL)
    vanilla_mbridge: bool = key(True, "Which bridge reads them.", VERL)
    seed: Int = key(42, "Seed of the worker.", VERL)
    override_ddp_config: Args = key({}, "Changes to Megatron's gradient buffers.", VERL)
    override_transformer_config: Args = key({}, "Changes to Megatron's transformer.", VERL)
    override_mcore_model_config: Args = key({}, "Changes to Megatron's model.", VERL)
    forward_only: bool = key(False, "The model is never trained.", VERL)
    dtype: FloatType = key("bfloat16", "Number type of autocast.", VERL)


class VerlOptimConfig(Section):
    """Optimizer of one model under veRL's names."""

    lr: NonNegative | None = key(None, "Learning rate; null: algorithm.optimizer (actor), 1e-5 (critic).", GUIDE)
    lr_warmup_steps: Annotated[Int, Field(ge=-1)] | None = key(None, "Warm-up in training steps.", VERL)
    lr_warmup_steps_ratio: Fraction | None = key(None, "Warm-up as a share of all steps.", GUIDE)
    min_lr_ratio: Fraction | None = key(None, "Final learning rate as a share of lr (cosine).", GUIDE)
    warmup_style: SchedulerType | None = key(None, "Older name of lr_scheduler_type.", GUIDE)
    lr_scheduler_type: SchedulerType | None = key(None, "Schedule after the warm-up.", VERL)
    num_cycles: NonNegative | None = key(None, "Cosine cycles; null: 0.5.", VERL)
    total_training_steps: Annotated[Int, Field(ge=-1)] = key(-1, "Set by the run.", GUIDE, derived=True)
    weight_decay: NonNegative | None = key(None, "Decoupled weight decay.", VERL)
    betas: tuple[Fraction, Fraction] | None = key(None, "Decay rates of Adam's moments.", VERL)
    optimizer: str | None = key(None, "AdamW or SGD.", VERL)
    optimizer_impl: str | None = key(None, "Module of the optimizer class.", VERL)
    override_optimizer_config: Args | None = key(None, "Further arguments of the optimizer.", VERL)
    clip_grad: NonNegative | None = key(None, "Largest gradient norm.", VERL)


class CheckpointContents(Section):
    """What a checkpoint holds."""

    load_contents: tuple[Content, ...] = key(("model", "optimizer", "extra"), "Parts that are loaded.", GUIDE)
    save_contents: tuple[Content, ...] = key(("model", "optimizer", "extra"), "Parts that are saved.", GUIDE)
    async_save: bool = key(False, "Write while training goes on.", VERL)
    strict: bool = key(True, "Every tensor must be present.", VERL)
    save_lora_only: bool = key(False, "Save only the adapter.", VERL)


def _unset(value: Any) -> Any:
    return None if value in ("", "None", False) else value


class FusedKernelOptions(Section):
    """Implementation of the fused output layer."""

    impl_backend: Annotated[Literal["triton", "torch", "liger"] | None, BeforeValidator(_unset)] = key(
        None, "Null or torch: the output layer in pieces.", GUIDE
    )


class VerlModelConfig(Section):
    """How a model is loaded and run."""

    path: str | None = key(None, "Folder of the model; null: model.model_path.", VERL)
    tokenizer_path: str | None = key(None, "Folder of the tokenizer.", VERL)
    hf_config_path: str | None = key(None, "Folder of config.json.", VERL)
    external_lib: str | tuple[str, ...] | None = key(None, "Modules imported before the model is loaded.", GUIDE)
    override_config: Args = key({}, "Changes to the model's config.json.", GUIDE)
    enable_gradient_checkpointing: bool = key(True, "Recompute activations layer by layer.", GUIDE)
    enable_activation_offload: bool = key(False, "Activations in host memory.", VERL)
    use_remove_padding: bool | None = key(None, "Accepted: padding is never computed.", GUIDE)
    use_fused_kernels: bool = key(False, "Accepted: logits never exist at once.", GUIDE)
    fused_kernel_options: FusedKernelOptions = section(FusedKernelOptions, "Implementation of the fused layer.")
    trust_remote_code: bool | None = key(None, "Run the model's own code; null: as section model.", VERL)
    custom_chat_template: str | None = key(None, "Chat template; null: as section model.", VERL)
    use_shm: bool = key(False, "Copy the model to shared memory first.", VERL)
    lora_rank: Natural = key(0, "Rank of an adapter; 0: none.", VERL)
    lora_alpha: Float = key(16.0, "Scale numerator of an adapter.", VERL)
    target_modules: str | tuple[str, ...] = key("all-linear", "Modules that get an adapter.", VERL)
    exclude_modules: str | tuple[str, ...] | None = key(None, "Modules that get none.", VERL)
    lora_adapter_path: str | None = key(None, "Folder of an existing adapter.", VERL)
    use_liger: bool = key(False, "Liger kernels.", VERL)
    tiled_mlp: Args | None = key(None, "Feed-forward blocks in tiles.", VERL)
    mtp: Args | None = key(None, "Multi-token prediction.", VERL)
