"""The back end of one worker: policy, optimizer and reference on one device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from trinity.common.checkpoint import hash_tree
from trinity.common.config import Config
from trinity.common.errors import EnvironmentProblem, NumericError, OutOfMemoryError
from trinity.common.experience import Experience
from trinity.trainer.advantage import batch_advantage_of
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.metrics import batch_metrics, speed_metrics
from trinity.trainer.verl import settings
from trinity.trainer.verl.checkpoint import load_actor, save_actor
from trinity.trainer.verl.decoder import make_decoder
from trinity.trainer.verl.dp_actor import DataParallelPPOActor
from trinity.trainer.verl.offload import Offload
from trinity.trainer.verl.optim import make_optimizer
from trinity.trainer.verl.reference import Reference
from trinity.utils.device import (
    is_out_of_memory,
    peak_memory_bytes,
    select_device,
    synchronize,
    total_memory_bytes,
)
from trinity.utils.log import get_logger
from trinity.utils.memory import memory_lines

if TYPE_CHECKING:
    from trinity.trainer.verl.lora import Adapter

logger = get_logger("trainer")

OOM_KEYS = (
    "ppo_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking",
)


class ActorWorker:
    """Policy, optimizer and reference of a run with one worker; see `TrainerBackend`.

    Args:
        config: resolved configuration of the stage.
        tokenizer: saved in checkpoints.
        total_steps: training steps of the run, for the learning-rate schedule.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        EnvironmentProblem: the model cannot be loaded.
    """

    def __init__(
        self,
        config: Config,
        *,
        tokenizer: PreTrainedTokenizerBase | None,
        total_steps: int | None,
        device: str = "auto",
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.device = select_device(device)
        self.dtype = settings.products_dtype(config, self.device)
        self.loss_fn = settings.loss_of(config)
        self.advantage = batch_advantage_of(config)
        self.model = load_model(str(config.model.model_path), self.device, config=config)
        self.adapter = attach_adapter(self.model, config)
        schedule, optimizer = settings.schedule_of(config, total_steps), config.algorithm.optimizer
        self.optimizer = make_optimizer(
            (parameter for parameter in self.model.parameters() if parameter.requires_grad),
            optimizer.optimizer_type,
            lr=schedule.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
        )
        recompute = config.trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing
        self.actor = DataParallelPPOActor(
            self.model,
            make_decoder(self.model, dtype=self.dtype, recompute=recompute),
            loss_fn=self.loss_fn,
            optimizer=self.optimizer,
            schedule=schedule,
            settings=settings.actor_settings(config),
        )
        penalises = self.advantage is not None and self.advantage.with_kl
        self.reference = self._load_reference() if self.loss_fn.needs_reference or penalises else None
        self.offload = self._offload()
        logger.info(
            "trainer on %s: %.2f M parameters%s, products in %s%s",
            self.device,
            sum(p.numel() for p in self.model.parameters()) / 1e6,
            f", of which {sum(p.numel() for p in self.actor.parameters) / 1e6:.3f} M are trained"
            if self.adapter
            else "",
            str(self.dtype).removeprefix("torch."),
            ", with a reference model" if self.reference else "",
        )

    def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train on `experiences`; see `TrainerBackend.train_step`."""
        start = time.perf_counter()
        batch = collate(experiences)
        truncated = [exp.truncate_status == "response_truncated" for exp in experiences]
        try:
            with self.offload.loaded():
                batch = self._with_logprobs(batch)
                batch, of_rewards = self._with_advantages(batch, experiences)
                metrics = self.actor.update_policy(batch, step=step)
                synchronize(self.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(batch, step) from error
        if "actor/kl_loss" in metrics:
            self.loss_fn.kl.update_kl_coef(metrics["actor/kl_loss"], len(batch))
        seconds = time.perf_counter() - start
        metrics |= batch_metrics(batch, truncated) | of_rewards
        metrics |= speed_metrics(batch.num_tokens, seconds, peak_memory_bytes(self.device))
        return metrics | {"time/train_step": seconds}

    def weights(self) -> Mapping[str, Tensor]:
        """Return the live weights, with an adapter merged; see `TrainerBackend.weights`.

        A tied output layer is listed once.
        """
        if self.adapter is not None:
            return self.adapter.weights()
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def save(self, folder: Path, *, hf: bool) -> None:
        """Write `actor/` into `folder`; see `TrainerBackend.save`.

        Raises:
            NumericError: a weight is not finite; nothing is written.
        """
        bad = [name for name, parameter in self.model.named_parameters() if not bool(parameter.isfinite().all())]
        if bad:
            raise NumericError(
                f"the weights of {len(bad)} tensors are not finite (first {bad[0]}) and are not saved; the newest "
                "checkpoint is untouched: lower algorithm.optimizer.lr or trainer.grad_clip and resume from it",
                code="E6002",
            )
        extra = {
            "lr_scheduler": {"base_lr": self.actor.schedule.lr, "last_lr": self.optimizer.param_groups[0]["lr"]},
            "kl_coef": float(self.loss_fn.kl.kl_coef),
            "kl_penalty": {} if self.advantage is None else self.advantage.kl.state_dict(),
            "num_skipped": self.actor.num_skipped,
            "skipped_in_a_row": self.actor.skipped_in_a_row,
        }
        save_actor(
            folder / "actor",
            self.model,
            self.optimizer,
            extra,
            tokenizer=self.tokenizer,
            hf=hf,
            adapter=self.adapter,
        )

    def load(self, folder: Path) -> None:
        """Continue from `actor/` in `folder`; see `TrainerBackend.load`."""
        extra = load_actor(folder / "actor", self.model, self.optimizer, adapter=self.adapter)
        self.actor.decoder.refresh()
        self.offload.park()
        self.actor.num_skipped = extra["num_skipped"]
        self.actor.skipped_in_a_row = extra["skipped_in_a_row"]
        if self.loss_fn.kl.adaptive:
            self.loss_fn.kl.kl_coef = extra["kl_coef"]
        if self.advantage is not None and extra.get("kl_penalty"):
            self.advantage.kl.load_state_dict(extra["kl_penalty"])

    def memory_table(self) -> dict[str, int]:
        """Return bytes by what holds them, and the memory of the device."""
        parameters = list(self.model.parameters())
        reference = None if self.reference is None else self.reference.model
        state = (t for values in self.optimizer.state.values() for t in values.values() if isinstance(t, Tensor))
        table = {
            "parameters": _num_bytes(parameters),
            "gradients": _num_bytes(p.grad for p in parameters if p.grad is not None),
            # AdamW's two moments are made in the first step: before it, what they will take.
            "optimizer state": _num_bytes(state) or 2 * _num_bytes(p for p in parameters if p.requires_grad),
            "reference model": 0 if reference is None else _num_bytes(reference.parameters()),
            "most held by PyTorch": peak_memory_bytes(self.device),
            "memory of the device": total_memory_bytes(self.device),
        }
        return {name: size for name, size in table.items() if size}

    def _with_logprobs(self, batch: TrainBatch) -> TrainBatch:
        """Add `old_logprob` and, where it is read, `ref_logprob`."""
        if not self.config.algorithm.bypass_old_logprobs:
            batch = batch.with_columns(old_logprob=self.actor.compute_log_prob(batch))
        elif "rollout_logprob" in batch.columns:
            batch = batch.with_columns(old_logprob=batch.columns["rollout_logprob"])
        if self.reference is not None:
            batch = batch.with_columns(ref_logprob=self.reference.compute_log_prob(batch))
        return batch

    def _with_advantages(
        self, batch: TrainBatch, experiences: Sequence[Experience]
    ) -> tuple[TrainBatch, dict[str, float]]:
        """Add `advantages` and `returns` of the whole batch, where the trainer computes them; return metrics."""
        if self.advantage is None:
            return batch, {}
        return self.advantage(batch, [exp.eid.tid for exp in experiences])

    def _load_reference(self) -> Reference:
        """Return the policy as it is before the stage: what the adapter of the policy leaves, if it starts at zero."""
        path = str(self.config.model.model_path)
        fingerprint, model, adapter = model_hash(path), None, self.adapter
        tree = self.config.trainer.trainer_config.actor_rollout_ref
        is_offloaded = tree.ref.fsdp_config.param_offload
        if adapter is not None and adapter.is_fresh:
            decoder = make_decoder(self.model, dtype=self.dtype, recompute=False, without=adapter.disabled)
        else:
            model = load_model(path, self.device, config=self.config)
            if adapter is not None:
                attach_adapter(model, self.config)
                fingerprint += adapter.path_hash
            decoder = make_decoder(model, dtype=self.dtype, recompute=False)
        if is_offloaded:
            self._tell_idle_offload("trainer.trainer_config.actor_rollout_ref.ref.fsdp_config.param_offload", model)
        return Reference(
            path,
            decoder,
            settings=self.actor.settings,
            device=self.device,
            fingerprint=fingerprint,
            model=model,
            is_offloaded=is_offloaded,
        )

    def _offload(self) -> Offload:
        """Return what holds parameters and optimizer state between two steps."""
        fsdp = settings.actor_of(self.config).fsdp_config
        for key, is_on in (("param_offload", fsdp.param_offload), ("optimizer_offload", fsdp.optimizer_offload)):
            if is_on:
                self._tell_idle_offload(f"trainer.{key}", self.model)
        return Offload(
            self.device,
            model=self.model if fsdp.param_offload else None,
            optimizer=self.optimizer if fsdp.optimizer_offload else None,
            decoders=(self.actor.decoder, *([self.reference.scorer.decoder] if self.reference else ())),
        )

    def _tell_idle_offload(self, key: str, model: PreTrainedModel | None) -> None:
        if model is None:
            logger.warning("%s has no effect: the reference is the policy's model without its adapter", key)
        elif self.device.type == "cpu":
            logger.warning("%s has no effect: the trainer computes on the CPU", key)

    def _out_of_memory(self, batch: TrainBatch, step: int) -> OutOfMemoryError:
        rows = memory_lines(self.memory_table())
        split = self.actor.settings
        return OutOfMemoryError(
            f"out of memory on {self.device} in training step {step}: {len(batch)} experiences, {batch.num_tokens} "
            f"tokens, the longest {int(batch.lengths.max())}; micro-batches of at most {split.max_tokens} tokens and "
            f"{split.max_rows} rows\n{rows}\nlower one of {', '.join(OOM_KEYS)} under "
            "trainer.trainer_config.actor_rollout_ref.actor (the third is to be raised), or set "
            "enable_gradient_checkpointing: true"
        )


def load_model(path: str, device: torch.device, *, config: Config) -> PreTrainedModel:
    """Return the model of the folder `path` in float32 on `device`.

    Raises:
        EnvironmentProblem: it cannot be loaded.
    """
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=config.model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load model.model_path {path}: {error}", code="E3101") from error
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    moved: PreTrainedModel = nn.Module.to(model, device)
    return moved


def attach_adapter(model: PreTrainedModel, config: Config) -> Adapter | None:
    """Put the adapter of `model.lora_configs` into `model` and return it; None where there is none to train.

    Raises:
        ConfigError: it names modules that the model has not.
        EnvironmentProblem: an existing adapter cannot be read or does not fit.
    """
    if not config.model.lora_configs:
        return None
    from trinity.trainer.verl.lora import attach  # PEFT takes two seconds to import

    path = str(config.model.model_path)
    return attach(model, config.model.lora_configs[0], seed=config.seed, base_hash=model_hash(path))


def initial_weights(config: Config) -> Mapping[str, Tensor]:
    """Return the weights from which the training of the adapter starts, on the CPU.

    Raises:
        EnvironmentProblem: model or adapter cannot be loaded.
    """
    model = load_model(str(config.model.model_path), torch.device("cpu"), config=config)
    adapter = attach_adapter(model, config)
    assert adapter is not None, "asked for only with model.lora_configs"
    return adapter.weights()


def model_hash(path: str) -> str:
    """Return the hash of the files of a model's folder; empty where `path` is a hub id."""
    return hash_tree(Path(path)) if Path(path).is_dir() else ""


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
