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
from trinity.trainer.verl.parallel.exchange import local
from trinity.trainer.verl.parallel.pipeline import Stages
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.parallel.resharding import gathered, own_part
from trinity.trainer.verl.settings import loss_of, num_stages, tensor_size
from trinity.trainer.verl.worker import ActorWorker

Outcome = tuple[dict[str, Tensor], list[dict[str, float]]]
Call = tuple[dict[str, Any], dict[str, Any], list[Experience]]


def worker(ranks: Ranks, config: dict[str, Any], **settings: Any) -> ActorWorker:
    """Return a worker whose policy has left the reference; `settings` replace how its actor splits a batch."""
    read = Config.model_validate(config)
    ranks.sequence_size = 1 if ranks.is_alone else read.trainer.ulysses_sequence_parallel_size
    ranks.tensor_size = 1 if ranks.is_alone else tensor_size(read)
    ranks.num_stages = 1 if ranks.is_alone else num_stages(read)
    ranks.is_by_tokens = read.trainer.megatron.sequence_parallel
    ranks.is_balanced = read.trainer.balance_batch
    made = ActorWorker(read, tokenizer=None, total_steps=6, device="cpu", ranks=ranks)
    made.actor.settings = dataclasses.replace(made.actor.settings, **settings)
    made.actor.scorer.settings = made.actor.settings
    return made


def moved_worker(ranks: Ranks, config: dict[str, Any], **settings: Any) -> ActorWorker:
    """Return a worker whose policy has left the reference, as after a training."""
    made = worker(ranks, config, **settings)
    with torch.no_grad():
        trained = {name: p for name, p in made.model.named_parameters() if p.requires_grad}
        stages = made.actor.decoder.stages
        for number, name in enumerate(trained if stages is None else stages.parameters):
            if name not in trained:
                continue
            parameter = trained[name]
            noise = 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            local(parameter).add_(own_part(noise, parameter))
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
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in made.model.named_parameters()
        if p.requires_grad
    }
    return everywhere(grads, made.actor.decoder.stages)


def reward_metrics(ranks: Ranks, config: dict[str, Any], experiences: list[Experience]) -> dict[str, float]:
    """Return the metrics of rewards and advantages of a batch."""
    made = moved_worker(ranks, config)
    return made._with_advantages(made._with_logprobs(collate(experiences)), experiences)[1]


def train(
    ranks: Ranks, config: dict[str, Any], steps: list[list[Experience]], settings: dict[str, Any]
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Return the whole weights (critic included) after some steps, and the metrics of each without times."""
    made = worker(ranks, config, **settings)
    metrics = [made.train_step(rows, number) for number, rows in enumerate(steps, 1)]
    kept = [{k: v for k, v in m.items() if not k.startswith(("time/", "perf/"))} for m in metrics]
    return weights(made), kept


def shards(ranks: Ranks, config: dict[str, Any], steps: list[list[Experience]], grouped: bool) -> dict[str, Any]:
    """Return how the policy is sharded, and its whole weights after some steps with a checkpoint in between."""
    from torch.distributed.fsdp import FSDPModule

    ranks.is_grouped = grouped
    made = worker(ranks, config, max_rows=2, max_tokens=None)
    modules = [module for module in made.actor.decoder.modules() if isinstance(module, FSDPModule)]
    params = [p for module in modules for p in module._get_fsdp_state()._fsdp_param_group.fsdp_params]
    folder = Path(made.config.checkpoint_job_dir) / f"of_{ranks.world}_with_{len(modules)}"
    for number, rows in enumerate(steps, 1):
        made.train_step(rows, number)
        if number == 1:
            made.save(folder, hf=True)
    return {
        "modules": len(modules),
        "in host memory": [p.offload_to_cpu for p in params],
        "prefetch": [len(module._get_fsdp_state()._states_to_forward_prefetch) for module in modules],
        "moved": (len(made.offload._models), len(made.offload._optimizers)),
        "folder": str(folder),
        "weights": weights(made),
    }


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
    found = everywhere(dict(made.model.named_parameters()), made.actor.decoder.stages)
    if made.critic is not None:
        made.critic.trained.stepper.refresh()
        of_critic = everywhere(dict(made.critic.model.named_parameters()), made.critic.trained.decoder.stages)
        found |= {f"critic.{name}": tensor for name, tensor in of_critic.items()}
    return found


def everywhere(named: dict[str, Any], stages: Stages | None) -> dict[str, Tensor]:
    """Return the whole tensors of all stages."""
    names = [name for name in (named if stages is None else stages.parameters) if stages is not None or name in named]
    return {name: gathered(named, name, stages=stages).clone() for name in names}


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
    "reward_metrics",
    "shards",
    "train",
    "weights",
    "worker",
    "writes",
]
