"""What a rank of a test computes, and what one worker computes for the comparison."""

from __future__ import annotations

import dataclasses
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.correction import correction_of
from trinity.trainer.verl.checkpoint import in_turns
from trinity.trainer.verl.loss import Metrics
from trinity.trainer.verl.ranks import ALONE, Ranks, whole
from trinity.trainer.verl.settings import loss_of
from trinity.trainer.verl.worker import ActorWorker

Outcome = tuple[dict[str, Tensor], list[dict[str, float]]]
Call = tuple[dict[str, Any], dict[str, Any], list[Experience]]


def worker(ranks: Ranks, config: dict[str, Any], **settings: Any) -> ActorWorker:
    """Return a worker whose policy has left the reference; `settings` replace how its actor splits a batch."""
    read = Config.model_validate(config)
    ranks.sequence_size = 1 if ranks.is_alone else read.trainer.ulysses_sequence_parallel_size
    ranks.is_balanced = read.trainer.balance_batch
    made = ActorWorker(read, tokenizer=None, total_steps=6, device="cpu", ranks=ranks)
    made.actor.settings = dataclasses.replace(made.actor.settings, **settings)
    made.actor.scorer.settings = made.actor.settings
    return made


def moved_worker(ranks: Ranks, config: dict[str, Any], **settings: Any) -> ActorWorker:
    """Return a worker whose policy has left the reference, as after a training."""
    made = worker(ranks, config, **settings)
    with torch.no_grad():
        for number, parameter in enumerate(p for p in made.model.parameters() if p.requires_grad):
            noise = 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            if ranks.is_alone:
                parameter.add_(noise)
            else:
                from torch.distributed.tensor import distribute_tensor

                parameter.add_(distribute_tensor(noise, parameter.device_mesh, parameter.placements))
    made.actor.stepper.refresh()
    return made


def gradients(ranks: Ranks, calls: list[Call]) -> list[dict[str, Tensor]]:
    """Return, for each configuration, the whole gradient of one mini-batch before clipping."""
    return [_gradient(moved_worker(ranks, config, **settings), rows) for config, settings, rows in calls]


def gradients_of_losses(ranks: Ranks, calls: list[Call]) -> list[dict[str, Tensor]]:
    """Return what `gradients` does, with one worker for configurations that differ in the policy loss alone."""
    made = moved_worker(ranks, calls[0][0])
    result = []
    for tree, settings, rows in calls:
        config = Config.model_validate(tree)
        made.loss_fn = made.actor.loss_fn = loss_of(config)
        made.correction = correction_of(config, made.loss_fn)
        made.actor.settings = made.actor.scorer.settings = dataclasses.replace(made.actor.settings, **settings)
        result.append(_gradient(made, rows))
    return result


def _gradient(made: ActorWorker, experiences: list[Experience]) -> dict[str, Tensor]:
    batch = made._with_logprobs(collate(experiences))
    made.optimizer.zero_grad()
    made.actor._accumulate(batch, Metrics(), None)
    made.actor.stepper.refresh()
    return {
        name: whole(torch.zeros_like(p) if p.grad is None else p.grad).clone()
        for name, p in made.model.named_parameters()
        if p.requires_grad
    }


def train(
    ranks: Ranks, config: dict[str, Any], steps: list[list[Experience]], settings: dict[str, Any]
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Return the whole weights (critic included) after some steps, and the metrics of each without times."""
    made = worker(ranks, config, **settings)
    metrics = [made.train_step(rows, number) for number, rows in enumerate(steps, 1)]
    kept = [{k: v for k, v in m.items() if not k.startswith(("time/", "perf/"))} for m in metrics]
    return weights(made), kept


def outputs(ranks: Ranks, config: dict[str, Any], batch: TrainBatch) -> dict[str, Tensor]:
    """Return log-probabilities and entropies of a batch."""
    return worker(ranks, config).actor.scorer.compute_statistics(batch, ["entropys"])


def continued(
    ranks: Ranks,
    config: dict[str, Any],
    source: Path | None,
    steps: list[list[Experience]],
    done: int,
    target: Path | None,
    hf: bool = False,
) -> Outcome:
    """Load `source`, train on `steps` after `done` others, save to `target`; return what `train` returns."""
    made = worker(ranks, config, **{"max_rows": 2, "max_tokens": None})
    if source is not None:
        made.load(source)
    metrics = [made.train_step(rows, number) for number, rows in enumerate(steps, done + 1)]
    kept = [{k: v for k, v in m.items() if not k.startswith(("time/", "perf/"))} for m in metrics]
    if target is not None:
        made.save(target, hf=hf)
    return weights(made), kept


def weights(made: ActorWorker) -> dict[str, Tensor]:
    """Return the whole weights of policy and critic."""
    made.actor.stepper.refresh()
    named = dict(made.model.named_parameters())
    if made.critic is not None:
        made.critic.trained.stepper.refresh()
        named |= {f"critic.{name}": parameter for name, parameter in made.critic.model.named_parameters()}
    return {name: whole(parameter).clone() for name, parameter in named.items()}


def writes(ranks: Ranks, strategy: str) -> list[tuple[float, float]]:
    """Return when each of four ranks on two nodes began and ended to write, in seconds of one clock."""
    times: list[float] = []

    def write() -> None:
        times.append(time.monotonic())
        time.sleep(0.2)
        times.append(time.monotonic())

    socket.gethostname = lambda: f"node_{ranks.rank // 2}"
    in_turns(write, ranks, strategy)
    return [(begin, end) for begin, end in ranks.gather(times)]


__all__ = [
    "ALONE",
    "continued",
    "gradients",
    "gradients_of_losses",
    "moved_worker",
    "outputs",
    "train",
    "weights",
    "worker",
    "writes",
]
