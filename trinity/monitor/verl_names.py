"""Metrics under veRL's names, where ours differ: `monitor.verl_names`."""

from __future__ import annotations

from collections.abc import Mapping

SAME: Mapping[str, str] = {
    "actor/final_loss": "actor/loss",
    "time/explore_step": "timing_s/gen",
    "time/old_log_prob": "timing_s/old_log_prob",
    "time/ref": "timing_s/ref",
    "time/values": "timing_s/values",
    "time/adv": "timing_s/adv",
    "time/update_critic": "timing_s/update_critic",
    "time/update_actor": "timing_s/update_actor",
    "time/sync_weight": "timing_s/update_weights",
    "time/save_checkpoint": "timing_s/save_checkpoint",
    "time/eval": "timing_s/testing",
}
"""Ours, and veRL's name of the same thing. What is not here has the same name already, or no counterpart."""

STEP = ("time/read_experience", "time/train_step", "time/sync_weight")
"""What follows one another in a step of the trainer; together they are `timing_s/step`."""

PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")
"""Phases that veRL also gives in milliseconds per token of prompts and responses."""


def under_verl_names(metrics: Mapping[str, float], step: int) -> dict[str, float]:
    """Return what `metrics` of a step have under veRL's names as well.

    Args:
        metrics: by our names.
        step: the step, which is `training/global_step` of a trainer.
    """
    found = {name: metrics[ours] for ours, name in SAME.items() if ours in metrics}
    if "time/train_step" in metrics:
        found |= {"timing_s/step": sum(metrics.get(name, 0.0) for name in STEP), "training/global_step": float(step)}
    tokens = metrics.get("perf/total_num_tokens", 0.0)
    for phase in PER_TOKEN:
        if tokens and f"time/{phase}" in metrics:
            found[f"timing_per_token_ms/{phase}"] = metrics[f"time/{phase}"] * 1e3 / tokens
    if "global_seqlen/max" in metrics:
        found["global_seqlen/minmax_diff"] = metrics["global_seqlen/max"] - metrics["global_seqlen/min"]
    return found
