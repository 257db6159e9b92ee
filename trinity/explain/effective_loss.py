"""`--effective-loss`: the loss of a stage in numbers; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinity.common.config.mixture import num_expert_rows
from trinity.common.config.resolved import has_critic, loss_divisor, temperature
from trinity.explain import critic
from trinity.explain.aggregation import aggregation
from trinity.explain.effective_step import micro_batches, optimizer
from trinity.explain.functions import IN_LOSS, AlgorithmFunction, function_of
from trinity.utils.formula import number

if TYPE_CHECKING:
    from trinity.common.config import Config, StagePlan

INDENT = "    "


@dataclass
class EffectiveLoss:
    """The loss of a stage.

    Attributes:
        stage: name of the stage; None in a file without stages.
        algorithm: its algorithm type.
        loss: the sum in letters, such as `P + 0.001 K`.
        terms: the meaning of each letter, each with the lines that explain it.
        batch: the description of a training step.
        dropped: what is zero, and why.
        models: the models that are loaded or not, and why.
    """

    stage: str | None
    algorithm: str
    loss: str = ""
    terms: list[list[str]] = field(default_factory=list)
    batch: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return everything as lines."""
        title = f"stage {self.stage}, " if self.stage else ""
        lines = [f"{title}algorithm {self.algorithm}", f"loss = {self.loss}"]
        for first, *others in self.terms:
            lines += [first, *(f"{INDENT}{line}" for line in others)]
        for name, rows in (("training step", self.batch), ("drops out", self.dropped), ("models", self.models)):
            lines += [f"{name}:", *(f"{INDENT}{row}" for row in rows or ["nothing"])]
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return dict(vars(self))


def effective_loss(stage: StagePlan) -> EffectiveLoss:
    """Return the effective loss of a stage."""
    config, functions = stage.config, _functions(stage)
    found = EffectiveLoss(stage.name, config.algorithm.algorithm_type)
    signs = [_policy(config, functions["policy_loss_fn"], found)]
    is_verl = functions["policy_loss_fn"].is_verl
    signs += _kl(config, functions["kl_loss_fn"], found, is_verl=is_verl)
    signs += _entropy(config, functions["entropy_loss_fn"], found, is_verl=is_verl)
    found.loss = " ".join(signs)
    has_penalty = _advantage(config, functions, found)
    reads_old = has_penalty or any("old_logprob" in functions[role].needs for role in ("policy_loss_fn", "kl_loss_fn"))
    found.batch = _batch(stage, reads_old=reads_old)
    if has_critic(config):
        found.terms.append(critic.in_numbers(config))
        found.batch.append(critic.in_batch(config))
    found.models = _models(config, functions, has_penalty=has_penalty)
    return found


def reads_reference(stage: StagePlan) -> bool:
    """Return whether a stage loads a reference model."""
    functions, found = _functions(stage), EffectiveLoss(stage.name, stage.config.algorithm.algorithm_type)
    return bool(_readers(functions, has_penalty=_advantage(stage.config, functions, found)))


def _functions(stage: StagePlan) -> dict[str, AlgorithmFunction]:
    algorithm = stage.config.algorithm
    return {
        role: function_of(
            algorithm.algorithm_type,
            role,
            vars(algorithm)[role],
            vars(algorithm)[f"{role}_args"],
            catalogue=stage.catalogue,
        )
        for role in IN_LOSS
    }


def is_weighted(function: AlgorithmFunction) -> bool:
    """Return whether a divergence has, or may reach, a nonzero coefficient."""
    return not function.is_none and bool(function.args.get("kl_coef", 1.0) != 0 or function.args.get("adaptive"))


def _words(config: Config, function: AlgorithmFunction, *, is_verl: bool) -> str:
    fixed = None if function.entry is None else function.entry.loss_agg_mode
    mode = function.args.get("loss_agg_mode") or fixed or str(config.algorithm.loss_agg_mode)
    scope = config.algorithm.loss_agg_scope
    return aggregation(mode, number(loss_divisor(config)), is_verl=is_verl, scope=scope)


def _policy(config: Config, function: AlgorithmFunction, found: EffectiveLoss) -> str:
    if not function.numbers:
        found.terms.append([f"P = {function.name}, a plugin, which states no formula"])
        return "P"
    first, *others = function.numbers
    whole = (
        first.removeprefix("= ")
        if first.startswith("=")
        else f"{_words(config, function, is_verl=function.is_verl)} {first}"
    )
    found.terms.append([f"P = {whole}", *others])
    return "P"


def _kl(config: Config, function: AlgorithmFunction, found: EffectiveLoss, *, is_verl: bool) -> list[str]:
    if function.is_none:
        found.dropped.append("KL term: `kl_loss_fn: none`")
        return []
    if not is_weighted(function):
        found.dropped.append(f"KL term {function.name}: `kl_loss_fn_args.kl_coef` is 0")
        return []
    first, *others = function.numbers or ["of a plugin, which states no formula"]
    words = _words(config, function, is_verl=is_verl)
    found.terms.append([f"K = {words} {function.name}(logprob, ref_logprob) = {first}", *others])
    return ["+", number(function.args.get("kl_coef", "kl_coef")), "K"]


def _entropy(config: Config, function: AlgorithmFunction, found: EffectiveLoss, *, is_verl: bool) -> list[str]:
    if function.is_none:
        found.dropped.append("entropy term: `entropy_loss_fn: none`, the entropy is not computed")
        return []
    if function.args.get("entropy_coef") == 0:
        found.dropped.append(
            f"entropy term {function.name}: `entropy_loss_fn_args.entropy_coef` is 0, it is only measured"
        )
        return []
    first, *others = [line.removeprefix("H = ") for line in function.numbers[1:] or function.numbers] or ["of a plugin"]
    found.terms.append([f"H = {_words(config, function, is_verl=is_verl)} {first}", *others])
    return ["-", number(function.args.get("entropy_coef", "entropy_coef")), "H"]


def _advantage(config: Config, functions: dict[str, AlgorithmFunction], found: EffectiveLoss) -> bool:
    """Add the advantage and the penalty in the reward.

    Returns whether there is a penalty.
    """
    advantage, penalty, policy = functions["advantage_fn"], functions["kl_penalty_fn"], functions["policy_loss_fn"]
    if policy.is_built_in and "advantages" not in policy.needs:
        found.dropped.append(f"advantage: the policy loss {policy.name} reads none")
        return False
    rollouts = f", over {config.algorithm.repeat_times} rollouts of a task" if "values" not in advantage.needs else ""
    first, *others = advantage.numbers or [f"{advantage.name}, a plugin, which states no formula"]
    found.terms.append([f"A = {first}{rollouts}", *others])
    if penalty.is_none:
        found.dropped.append("KL penalty in the reward: `kl_penalty_fn: none`")
    elif not is_weighted(penalty):
        found.dropped.append(f"KL penalty {penalty.name}: `kl_penalty_fn_args.kl_coef` is 0")
    else:
        value, *rest = penalty.numbers or [penalty.name]
        coefficient = number(penalty.args.get("kl_coef", "kl_coef"))
        found.terms.append(
            [f"reward of a token = score - {coefficient} {penalty.name}, {penalty.name} = {value}", *rest]
        )
        found.terms[-1].append("here with old_logprob in place of logprob")
        return True
    return False


def _batch(stage: StagePlan, *, reads_old: bool) -> list[str]:
    config = stage.config
    actor = config.trainer.trainer_config.actor_rollout_ref.actor
    rows = config.buffer.train_batch_size
    size = actor.ppo_mini_batch_size or rows
    steps = (-(-rows // size) if rows and size else 1) * actor.ppo_epochs
    schema = stage.catalogue.schema_of(config.algorithm.algorithm_type)
    what = "pairs" if schema == "dpo" else "experiences"
    epochs = f"{actor.ppo_epochs} epoch{'s' if actor.ppo_epochs != 1 else ''}"
    lines = [
        f"{rows} {what} in mini-batches of {size}, {epochs}: {steps} optimizer step{'s' if steps != 1 else ''}",
        f"logprob, ref_logprob and entropy at temperature {number(temperature(config, schema))}",
        micro_batches(config),
        optimizer(config),
    ]
    strategy = stage.catalogue.entry("sample_strategy", config.algorithm.sample_strategy)
    mixture = (config.algorithm.sample_strategy_args or {}) if strategy and strategy.mixes_experts else {}
    if mixture:
        experts = num_expert_rows(mixture["expert_data_ratio"], rows)
        lines.insert(1, f"of each batch, {experts} are demonstrations of {mixture['sft_dataset_name']}")
    if not reads_old:
        return lines
    if config.algorithm.bypass_old_logprobs:
        return [*lines, "old_logprob is that of the rollout (`bypass_old_logprobs: true`)"]
    lines.append("old_logprob is computed again before the step (`bypass_old_logprobs: false`)")
    if steps == 1:
        lines.append("with one optimizer step, every ratio is 1 there: clipping does nothing")
    return lines + _correction(config)


def _correction(config: Config) -> list[str]:
    """Return how off-policy rollouts are corrected; empty in bypass_mode."""
    chosen = config.algorithm.rollout_correction
    if chosen is None or chosen.bypass_mode:
        return []
    lines = []
    if chosen.rollout_is:
        over = "rho" if chosen.rollout_is == "token" else "the product of rho over the response"
        bound = f"at most {chosen.rollout_is_threshold}"
        if "_" in str(chosen.rollout_is_threshold):
            bound = f"0 outside of {str(chosen.rollout_is_threshold).replace('_', ' to ')}"
        mean = ", divided by its mean over the batch" if chosen.rollout_is_batch_normalize else ""
        lines.append(f"the loss of a token is multiplied by {over}, {bound}{mean}")
    if chosen.rollout_rs:
        lines.append(
            f"tokens that {chosen.rollout_rs} rejects (bounds {chosen.rollout_rs_threshold}) have a loss of 0 and "
            "still count in the mean"
        )
    return [*lines, "rho = exp(old_logprob - rollout_logprob)"] if lines else []


def _readers(functions: dict[str, AlgorithmFunction], *, has_penalty: bool) -> list[str]:
    """Return what reads the reference model."""
    reasons = []
    if "ref_logprob" in functions["policy_loss_fn"].needs:
        reasons.append(f"the policy loss {functions['policy_loss_fn'].name} reads it")
    if is_weighted(functions["kl_loss_fn"]):
        reasons.append(f"the KL term {functions['kl_loss_fn'].name} reads it")
    if has_penalty:
        reasons.append(f"the KL penalty {functions['kl_penalty_fn'].name} reads it")
    return reasons


def _models(config: Config, functions: dict[str, AlgorithmFunction], *, has_penalty: bool) -> list[str]:
    reasons = _readers(functions, has_penalty=has_penalty)
    lines = [
        "policy: yes, trained",
        f"reference: {'yes, ' + ', '.join(reasons) if reasons else 'no, nothing reads it'}",
    ]
    reads_values = has_critic(config)
    lines.append(f"critic: {'yes, the advantage reads its values' if reads_values else 'no, nothing reads its values'}")
    if "teacher_logprobs" in functions["advantage_fn"].needs:
        lines.append(f"teacher: yes, the advantage {functions['advantage_fn'].name} reads it")
    return lines
