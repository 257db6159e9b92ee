"""What `compat` takes over from an older release of veRL."""

from __future__ import annotations

from trinity.common.config.dialects.algorithms import has_critic
from trinity.common.config.dialects.runs import num_trainers
from trinity.common.config.dialects.translation import Translation

NEWEST, AVERAGING = "verl-0.9", "verl-0.6"
_ACTOR, _KEY = "actor_rollout_ref.actor", "compat"


def compat(t: Translation) -> None:
    """Average the losses of micro-batches, where the file asks for that.

    Until 0.6 the loss of a micro-batch had the divisors of its own tokens or rows; the mean over the micro-batches of a
    worker, and then over workers, was the loss of an optimizer step. So short micro-batches counted more.
    """
    if t.chosen(_KEY, NEWEST, AVERAGING) != AVERAGING:
        return
    t.put("algorithm.loss_agg_scope", "micro_batch", _KEY)
    trained = (_ACTOR, "critic") if has_critic(t) else (_ACTOR,)
    for place in trained:
        switch = f"{place}.use_dynamic_bsz"
        if t.value(switch):
            t.refuse(switch, f"with `{_KEY}: {AVERAGING}` the lengths of other rows would decide what a row counts",
                     "write false, and a size in rows")  # fmt: skip
        elif not any(t.is_written(f"{place}.ppo_micro_batch_size{each}") for each in ("", "_per_gpu")):
            size = f"{place}.ppo_micro_batch_size_per_gpu"
            message = (
                f"`{t.written(_KEY)}: {AVERAGING}` averages over micro-batches, and {size} does not say their size"
            )
            t.tell("E1943", _KEY, message, suggestion=f"write `{size}`")
    if t.value(f"{_ACTOR}.strategy") == "megatron":
        t.refuse(f"{_ACTOR}.strategy", f"`{_KEY}: {AVERAGING}` is the loss of veRL's FSDP workers", "write fsdp")
    mode = f"{_ACTOR}.loss_agg_mode"
    if t.value(mode) == "token-sum":
        t.refuse(mode, f"veRL 0.6, which `{_KEY}` asks for, has no such mode", "write token-mean")
    if num_trainers(t) > 1 and t.value("trainer.balance_batch"):
        t.tell("W1941", _KEY, f"`{t.written(_KEY)}: {AVERAGING}` gives each worker the next rows of the batch: "
               "trainer.balance_batch would decide by their lengths which rows are averaged together")  # fmt: skip
