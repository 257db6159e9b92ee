"""Conversions of what is optimised: advantage, losses, KL terms, schedule."""

from __future__ import annotations

from typing import Any

from trinity.common.config.dialects.trainer_keys import VETO
from trinity.common.config.dialects.translation import Translation

_ALGORITHM, _ACTOR = "algorithm", "actor_rollout_ref.actor"
_ARGS = "algorithm.policy_loss_fn_args"

# veRL's estimator: our algorithm type, our advantage function, and those of veRL's keys that it reads.
ESTIMATORS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gae": ("ppo", "verl_gae", ("gamma", "lam")),
    "grpo": ("grpo_verl", "verl_grpo", ("norm_adv_by_std_in_grpo",)),
    "grpo_vectorized": ("grpo_verl", "verl_grpo_vectorized", ("norm_adv_by_std_in_grpo",)),
    "grpo_passk": ("grpo_passk", "verl_grpo_passk", ("norm_adv_by_std_in_grpo",)),
    "gdpo": ("grpo_verl", "verl_gdpo", ("norm_adv_by_std_in_grpo", "gdpo_reward_keys", "gdpo_reward_weights")),
    "reinforce_plus_plus": ("reinforceplusplus", "verl_reinforce_plus_plus", ("gamma",)),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", "verl_reinforce_plus_plus_baseline", ()),
    "rloo": ("rloo", "verl_rloo", ()),
    "rloo_vectorized": ("rloo", "verl_rloo_vectorized", ()),
    "remax": ("remax", "verl_remax", ()),
    "opo": ("opo", "verl_opo", ()),
    "gpg": ("gpg", "verl_gpg", ()),
    "optimal_token_baseline": ("grpo_verl", "verl_optimal_token_baseline", ()),
    "tir_optimal_token_baseline": ("grpo_verl", "verl_tir_optimal_token_baseline", ()),
}
# veRL's loss: those of veRL's keys that it reads, under the names of our arguments.
_CLIPPED = {name: name for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")}
_DUAL = _CLIPPED | {"clip_ratio_c": "clip_ratio_c"}
LOSSES: dict[str, dict[str, str]] = {
    "vanilla": _DUAL,
    "gspo": _CLIPPED,
    "sapo": {"tau_pos": "tau_pos", "tau_neg": "tau_neg"},
    "gpg": {},
    "clip_cov": _CLIPPED | {f"policy_loss.{name}": name for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")},
    "kl_cov": {f"policy_loss.{name}": name for name in ("kl_cov_ratio", "ppo_kl_coef")},
    "geo_mean": _CLIPPED,
    "cispo": _CLIPPED,
    "dro": {"policy_loss.dro_beta": "dro_beta"},
    "dppo_tv": _DUAL,
    "dppo_kl": _DUAL,
}
FIXED_AGGREGATION = ("sapo", "geo_mean")


def advantage(t: Translation) -> None:
    """Choose the algorithm type and its advantage."""
    name = "algorithm.adv_estimator"
    chosen = t.chosen(name, *ESTIMATORS)
    if chosen is None:
        return
    kind, function, read = ESTIMATORS[chosen]
    t.put("algorithm.algorithm_type", kind, name)
    t.put("algorithm.advantage_fn", function, name)
    for key in ("gamma", "lam", "norm_adv_by_std_in_grpo", "gdpo_reward_keys", "gdpo_reward_weights"):
        own = f"{_ALGORITHM}.{key}"
        value = t.value(own)
        if key not in read:
            readers = ", ".join(each for each, (_, _, keys) in ESTIMATORS.items() if key in keys)
            t.tell_unused(own, f"{name} {chosen} does not read it, as {readers} would")
        elif value is not None:
            t.put(f"algorithm.advantage_fn_args.{key}", value, own)


def policy_loss(t: Translation) -> None:
    """Choose the policy loss, its bounds and its aggregation."""
    section = f"{_ACTOR}.policy_loss"
    values: dict[str, Any] = t.value(section) or {}
    mode = values.get("loss_mode") or "vanilla"
    if not isinstance(mode, str) or mode not in LOSSES:
        known = ", ".join(LOSSES)
        t.tell("E1301", section, f"`{t.written(section)}.loss_mode` must be one of {known}, got {mode!r}")
        return
    t.put("algorithm.policy_loss_fn", f"verl_{mode}", section)
    for key, argument in LOSSES[mode].items():
        _put_argument(t, key, argument, values)
    aggregation = f"{_ACTOR}.loss_agg_mode"
    mode_of_loss = t.value(aggregation)
    if mode in FIXED_AGGREGATION:
        if t.is_written(aggregation) and mode_of_loss != "token-mean":
            t.put("algorithm.loss_agg_mode", mode_of_loss, aggregation)
        return
    if mode_of_loss == "token-sum" and (
        t.value(f"{_ACTOR}.use_kl_loss") or t.value(f"{_ACTOR}.entropy_coeff") or has_critic(t)
    ):
        t.refuse(aggregation, "a policy loss alone is summed, and the file has a KL term, an entropy term or a critic",
                 "write token-mean, or leave them out")  # fmt: skip
        return
    t.put(f"{_ARGS}.loss_agg_mode", mode_of_loss, aggregation)


def _put_argument(t: Translation, key: str, argument: str, values: dict[str, Any]) -> None:
    if key.startswith("policy_loss."):
        value = values.get(argument)
        if value is not None:
            t.put(f"{_ARGS}.{argument}", value, f"{_ACTOR}.policy_loss")
        return
    name = f"{_ACTOR}.{key}"
    value = t.value(name)
    # A file of veRL's own has all three bounds: the two of one side win over the one of both.
    if value is not None and t.is_written(name):
        t.put(f"{_ARGS}.{argument}", value, name)


def entropy(t: Translation) -> None:
    """Turn the weight of the entropy into an entropy term, or none."""
    name = f"{_ACTOR}.entropy_coeff"
    weight = t.value(name)
    t.put("algorithm.entropy_loss_fn", "default" if weight else "none", name)
    if weight:
        t.put("algorithm.entropy_loss_fn_args.entropy_coef", weight, name)


def kl_loss(t: Translation) -> None:
    """Turn the KL term of the loss into ours, or none."""
    use, kind, weight = (f"{_ACTOR}.{name}" for name in ("use_kl_loss", "kl_loss_type", "kl_loss_coef"))
    if not t.value(use):
        t.put("algorithm.kl_loss_fn", "none", use)
        return
    t.put("algorithm.kl_loss_fn", t.value(kind), kind)
    t.put("algorithm.kl_loss_fn_args.kl_coef", t.value(weight), weight)


def kl_reward(t: Translation) -> None:
    """Turn the KL term of the reward into ours, or none."""
    use, kind = f"{_ALGORITHM}.use_kl_in_reward", f"{_ALGORITHM}.kl_penalty"
    control = f"{_ALGORITHM}.kl_ctrl"
    is_on = t.value(use)
    if is_on is None and t.below(control):
        is_on = not t.value(f"{_ACTOR}.use_kl_loss")
        _tell_kl(t, f"{control}.{next(iter(t.below(control)))}", is_on=bool(is_on))
    if not is_on:
        t.put("algorithm.kl_penalty_fn", "none", use)
        return
    t.put("algorithm.kl_penalty_fn", t.value(kind), kind)
    t.put("algorithm.kl_penalty_fn_args.kl_coef", t.value(f"{control}.kl_coef"), f"{control}.kl_coef")
    if t.chosen(f"{control}.type", "fixed", "adaptive") == "adaptive":
        t.put("algorithm.kl_penalty_fn_args.adaptive", True, f"{control}.type")
        for name in ("horizon", "target_kl"):
            t.put(f"algorithm.kl_penalty_fn_args.{name}", t.value(f"{control}.{name}"), f"{control}.{name}")


def _tell_kl(t: Translation, name: str, *, is_on: bool) -> None:
    use = f"{_ALGORITHM}.use_kl_in_reward"
    if is_on:
        said = "so that the reward has a KL term, as in veRL before 0.4; newer ones have none"
    else:
        said = "and the loss has a KL term, so that the reward has none, as in veRL before 0.4"
    t.tell("W1941", name, f"`{t.written(name)}` is written without use_kl_in_reward, {said}",
           suggestion=f"write `{use}: {str(is_on).lower()}` to be clear")  # fmt: skip


def correction(t: Translation) -> None:
    """Take over what is done about rollouts that another policy sampled."""
    name = f"{_ALGORITHM}.rollout_correction"
    values = {key: value for key, value in (t.value(name) or {}).items() if value is not None and key != "_target_"}
    if values.pop(VETO, None) is not None:
        t.tell("E1940", name, f"`{t.written(name)}.{VETO}` is refused: no token rejects its whole response here",
               suggestion="remove it, and write `rollout_rs` with `rollout_rs_threshold`")  # fmt: skip
    asked = {key for key in ("rollout_is", "rollout_rs", "bypass_mode", "preset") if values.get(key)}
    if asked:
        t.put(name, values, name)


def old_logprobs(t: Translation) -> None:
    """Choose whose old log-probabilities count; a correction may decide it."""
    name, values = f"{_ACTOR}.use_rollout_log_probs", t.value(f"{_ALGORITHM}.rollout_correction") or {}
    if not values.get("bypass_mode") and not values.get("preset"):
        t.put("algorithm.bypass_old_logprobs", bool(t.value(name)), name)


def warmup(t: Translation) -> None:
    """Take over the warm-up: veRL's steps win over its share if above 0."""
    for place, to in _optimizers(t):
        steps, share = f"{place}.lr_warmup_steps", f"{place}.lr_warmup_steps_ratio"
        if (t.value(steps) or 0) > 0:
            t.put(f"{to}.lr_warmup_steps", t.value(steps), steps)
            told = steps
        elif t.value(share):
            t.put(f"{to}.lr_warmup_steps_ratio", t.value(share), share)
            told = share
        else:
            continue
        t.tell("W1941", told, f"`{t.written(told)}`: the rate of training step N is that of veRL's step N + 1: here "
               "the first step of a warm-up already learns")  # fmt: skip


def schedule(t: Translation) -> None:
    """Take over the learning-rate schedule."""
    for place, to in _optimizers(t):
        kind, floor = f"{place}.lr_scheduler_type", f"{place}.min_lr_ratio"
        for name in ("lr", "weight_decay"):
            t.put(f"{to}.{name}", t.value(f"{place}.{name}"), f"{place}.{name}")
        chosen = t.chosen(kind, "constant", "cosine")
        if chosen is None:
            continue
        t.put(f"{to}.lr_scheduler_type", chosen, kind)
        if chosen == "cosine":
            t.put(f"{to}.min_lr_ratio", t.value(floor), floor)
        elif t.value(floor):
            t.tell("W1940", floor, f"`{t.written(floor)}` changes nothing here: it is for a cosine schedule")


def has_critic(t: Translation) -> bool:
    """Return whether the file trains a critic."""
    enabled = t.value("critic.enable")
    return bool(enabled) if enabled is not None else t.value("algorithm.adv_estimator") == "gae"


def _optimizers(t: Translation) -> list[tuple[str, str]]:
    is_asked = has_critic(t) or t.below("critic.optim")
    critic = [("critic.optim", "trainer.trainer_config.critic.optim")] if is_asked else []
    return [(f"{_ACTOR}.optim", "algorithm.optimizer"), *critic]
