"""Section `trainer.trainer_config.reward_model`: it scores rollouts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from trinity.common.config.base import (
    GUIDE,
    LATER,
    OWN,
    VERL,
    Args,
    Count,
    Natural,
    Renamed,
    Section,
    key,
    later,
    only,
    section,
)
from trinity.common.config.verl_base import SCORES_ONLY, FsdpConfig


class RewardFsdpConfig(FsdpConfig):
    """Sharding of the reward model."""

    min_num_params: Natural = key(0, "Older place of wrap_policy.min_num_params.", VERL)


def _no_path(value: Any) -> Any:
    return None if value in ("", "None", False) else value


Path = Annotated[str | None, BeforeValidator(_no_path)]


class RewardModelModelConfig(Section):
    """The model that scores, and the tokenizer of its input."""

    path: Path = key(None, "Folder of a sequence classifier with one label.", GUIDE)
    input_tokenizer: Path = key(
        None, "Folder of the policy's tokenizer, if the reward model has another template or vocabulary; null: equal.",
        GUIDE,
    )  # fmt: skip
    external_lib: str | tuple[str, ...] | None = key(None, "Modules imported before the model is loaded.", GUIDE)
    trust_remote_code: bool = key(False, "Run the model's own code.", VERL)
    use_remove_padding: bool | None = key(None, "Score without padding tokens.", VERL, support=LATER)
    fsdp_config: RewardFsdpConfig = section(
        RewardFsdpConfig, "Sharding of the reward model.", at=SCORES_ONLY | later("param_offload", "offload_policy")
    )


class RewardModelConfig(Section):
    """Scores of a model instead of a reward function."""

    enable: bool = key(False, "Score rollouts with the model; false: the section has no effect.", GUIDE)
    strategy: Literal["fsdp", "fsdp2", "megatron"] | None = key(
        None, "Sharding; null: of the trainer.", VERL, support=only("fsdp", "fsdp2")
    )
    model: RewardModelModelConfig = section(RewardModelModelConfig, "Which model scores.")
    worker: str = key("sequence_classifier", "Class that scores; a plugin registers its own in REWARD_MODELS.", OWN)
    worker_args: Args = key({}, "Arguments of a worker from a plugin.", OWN)
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = key(
        "auto", "Data type of the model; auto: bfloat16 where the device computes in it.", OWN
    )
    micro_batch_size: Count | None = key(None, "", GUIDE, renamed=Renamed("micro_batch_size_per_gpu"))
    micro_batch_size_per_gpu: Count | None = key(None, "Conversations per forward pass.", VERL, fallback=64)
    use_dynamic_bsz: bool = key(False, "Forward passes by tokens.", VERL)
    forward_max_token_len_per_gpu: Count | None = key(
        None, "Tokens per forward pass with use_dynamic_bsz; null: those of the actor.", VERL
    )
    ulysses_sequence_parallel_size: Count = key(1, "Devices per sequence.", VERL, support=only(1))
    max_length: Count | None = key(None, "Longest conversation in tokens, cut at the end; null: of the model.", GUIDE)
    reward_manager: str = key("naive", "How scores become rewards; naive: as they are.", VERL, support=only("naive"))
    reward_kwargs: Args = key({}, "Arguments of the reward manager.", VERL, support=LATER)
    launch_reward_fn_async: bool = key(False, "Score beside the training step.", VERL, support=LATER)
