"""What a run computes at once: rows, tokens and sequences.

The configuration bounds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.common.config.keys import ACTOR, KEYS
from trinity.common.config.resolved import (
    filled,
    num_explored,
    num_workers,
    repeat_times,
    schema_of,
    sync_intervals,
    writes_products,
)
from trinity.preflight.estimate.limits import MOST_LEFT, MOST_SLOTS, PROMPTS_UP_TO, has_bf16_units

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.config.verl_base import FsdpConfig

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}


@dataclass(frozen=True)
class MicroBatch:
    """The rows that a worker computes in one pass, every one of full length.

    Attributes:
        rows: their number.
        tokens: as they are computed: a prompt that rows share counts once where it is computed once.
        scored: tokens of responses.
        is_shared: rows share their prompts.
        is_only: a mini-batch has no other.
    """

    rows: int
    tokens: int
    scored: int
    is_shared: bool = False
    is_only: bool = False


@dataclass(frozen=True)
class Lengths:
    """Most tokens of a sequence.

    Attributes:
        prompt: of its prompt.
        response: of its response.
        whole: of both.
    """

    prompt: int
    response: int
    whole: int


def lengths_of(config: Config) -> Lengths:
    """Return the longest sequence that a stage computes."""
    model = config.model
    whole = model.max_model_len or (model.max_prompt_tokens or 0) + (model.max_response_tokens or 0)
    prompt, response = model.max_prompt_tokens or 0, model.max_response_tokens or whole
    if schema_of(config) in ("sft", "cpt"):
        return Lengths(0, whole, whole)  # any token may be trained on
    return Lengths(min(prompt, whole), min(response, whole), min(whole, prompt + response) or whole)


def product_bytes(section: FsdpConfig, *, is_gpu: bool) -> int:
    """Return the bytes of a number in the products of a trained model."""
    if writes_products(section) and section.mixed_precision is not None:
        return BYTES.get(section.mixed_precision.param_dtype, 4)
    wanted = BYTES.get(section.dtype, 2)
    return wanted if is_gpu or "dtype" in section.model_fields_set or has_bf16_units() else 4


def engine_dtype_bytes(dtype: str, *, is_gpu: bool) -> int:
    """Return the bytes of a weight of an engine."""
    return BYTES[dtype] if dtype in BYTES else 2 if is_gpu or has_bf16_units() else 4


def rows_of_experience(config: Config) -> int:
    """Return the rows of an experience: a pair has two."""
    return 2 if schema_of(config) == "dpo" else 1


def mini_batch_rows(config: Config) -> int:
    """Return the rows of an optimizer step on one worker."""
    size = config.trainer.trainer_config.actor_rollout_ref.actor.ppo_mini_batch_size or config.buffer.train_batch_size
    shares = num_workers(config) // max(1, sequence_ranks(config))
    return max(1, math.ceil(size * rows_of_experience(config) / max(1, shares)))


def sequence_ranks(config: Config) -> int:
    """Return how many workers share the tokens of a row."""
    return max(1, config.trainer.trainer_config.actor_rollout_ref.actor.ulysses_sequence_parallel_size or 1)


def micro_batch(config: Config, *, shares_prefixes: bool, max_tokens: int | None = None) -> MicroBatch:
    """Return the largest micro-batch of a stage's training.

    Args:
        config: resolved configuration of the stage.
        shares_prefixes: rows that begin alike are computed once, as by our own decoder on a CPU.
        max_tokens: another limit than the configuration's.
    """
    lengths, total = lengths_of(config), mini_batch_rows(config)
    of_group = repeat_times(config) if schema_of(config) == "experience" else rows_of_experience(config)
    group = min(of_group, total)
    once = group * lengths.response + lengths.prompt
    is_forest = shares_prefixes and once <= MOST_LEFT * group * lengths.whole
    is_shared = group > 1 and (is_forest or (shares_prefixes and lengths.whole <= PROMPTS_UP_TO))
    if filled(config, ACTOR.use_dynamic_bsz):
        limit = (max_tokens or filled(config, ACTOR.ppo_max_token_len_per_gpu)) * sequence_ranks(config)
        # A limit counts a shared prompt once in a forest only.
        rows = _fitting(limit, total, lengths, group if is_forest else 1)
    else:
        rows = filled(config, ACTOR.ppo_micro_batch_size_per_gpu) * rows_of_experience(config)
    rows = max(1, min(rows, total))
    prompts = math.ceil(rows / group) if is_shared else rows
    tokens = rows * (lengths.whole - lengths.prompt) + prompts * lengths.prompt
    return MicroBatch(rows, tokens, rows * lengths.response, is_shared=is_shared, is_only=rows >= total)


def _fitting(limit: int, total: int, lengths: Lengths, group: int) -> int:
    """Return how many of `total` rows a micro-batch of `limit` tokens has."""

    def tokens(rows: int) -> int:
        return rows * (lengths.whole - lengths.prompt) + math.ceil(rows / group) * lengths.prompt

    everything = tokens(total)
    if everything > limit:
        number = math.ceil(everything / limit)
        limit = min(limit, math.ceil(everything / number) + lengths.whole)
    low, high = 1, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens(middle) <= limit else (low, middle - 1)
    return low


def sequences_at_once(config: Config) -> tuple[int, int]:
    """Return the slots of an engine, and how many a step fills."""
    explorer = config.explorer
    default = min(MOST_SLOTS, explorer.runner_per_model * (config.algorithm.repeat_times or 1))
    slots = int(explorer.rollout_model.extra_engine_args.get("max_num_seqs", default))
    of_engine = math.ceil(num_explored(config) / max(1, explorer.rollout_model.engine_num))
    at_once = explorer.runner_per_model * repeat_times(config)  # a runner has one task
    return slots, max(1, min(slots, of_engine, at_once))


def steps_of_version(config: Config) -> int:
    """Return the explore steps between two updates of the engine's weights."""
    return max(1, sync_intervals(config)[0])


def keeps_versions(config: Config) -> bool:
    """Return whether the trainer holds published weights beside its own."""
    sync = config.synchronizer
    if config.mode != "both" or sync.sync_method == "checkpoint":
        return False
    explorer, trainer = sync_intervals(config)
    is_strict = sync.sync_style == "fixed" and (explorer, trainer, sync.sync_offset) == (1, 1, 0)
    return not is_strict or config.explorer.rollout_model.engine_num > 1


def trains(config: Config) -> bool:
    """Return whether a stage trains."""
    return config.mode in ("both", "train")


def explores(config: Config) -> bool:
    """Return whether a stage has an engine of its own."""
    return config.mode != "train" and config.explorer.rollout_model.engine_type != "external"


KEY_OF_TOKENS, KEY_OF_ROWS = str(KEYS.trainer.max_token_len_per_gpu), str(ACTOR.ppo_micro_batch_size_per_gpu)
