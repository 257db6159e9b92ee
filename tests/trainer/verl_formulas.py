"""One training step of veRL in float64: its published formulas, row by row with Hugging Face's forward and autograd.

Nothing here is the trainer's: a mini-batch is cut into micro-batches of consecutive rows, and each of them is run and
differentiated by itself. Releases differ in how the losses of micro-batches become that of the mini-batch:

    0.9   sum of the losses, each divided by the counts of the whole mini-batch over all ranks
    0.6   mean over the micro-batches of a rank, then over ranks, of losses that each have the micro-batch's own counts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trinity.common.experience import Experience


@dataclass(frozen=True)
class VerlSettings:
    """What a step reads of a veRL file; sizes are in rows."""

    estimator: str = "grpo"
    penalty: str = "kl"
    mini_rows: int = 4
    micro_rows: int = 2
    num_ranks: int = 1
    mode: str = "token-mean"
    is_0_6: bool = False
    kl_in_reward: float = 0.005
    kl_in_loss: float = 0.0
    entropy: float = 0.001
    clip: float = 0.2
    dual_clip: float = 3.0
    value_clip: float = 0.5
    lr: float = 1e-6
    critic_lr: float = 1e-5
    grad_clip: float = 1.0
    width: int = 1


@dataclass
class VerlStep:
    """What a step gives: metrics by veRL's names, and the values before the update."""

    metrics: dict[str, float] = field(default_factory=dict)
    values: list[Tensor] = field(default_factory=list)


def scored(model: nn.Module, exp: Experience) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of every response token."""
    logits = model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1]
    logp = torch.log_softmax(logits, -1)
    return logp.gather(1, exp.tokens[exp.prompt_length :, None])[:, 0], -(logp.exp() * logp).sum(1)


def full(policy: nn.Module, reference: nn.Module, exp: Experience) -> Tensor:
    """Return the sum over the vocabulary of p (ln p - ln q) at every response token."""
    logits = (model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1] for model in (policy, reference))
    logp, logq = (torch.log_softmax(each, -1) for each in logits)
    return (logp.exp() * (logp - logq)).sum(-1)


def valued(model: nn.Module, exp: Experience) -> Tensor:
    """Return the value before every response token."""
    values: Tensor = model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1, 0]
    return values


def aggregated(losses: list[Tensor], masks: list[Tensor], settings: VerlSettings, *, of_mini: list[Tensor]) -> Tensor:
    """Return a micro-batch's summand of the loss.

    Args:
        losses: of the tokens of each row.
        masks: of those rows.
        settings: mode and release.
        of_mini: the masks of all rows of the mini-batch, of all ranks.
    """
    sums = torch.stack([loss[mask].sum() for loss, mask in zip(losses, masks, strict=True)])
    counts = torch.tensor([int(mask.sum()) for mask in masks])
    if settings.is_0_6:
        num_micro = settings.mini_rows // settings.num_ranks // settings.micro_rows
        rows, tokens, scale = int((counts > 0).sum()), int(counts.sum()), 1 / num_micro / settings.num_ranks
    else:
        rows, tokens, scale = len(of_mini), sum(int(mask.sum()) for mask in of_mini), 1.0
    if settings.mode == "token-mean":
        return sums.sum() / tokens * scale
    if settings.mode == "seq-mean-token-mean":
        return (sums / counts.clamp(min=1)).sum() / rows * scale
    if settings.mode == "seq-mean-token-sum":
        return sums.sum() / rows * scale
    assert settings.mode == "seq-mean-token-sum-norm"
    return sums.sum() / settings.width * scale / (1 if settings.is_0_6 else rows)


def grpo(scores: list[Tensor], rows: Sequence[Experience]) -> list[Tensor]:
    """Return (s - mean) / (std + 1e-6) within each prompt; s is the sum of a row's token rewards."""
    totals = [float(score.sum()) for score in scores]
    result = []
    for exp, total, score in zip(rows, totals, scores, strict=True):
        group = torch.tensor([t for e, t in zip(rows, totals, strict=True) if e.eid.task == exp.eid.task])
        group = group.double()
        result.append(torch.full_like(score, float((total - group.mean()) / (group.std() + 1e-6))))
    return result


def gae(scores: list[Tensor], values: list[Tensor], rows: Sequence[Experience]) -> tuple[list[Tensor], list[Tensor]]:
    """Return whitened advantages and the returns, gamma and lambda 1; tokens that do not count are passed over."""
    raw = []
    for exp, score, value in zip(rows, scores, values, strict=True):
        advantage, after, following = torch.zeros_like(score), 0.0, 0.0
        for place in reversed(range(len(score))):
            if exp.action_mask[place]:
                following = float(score[place]) + after - float(value[place]) + following
                after = float(value[place])
            advantage[place] = following
        raw.append(advantage)
    flat = torch.cat([a[e.action_mask] for a, e in zip(raw, rows, strict=True)])
    scale = torch.rsqrt(flat.var() + 1e-8)
    returns = [a + v for a, v in zip(raw, values, strict=True)]
    return [(a - flat.mean()) * scale for a in raw], returns


def cut(order: Sequence[int], settings: VerlSettings) -> list[list[list[int]]]:
    """Return the micro-batches of every mini-batch, those of one rank after those of another.

    A rank has a contiguous part of the rows, and a mini-batch has the next rows of every rank.
    """
    each, own = len(order) // settings.num_ranks, settings.mini_rows // settings.num_ranks
    minis = []
    for start in range(0, each, own):
        parts = [order[rank * each + start : rank * each + start + own] for rank in range(settings.num_ranks)]
        size = settings.micro_rows
        minis.append([list(part[first : first + size]) for part in parts for first in range(0, own, size)])
    return minis


def verl_step(
    policy: nn.Module,
    reference: nn.Module,
    critic: nn.Module | None,
    rows: Sequence[Experience],
    settings: VerlSettings,
    *,
    order: Sequence[int] | None = None,
) -> VerlStep:
    """Take one step: KL in the reward, advantages of the whole batch, then the critic's update and the policy's."""
    made = VerlStep()
    with torch.no_grad():
        old = [scored(policy, exp)[0] for exp in rows]
        ref = [scored(reference, exp)[0] for exp in rows]
        values = [] if critic is None else [valued(critic, exp) for exp in rows]
        divergences = [own - other for own, other in zip(old, ref, strict=True)]
        if settings.penalty == "full":
            divergences = [full(policy, reference, exp) for exp in rows]
    made.values = values
    scores = []
    for exp, own, divergence in zip(rows, old, divergences, strict=True):
        score = torch.zeros_like(own)
        score[int(torch.nonzero(exp.action_mask)[-1])] = exp.reward
        scores.append(score - settings.kl_in_reward * divergence * exp.action_mask)
    means = [d[e.action_mask].mean() for d, e in zip(divergences, rows, strict=True)]
    made.metrics["actor/reward_kl_penalty"] = float(torch.stack(means).mean())
    advantages, returns = (grpo(scores, rows), []) if critic is None else gae(scores, values, rows)
    minis = cut(range(len(rows)) if order is None else order, settings)
    if critic is not None:
        _update_critic(made, critic, rows, minis, settings, old=values, returns=returns)
    _update_policy(made, policy, rows, minis, settings, old=old, ref=ref, advantages=advantages)
    return made


def _update_critic(
    made: VerlStep,
    critic: nn.Module,
    rows: Sequence[Experience],
    minis: list[list[list[int]]],
    settings: VerlSettings,
    *,
    old: list[Tensor],
    returns: list[Tensor],
) -> None:
    optimizer = torch.optim.AdamW(critic.parameters(), lr=settings.critic_lr, weight_decay=0.01, foreach=False)
    losses, norms, clipped, predicted = [], [], [], []
    for mini in minis:
        masks = [rows[row].action_mask for micro in mini for row in micro]
        for micro in mini:
            terms = []
            for row in micro:
                now = valued(critic, rows[row])
                bounded = torch.minimum(
                    torch.maximum(now, old[row] - settings.value_clip), old[row] + settings.value_clip
                )
                plain, held = (now - returns[row]) ** 2, (bounded - returns[row]) ** 2
                terms.append(0.5 * torch.maximum(plain, held))
                clipped.append((held > plain)[rows[row].action_mask].double())
                predicted.append(now.detach()[rows[row].action_mask])
            loss = aggregated(terms, [rows[row].action_mask for row in micro], settings, of_mini=masks)
            loss.backward()
            losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(critic.parameters(), settings.grad_clip)))
        optimizer.step()
        optimizer.zero_grad()
    mask = [exp.action_mask for exp in rows]
    flat = torch.cat([r[m] for r, m in zip(returns, mask, strict=True)])
    left = flat - torch.cat([v[m] for v, m in zip(old, mask, strict=True)])
    made.metrics |= {
        "critic/vf_loss": sum(losses) / len(minis),
        "critic/grad_norm": sum(norms) / len(minis),
        "critic/vf_clipfrac": float(torch.cat(clipped).mean()),
        "critic/vpred_mean": float(torch.cat(predicted).mean()),
        "critic/vf_explained_var": float(1 - left.var() / (flat.var() + 1e-5)),
        "critic/returns/mean": float(flat.mean()),
    }


def _update_policy(
    made: VerlStep,
    policy: nn.Module,
    rows: Sequence[Experience],
    minis: list[list[list[int]]],
    settings: VerlSettings,
    *,
    old: list[Tensor],
    ref: list[Tensor],
    advantages: list[Tensor],
) -> None:
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr, weight_decay=0.01, foreach=False)
    sums: dict[str, float] = {"pg_loss": 0.0, "entropy_loss": 0.0, "kl_loss": 0.0, "final_loss": 0.0}
    norms = []
    upper, lower, moved = [], [], []
    for mini in minis:
        masks = [rows[row].action_mask for micro in mini for row in micro]
        for micro in mini:
            terms: dict[str, list[Tensor]] = {"pg_loss": [], "entropy_loss": [], "kl_loss": []}
            own = [rows[row].action_mask for row in micro]
            for row, mask in zip(micro, own, strict=True):
                logp, entropy = scored(policy, rows[row])
                a, d = advantages[row], torch.clamp(logp - old[row], -20, 20)
                first, second = -a * d.exp(), -a * d.exp().clamp(1 - settings.clip, 1 + settings.clip)
                bound = torch.maximum(first, second)
                terms["pg_loss"].append(torch.where(a < 0, torch.minimum(-a * settings.dual_clip, bound), bound))
                x = torch.clamp(ref[row] - logp, -20, 20)
                terms["kl_loss"].append(torch.clamp(x.exp() - x - 1, -10, 10))
                terms["entropy_loss"].append(entropy)
                upper.append((second > first)[mask].double())
                lower.append(((bound > -a * settings.dual_clip) & (a < 0))[mask].double())
                moved.append(-d.detach()[mask])
            parts = {name: aggregated(of_rows, own, settings, of_mini=masks) for name, of_rows in terms.items()}
            loss = parts["pg_loss"] - settings.entropy * parts["entropy_loss"] + settings.kl_in_loss * parts["kl_loss"]
            loss.backward()
            for name, part in (parts | {"final_loss": loss}).items():
                sums[name] += float(part.detach())
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.grad_clip)))
        optimizer.step()
        optimizer.zero_grad()
    sums = sums if settings.kl_in_loss else {name: value for name, value in sums.items() if name != "kl_loss"}
    made.metrics |= {f"actor/{name}": value / len(minis) for name, value in sums.items()} | {
        "actor/grad_norm": sum(norms) / len(minis),
        "actor/pg_clipfrac": float(torch.cat(upper).mean()),
        "actor/pg_clipfrac_lower": float(torch.cat(lower).mean()),
        "actor/ppo_kl": float(torch.cat(moved).mean()),
    }
