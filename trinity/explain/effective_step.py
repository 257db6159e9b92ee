"""The effective training step: micro-batches and the optimizer's update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity.utils.formula import number

if TYPE_CHECKING:
    from trinity.common.config import Config


def micro_batches(config: Config) -> str:
    """Return the split of a mini-batch into forwards, which changes nothing."""
    actor = config.trainer.trainer_config.actor_rollout_ref.actor
    tokens, rows = actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu
    size = f"at most {tokens} tokens" if actor.use_dynamic_bsz else f"at most {rows} experiences"
    return (
        f"a mini-batch is computed in parts of {size}, each with its share: means and sums are of the whole mini-batch"
    )


def optimizer(config: Config) -> str:
    """Return how the optimizer uses the gradient of a mini-batch."""
    actor, own = config.trainer.trainer_config.actor_rollout_ref.actor, config.algorithm.optimizer
    clip = actor.grad_clip
    clipped = f"clipped to a norm of {number(float(clip))}" if clip else "not clipped"
    kind = "sgd" if own.optimizer_type == "sgd" else "AdamW"
    decay = f", weight decay {number(own.weight_decay)}" if own.weight_decay else ""
    return f"the gradient is {clipped}; {kind} at a learning rate of {number(own.lr)} ({own.lr_scheduler_type}){decay}"
