"""Section `trainer`: training loop, checkpoints and the veRL tree."""

from __future__ import annotations

from typing import Literal

from trinity.common.config.base import (
    GUIDE,
    OWN,
    TRINITY,
    Count,
    Natural,
    NonNegative,
    Positive,
    Renamed,
    Section,
    key,
    only,
    section,
)
from trinity.common.config.buffer import BufferName
from trinity.common.config.verl import VerlConfig
from trinity.common.config.verl_base import GRADIENTS_KEPT, PADDED
from trinity.common.config.verl_megatron import CONTEXT, EXPERTS, INTERLEAVED, TENSOR_OF_EXPERTS


class MegatronConfig(Section):
    """Sizes of Megatron's parallel groups."""

    tensor_model_parallel_size: Count = key(1, "Tensor parallelism.", TRINITY)
    pipeline_model_parallel_size: Count = key(1, "Pipeline parallelism.", TRINITY)
    virtual_pipeline_model_parallel_size: Count | None = key(
        None, "Virtual pipeline stages.", TRINITY, support=INTERLEAVED
    )
    expert_model_parallel_size: Count = key(1, "Expert parallelism.", TRINITY, support=EXPERTS)
    expert_tensor_parallel_size: Count | None = key(
        None, "Tensor parallelism of experts.", TRINITY, support=TENSOR_OF_EXPERTS
    )
    context_parallel_size: Count = key(1, "Context parallelism.", TRINITY, support=CONTEXT)
    sequence_parallel: bool = key(True, "Sequence parallelism of norms.", TRINITY)


class TrainerConfig(Section):
    """Length of training, memory use and checkpoints."""

    name: BufferName = key("trainer", "Name of the trainer in its metrics; a job has one, whatever its name.", GUIDE)
    trainer_type: Literal["verl", "tinker"] = key(
        "verl", "Back end; verl: this project's trainer.", GUIDE, support=only("verl")
    )
    trainer_strategy: Literal["fsdp", "fsdp2", "megatron"] = key(
        "fsdp", "Sharding of the model over several workers; megatron: also divided as trainer.megatron says.", GUIDE
    )
    num_workers: Natural | None = key(
        None, "Processes that train the model; null or 0: one a GPU of the trainer, else one.", OWN
    )
    rank_timeout: Positive = key(600.0, "Longest wait of a training process for the others, in seconds.", OWN)
    mini_batch_size: Count | None = key(
        None, "Experiences per optimizer step; null: all of a training step, which then has one.", OWN
    )
    total_steps: Count | None = key(None, "Training steps; null: until the data end.", GUIDE)
    save_interval: Natural = key(0, "Steps between checkpoints; 0: only the last.", TRINITY)
    save_strategy: Literal["unrestricted", "single_thread", "single_process", "single_node"] = key(
        "unrestricted", "Who may write checkpoints at the same time.", GUIDE
    )
    save_hf_checkpoint: Literal["last", "always", "never"] = key(
        "last", "Which checkpoints are also saved in Hugging Face layout.", GUIDE
    )
    grad_clip: NonNegative | None = key(1.0, "Largest gradient norm; 0 or null: no clipping.", TRINITY)
    use_dynamic_bsz: bool = key(True, "Micro-batches by number of tokens.", TRINITY)
    max_token_len_per_gpu: Count | None = key(
        None, "Tokens per micro-batch; null: twice model.max_model_len over the sequence parallel size.", TRINITY
    )
    ppo_max_token_len_per_gpu: Count | None = key(None, "", TRINITY, renamed=Renamed("max_token_len_per_gpu", TRINITY))
    ulysses_sequence_parallel_size: Count = key(1, "Devices that share one sequence.", GUIDE)
    enable_preview: bool = key(
        False,
        "Show some trained experiences whenever weights are published: on the terminal, in "
        "monitor/samples.jsonl, and as "
        "the table rollout_examples of the monitor.",
        TRINITY,
    )
    use_remove_padding: bool = key(True, "Train without padding tokens.", TRINITY, idle=PADDED)
    balance_batch: bool = key(True, "Equal work for all workers.", TRINITY)
    critic_warmup: Natural = key(0, "Steps that train only the critic.", TRINITY)
    max_checkpoints_to_keep: Natural = key(
        0, "Checkpoints kept; 0: all; at least 2 are kept.", TRINITY, verl_names=("max_actor_ckpt_to_keep",)
    )
    checkpoint_upload_dir: str | None = key(
        None,
        "Address (s3://, gs://, oss://, hdfs://) under which finished checkpoints are copied, each to "
        "<address>/<project>[/<group>]/<name>/global_step_<N>; null: nowhere.",
        OWN,
    )
    param_offload: bool = key(False, "Weights in host memory between phases.", TRINITY)
    optimizer_offload: bool = key(False, "Optimizer state in host memory between phases.", TRINITY)
    grad_offload: bool = key(
        False, "Gradients in host memory; freed between phases anyway.", TRINITY, idle=GRADIENTS_KEPT
    )
    offload_policy: bool = key(False, "Offload during computation (fsdp2).", TRINITY)
    fix_actor_microbatch_loss_scale: bool = key(
        False, "Scale micro-batch losses by tokens; this trainer always does.", TRINITY
    )
    megatron: MegatronConfig = section(MegatronConfig, "Parallel groups of Megatron.", TRINITY)
    trainer_config: VerlConfig = section(VerlConfig, "Detailed settings under veRL's names.")
    trainer_config_path: str | None = key(None, "YAML file of trainer_config; excludes trainer_config.", GUIDE)
