"""veRL's Megatron section of a model, and its unsupported parts."""

from __future__ import annotations

from trinity.common.config.base import VERL, Args, Count, Int, Section, Support, key, refused
from trinity.common.config.verl_base import FloatType

UNDONE = "E1857"


def undone(*values: object, why: str, instead: str = "remove it") -> Support:
    """Return that this trainer does only the default and `values`."""
    return refused(*values, why=why, instead=instead, code=UNDONE)


INTERLEAVED = undone(1, why="layers are not interleaved over pipeline stages")
EXPERTS = undone(1, why="no family that is divided here has experts", instead="write 1")
TENSOR_OF_EXPERTS = undone(1, why="no family that is divided here has experts")
CONTEXT = undone(
    1,
    why="sequences are shared by another way",
    instead="write 1, and `trainer.ulysses_sequence_parallel_size` with trainer_strategy: fsdp2",
)
_FILES = "models are read from Hugging Face files"
_FOLDER = undone(why=_FILES, instead="remove it, and give `model.model_path` such a folder")


# What is done here anyway, or asks for the recomputation of every layer.
_TRANSFORMER: dict[str, tuple[object, ...]] = {
    "recompute_granularity": (None, "full"),
    "recompute_method": (None, "uniform"),
    "recompute_num_layers": (None, 1),
    "recompute_modules": (None, ["core_attn"]),
    "attention_backend": ("flash", "auto"),
    "variable_seq_lengths": (True,),
    "moe_token_dispatcher_type": ("alltoall",),
}


class MegatronEngineConfig(Section):
    """veRL's Megatron section; absent keys default to `trainer.megatron`."""

    tensor_model_parallel_size: Count | None = key(None, "Tensor parallelism; null: of trainer.megatron.", VERL)
    pipeline_model_parallel_size: Count | None = key(None, "Pipeline parallelism; null: of trainer.megatron.", VERL)
    virtual_pipeline_model_parallel_size: Count | None = key(
        None, "Virtual pipeline stages.", VERL, support=INTERLEAVED
    )
    expert_model_parallel_size: Count | None = key(None, "Expert parallelism.", VERL, support=EXPERTS)
    expert_tensor_parallel_size: Count | None = key(
        None, "Tensor parallelism of experts.", VERL, support=TENSOR_OF_EXPERTS
    )
    context_parallel_size: Count | None = key(None, "Context parallelism.", VERL, support=CONTEXT)
    sequence_parallel: bool | None = key(None, "Sequence parallelism of norms; null: of trainer.megatron.", VERL)
    param_offload: bool | None = key(None, "As fsdp_config.param_offload.", VERL)
    grad_offload: bool | None = key(None, "Gradients in host memory; freed between phases anyway.", VERL)
    optimizer_offload: bool | None = key(None, "As fsdp_config.optimizer_offload.", VERL)
    use_distributed_optimizer: bool = key(
        True,
        "Optimizer state divided over data-parallel workers.",
        VERL,
        support=undone(why="the optimizer state is always divided over the workers"),
    )
    use_dist_checkpointing: bool = key(False, "Weights from a checkpoint of Megatron.", VERL, support=_FOLDER)
    dist_checkpointing_path: str | None = key(None, "Folder of that checkpoint.", VERL, support=_FOLDER)
    dist_checkpointing_prefix: str = key("", "Prefix of its tensors.", VERL, support=undone(why=_FILES))
    use_mbridge: bool = key(False, "Weights from Hugging Face files; this trainer always reads them.", VERL)
    vanilla_mbridge: bool = key(
        True, "Which bridge reads them.", VERL, support=undone(why="Hugging Face files are read without a bridge")
    )
    seed: Int = key(
        42, "Seed of the worker.", VERL, support=undone(why="all weights are read from files, and nothing is drawn")
    )
    override_ddp_config: Args = key(
        {},
        "Changes to Megatron's gradient buffers.",
        VERL,
        support=undone(
            why="gradients are summed by PyTorch's FSDP2, not in Megatron's buffers",
            instead="remove it; `actor.fsdp_config.mixed_precision.reduce_dtype` is the data type of the sums",
        ),
    )
    override_transformer_config: Args = key({}, "Changes to Megatron's transformer.", VERL, entries=_TRANSFORMER)
    override_mcore_model_config: Args = key(
        {},
        "Changes to Megatron's model.",
        VERL,
        support=undone(why="layers are computed by this trainer, not by Megatron's transformer"),
    )
    forward_only: bool = key(
        False,
        "The model is never trained.",
        VERL,
        support=undone(why="which models are trained follows from the algorithm"),
    )
    dtype: FloatType = key(
        "bfloat16",
        "Data type of autocast.",
        VERL,
        support=undone(why="the data type of products stands elsewhere", instead="write `actor.fsdp_config.dtype`"),
    )
