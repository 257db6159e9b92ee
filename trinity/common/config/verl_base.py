"""Parts of the veRL tree that actor, reference and critic share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity.common.config.algorithm import SchedulerType
from trinity.common.config.base import (
    GUIDE,
    LATER,
    VERL,
    Args,
    Count,
    Float,
    Fraction,
    Idle,
    Int,
    Natural,
    NonNegative,
    Renamed,
    Section,
    key,
    later,
    only,
    refused,
    section,
)

Strategy = Literal["fsdp", "fsdp2", "megatron"]
Content = Literal["model", "optimizer", "extra", "hf_model"]
FloatType = Literal["fp32", "float32", "bf16", "bfloat16", "fp16", "float16"]


_KERNEL = "the fused output layer is always computed in pieces by PyTorch; there are no other kernels"
SCALED = refused(
    "fp32", "float32", "bf16", "bfloat16",
    why="float16 holds no gradient below 6e-8, and the trainer does not scale its loss, so that small ones would be "
    "lost",
    instead="write bfloat16 or float32; an engine may still sample in float16 (`explorer.rollout_model.dtype`)",
)  # fmt: skip
COMPILED = Idle(None, "nothing is compiled, and the numbers are the same", is_any=True)
PADDED = Idle(False, "sequences are always packed without padding, which gives the same numbers")
GRADIENTS_KEPT = Idle(True, "gradients are freed at the end of each optimizer step, so that none are left to move")
# A model without gradients: of its sharding, which is that of a trained one, this is not done yet.
SCORES_ONLY = later(
    "grad_offload", "optimizer_offload", "model_dtype", "dtype", "use_orig_params", "mixed_precision.param_dtype",
    "mixed_precision.reduce_dtype",
)  # fmt: skip


class WrapPolicy(Section):
    """Selection of the modules that are sharded separately."""

    transformer_layer_cls_to_wrap: str | tuple[str, ...] | None = key(
        None, "Class names; null: the model's own list.", GUIDE
    )
    min_num_params: Natural = key(0, "Shard modules of at least so many parameters; 0: by class.", GUIDE)
    disable: bool = key(False, "Shard the root only.", VERL)


class MixedPrecision(Section):
    """Data types of computation and reduction."""

    param_dtype: FloatType = key("bf16", "Weights in computation.", VERL, support=SCALED)
    reduce_dtype: FloatType = key("fp32", "Sums over workers.", VERL, support=SCALED)
    buffer_dtype: FloatType = key("fp32", "Buffers.", VERL, support=LATER)


class FsdpConfig(Section):
    """Sharding, offload and data types of one model."""

    wrap_policy: WrapPolicy = section(WrapPolicy, "Which modules are sharded on their own.")
    param_offload: bool = key(False, "Weights in host memory between phases.", GUIDE)
    grad_offload: bool = key(False, "Gradients in host memory; freed between phases anyway.", VERL)
    optimizer_offload: bool = key(False, "Optimizer state in host memory between phases.", GUIDE)
    offload_policy: bool = key(False, "Offload during computation (fsdp2).", VERL)
    reshard_after_forward: bool = key(True, "Free gathered weights after the forward pass.", VERL)
    fsdp_size: Annotated[Int, Field(ge=-1)] = key(-1, "Workers per shard group; -1: all.", GUIDE)
    forward_prefetch: bool = key(False, "Gather the next module early.", GUIDE)
    model_dtype: FloatType | None = key(
        None, "Stored weights; null: fp32 if trained, else bf16.", VERL, support=only(None, "fp32", "float32")
    )
    mixed_precision: MixedPrecision | None = key(None, "Data types; null: bf16 with fp32 sums.", VERL)
    dtype: FloatType = key("bfloat16", "Data type of autocast.", VERL, support=SCALED)
    use_orig_params: bool = key(False, "Accepted: shapes are always kept.", VERL)
    ulysses_sequence_parallel_size: Count | None = key(
        None, "Devices per sequence; null: of the model.", VERL, support=LATER
    )
    entropy_from_logits_with_chunking: bool | None = key(None, "As of the model; null inherits.", VERL, support=LATER)
    entropy_checkpointing: bool | None = key(None, "As of the model; null inherits.", VERL, support=LATER)
    use_torch_compile: bool | None = key(None, "As of the model; null inherits.", VERL, idle=COMPILED)
    forward_only: bool = key(False, "The model is never trained.", VERL, support=LATER)
    seed: Int = key(42, "Seed of the worker.", VERL, support=LATER)
    full_determinism: bool = key(False, "Only deterministic kernels.", VERL, support=LATER)
    use_no_sync_for_gradient_accumulation: bool = key(False, "Reduce gradients once a mini-batch.", VERL, support=LATER)
    pad_to_length: Count | None = key(None, "Fixed length of micro-batches in tokens.", VERL, support=LATER)
    pad_to_length_bucket: Count | None = key(
        None, "Lengths rounded up to a multiple of it, in tokens.", VERL, support=LATER
    )


class VerlOptimConfig(Section):
    """Optimizer of one model under veRL's names."""

    lr: NonNegative | None = key(
        None, "Learning rate; null: algorithm.optimizer (actor), its own default (critic).", GUIDE
    )
    lr_warmup_steps: Annotated[Int, Field(ge=-1)] | None = key(None, "Warm-up in training steps.", VERL)
    lr_warmup_steps_ratio: Fraction | None = key(None, "Warm-up as a share of all steps.", GUIDE)
    min_lr_ratio: Fraction | None = key(None, "Final learning rate as a share of lr (cosine).", GUIDE)
    warmup_style: SchedulerType | None = key(None, "", GUIDE, renamed=Renamed("lr_scheduler_type"))
    lr_scheduler_type: SchedulerType | None = key(None, "Schedule after the warm-up.", VERL)
    num_cycles: NonNegative | None = key(None, "Cosine cycles; null: 0.5.", VERL, support=LATER)
    total_training_steps: Annotated[Int, Field(ge=-1)] = key(-1, "", GUIDE, set_from="trainer.total_steps")
    weight_decay: NonNegative | None = key(None, "Decoupled weight decay.", VERL)
    betas: tuple[Fraction, Fraction] | None = key(None, "Decay rates of Adam's moments.", VERL)
    optimizer: str | None = key(None, "AdamW or SGD.", VERL, support=LATER)
    optimizer_impl: str | None = key(None, "Module of the optimizer class.", VERL, support=LATER)
    override_optimizer_config: Args | None = key(None, "Further arguments of the optimizer.", VERL, support=LATER)
    clip_grad: NonNegative | None = key(None, "Largest gradient norm.", VERL, support=LATER)


class CheckpointContents(Section):
    """Contents of a checkpoint."""

    load_contents: tuple[Content, ...] = key(("model", "optimizer", "extra"), "Parts that are loaded.", GUIDE)
    save_contents: tuple[Content, ...] = key(("model", "optimizer", "extra"), "Parts that are saved.", GUIDE)
    async_save: bool = key(False, "Write while training continues.", VERL, support=LATER)
    strict: bool = key(True, "Every tensor must be present.", VERL, support=LATER)
    save_lora_only: bool = key(False, "Save only the adapter.", VERL, support=LATER)


def _unset(value: Any) -> Any:
    return None if value in ("", "None", False) else value


class FusedKernelOptions(Section):
    """Implementation of the fused output layer."""

    impl_backend: Annotated[Literal["triton", "torch", "liger"] | None, BeforeValidator(_unset)] = key(
        None,
        "Null or torch: the output layer in pieces.",
        GUIDE,
        idle=Idle(None, _KERNEL, is_any=True, but=("torch",)),
    )


class VerlModelConfig(Section):
    """Loading and execution of a model."""

    path: str | None = key(None, "Folder of the model; null: model.model_path.", VERL)
    tokenizer_path: str | None = key(None, "Folder of the tokenizer.", VERL, support=LATER)
    hf_config_path: str | None = key(None, "Folder of config.json.", VERL, support=LATER)
    external_lib: str | tuple[str, ...] | None = key(None, "Modules imported before the model is loaded.", GUIDE)
    override_config: Args = key({}, "Changes to the model's config.json.", GUIDE)
    enable_gradient_checkpointing: bool = key(True, "Recompute activations layer by layer.", GUIDE)
    enable_activation_offload: bool = key(False, "Activations in host memory.", VERL, support=LATER)
    use_remove_padding: bool | None = key(None, "Accepted: padding is never computed.", GUIDE)
    use_fused_kernels: bool = key(False, "Accepted: the logits are never in memory all at once.", GUIDE)
    fused_kernel_options: FusedKernelOptions = section(FusedKernelOptions, "Implementation of the fused layer.")
    trust_remote_code: bool | None = key(None, "Run the model's own code; null: as section model.", VERL)
    custom_chat_template: str | None = key(None, "Chat template; null: as section model.", VERL, support=LATER)
    use_shm: bool = key(False, "Copy the model to shared memory first.", VERL, support=LATER)
    lora_rank: Natural = key(0, "Rank of an adapter; 0: none.", VERL, support=LATER)
    lora_alpha: Float = key(16.0, "Scale numerator of an adapter.", VERL, support=LATER)
    target_modules: str | tuple[str, ...] = key("all-linear", "Modules that get an adapter.", VERL, support=LATER)
    exclude_modules: str | tuple[str, ...] | None = key(None, "Modules that get none.", VERL, support=LATER)
    lora_adapter_path: str | None = key(None, "Folder of an existing adapter.", VERL, support=LATER)
    use_liger: bool = key(False, "Liger kernels.", VERL, support=LATER)
    tiled_mlp: Args | None = key(None, "Feed-forward blocks in tiles.", VERL, support=LATER)
    mtp: Args | None = key(None, "Multi-token prediction.", VERL, support=LATER)
