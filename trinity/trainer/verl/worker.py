"""Policy, optimizer, reference and critic of one worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from trinity.common.config import Config
from trinity.common.errors import OutOfMemoryError
from trinity.common.experience import Experience
from trinity.common.models.vocabulary import known_ids
from trinity.trainer.advantage import DIVERGENCE, batch_advantage_of
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.correction import correction_of
from trinity.trainer.metrics import batch_metrics, speed_metrics
from trinity.trainer.quarantine import Quarantine
from trinity.trainer.utilisation import cost_of, peak_flops, utilisation
from trinity.trainer.verl import settings
from trinity.trainer.verl.checkpoint import load_trained, save_trained
from trinity.trainer.verl.critic import Critic, critic_warmup, reads_values
from trinity.trainer.verl.decoder import make_decoder
from trinity.trainer.verl.dp_actor import DataParallelPPOActor
from trinity.trainer.verl.loading import CRITIC_KEY, attach_adapter, load_model, move_buffers, num_embeddings
from trinity.trainer.verl.logprob import STATISTICS
from trinity.trainer.verl.offload import Offload, tell_idle_offload
from trinity.trainer.verl.optim import make_optimizer
from trinity.trainer.verl.parallel.exchange import local
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.parallel.ulysses import check_heads
from trinity.trainer.verl.phases import Phases
from trinity.trainer.verl.plugin_state import function_states, restore_functions
from trinity.trainer.verl.reference import Reference, load_reference
from trinity.trainer.verl.shard_settings import actor_options, actor_switches, critic_switches
from trinity.trainer.verl.stepping import Stepper
from trinity.trainer.verl.vision import freeze_vision
from trinity.utils.device import (
    is_out_of_memory,
    num_bytes,
    peak_memory_bytes,
    select_device,
    synchronize,
    total_memory_bytes,
)
from trinity.utils.log import get_logger
from trinity.utils.memory import memory_lines

logger = get_logger("trainer")

OOM_KEYS = (
    "ppo_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking",
)
CRITIC_OOM = (
    "; of the critic under trainer.trainer_config.critic: ppo_micro_batch_size_per_gpu, ppo_max_token_len_per_gpu, "
    "forward_max_token_len_per_gpu"
)


class ActorWorker:
    """One worker's policy, optimizer, reference and critic.

    See `TrainerBackend`.

    Args:
        config: resolved configuration of the stage.
        tokenizer: saved in checkpoints.
        total_steps: training steps of the run, for the learning-rate schedule.
        device: `auto`, `cpu` or `cuda`.
        ranks: the processes that train together.

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
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.ranks = ranks
        self.device = select_device(device) if ranks.is_alone else ranks.device
        self.phases = Phases(self.device)
        self.dtype = settings.products_dtype(config, self.device)
        self.loss_fn = settings.loss_of(config)
        self.correction = correction_of(config, self.loss_fn)
        self.advantage = batch_advantage_of(config)
        self.statistics = frozenset() if self.advantage is None else self.advantage.names & STATISTICS.keys()
        self.model = load_model(str(config.model.model_path), ranks.loading_device(self.device), config=config)
        check_heads(self.model, ranks.sequence_size)
        self.cost = cost_of(self.model)
        self.adapter = attach_adapter(self.model, config)
        if config.trainer.trainer_config.actor_rollout_ref.actor.freeze_vision_tower:
            freeze_vision(self.model)  # an adapter in it, too
        has_critic = self.advantage is not None and reads_values(self.advantage, config)
        start = critic_warmup(config) if has_critic else 0
        self.optimizer, self.actor = self._make_actor(total_steps, start=start)
        self.reference = self._load_reference()
        self.actor.reference = self.reference
        self._tell_model()
        self.critic = self._load_critic(total_steps) if has_critic else None
        self.offload = self._offload()

    def _make_actor(self, total_steps: int | None, *, start: int) -> tuple[torch.optim.Optimizer, DataParallelPPOActor]:
        """Return the policy's optimizer and trainer, for steps after `start`."""
        config = self.config
        recompute = config.trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing
        decoder = make_decoder(self.model, dtype=self.dtype, recompute=recompute)
        self.ranks.shard(decoder, actor_options(config))
        move_buffers(self.model, self.device)
        schedule, wanted = settings.policy_lr_schedule(config, total_steps, start=start), config.algorithm.optimizer
        optimizer = make_optimizer(
            (parameter for parameter in self.model.parameters() if parameter.requires_grad),
            wanted.optimizer_type,
            lr=schedule.lr,
            betas=wanted.betas,
            weight_decay=wanted.weight_decay,
        )
        return optimizer, DataParallelPPOActor(
            self.model,
            decoder,
            loss_fn=self.loss_fn,
            optimizer=optimizer,
            schedule=schedule,
            settings=settings.actor_settings(config),
            quarantine=Quarantine(Path(config.checkpoint_job_dir) / "quarantine"),
            ranks=self.ranks,
        )

    def _load_reference(self) -> Reference | None:
        """Load the policy as it is before the stage, if something reads it."""
        penalises = self.advantage is not None and self.advantage.with_kl
        if not self.loss_fn.needs_reference and not penalises:
            return None
        return load_reference(
            self.config,
            self.model,
            adapter=self.adapter,
            settings=settings.reference_settings(self.config),
            device=self.device,
            dtype=self.dtype,
            ranks=self.ranks,
            decoder=self.actor.decoder,
        )

    def _tell_model(self) -> None:
        """Log what is trained, and where."""
        num_trained = sum(p.numel() for p in self.actor.stepper.parameters)
        logger.info(
            "trainer on %s: %.2f M parameters%s, products in %s%s",
            self.device,
            sum(p.numel() for p in self.model.parameters()) / 1e6,
            f", {num_trained / 1e6:.3f} M of them trained" if self.adapter is not None else "",
            str(self.dtype).removeprefix("torch."),
            ", with a reference model" if self.reference else "",
        )

    def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train on `experiences`; see `TrainerBackend.train_step`."""
        start = time.perf_counter()
        self.phases.take()  # of a step that failed
        batch = collate(experiences)
        truncated = [exp.truncate_status == "response_truncated" for exp in experiences]
        try:
            with self.offload.loaded():
                batch = self._with_logprobs(batch)
                batch, of_rollout = (batch, {}) if self.correction is None else self.correction(batch)
                if self.critic is not None:
                    with self.phases.timed("values"):
                        batch = self.critic.with_values(batch)
                batch, of_rewards = self._with_advantages(batch, experiences)
                metrics = self._update(batch, step)
                synchronize(self.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(batch, step) from error
        if "actor/kl_mean" in metrics:
            self.loss_fn.kl.update_kl_coef(metrics["actor/kl_mean"], len(batch))
        seconds = time.perf_counter() - start
        metrics |= batch_metrics(batch, truncated) | of_rollout | of_rewards
        metrics |= speed_metrics(batch.num_tokens, seconds, peak_memory_bytes(self.device))
        metrics["perf/trainer/shared_tokens"] = self._num_shared_tokens()
        times = self.phases.take() | {"time/train_step": seconds}
        return metrics | self._utilisation(times.get("time/update_actor", 0.0)) | times

    def _utilisation(self, seconds: float) -> dict[str, float]:
        """Return the FLOPs utilisation of an update that took `seconds`."""
        if self.device.type != "cuda" or self.adapter is not None:
            return {}
        peak = peak_flops(torch.cuda.get_device_name(self.device), self.dtype)
        together = None if peak is None else peak * self.ranks.world
        return utilisation(self.cost, self.actor.work, seconds, peak=together)

    def _num_shared_tokens(self) -> float:
        """Return how many tokens the step did not compute, as rows share them."""
        scorers = [self.actor.scorer]
        scorers += [self.reference.scorer] if self.reference is not None else []
        scorers += [self.critic.trained.scorer] if self.critic is not None else []
        return float(sum(self.ranks.gather_shares(sum(scorer.take_num_shared() for scorer in scorers))))

    def _with_logprobs(self, batch: TrainBatch) -> TrainBatch:
        """Add `old_logprob`, and `ref_logprob` and statistics if they are read."""
        bypasses = self.config.algorithm.bypass_old_logprobs
        if not bypasses or self.statistics:
            with self.phases.timed("old_log_prob"):
                scored = self.actor.scorer.compute_statistics(batch, self.statistics)
            own = scored.pop("logprob")
            batch = batch.with_columns(**scored) if bypasses else batch.with_columns(old_logprob=own, **scored)
        if bypasses and "rollout_logprob" in batch.columns:
            batch = batch.with_columns(old_logprob=batch.columns["rollout_logprob"])
        advantage = self.advantage
        of_advantage = advantage is not None and advantage.reads_ref_logprob
        if self.reference is not None and advantage is not None and advantage.with_full_kl:
            with self.phases.timed("ref"):
                divergence = self.reference.divergence_of(self.actor.scorer, batch)
            batch = batch.with_columns(**{DIVERGENCE: divergence})
        if self.reference is not None and (self.loss_fn.reads_ref_logprob or of_advantage):
            with self.phases.timed("ref"):
                batch = batch.with_columns(ref_logprob=self.reference.compute_log_prob(batch))
        if "counted_mask" in self.loss_fn.policy_loss.select_keys:
            batch = batch.with_columns(counted_mask=batch.action_mask)
        return batch

    def _with_advantages(
        self, batch: TrainBatch, experiences: Sequence[Experience]
    ) -> tuple[TrainBatch, dict[str, float]]:
        """Add `advantages` and `returns` if the trainer computes them."""
        if self.advantage is None:
            return batch, {}
        with self.phases.timed("adv"):
            return self.advantage(batch, [exp.group for exp in experiences])

    def _update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Train the critic, and the policy once the critic is warm."""
        metrics: dict[str, float] = {}
        if self.critic is not None:
            with self.phases.timed("update_critic"):
                metrics = self.critic.update(batch, step=step)
            if self.critic.is_warming_up(step):
                return metrics
        with self.phases.timed("update_actor"):
            return metrics | self.actor.update_policy(batch, step=step)

    @property
    def is_healthy(self) -> bool:
        """Whether the last step of every optimizer was taken, none skipped."""
        return all(stepper.skipped_in_a_row == 0 for stepper in self._steppers())

    def _steppers(self) -> list[Stepper]:
        return [self.actor.stepper, *([self.critic.trained.stepper] if self.critic else [])]

    def weights(self) -> Mapping[str, Tensor]:
        """Return the live weights; an adapter is merged.

        A tied output layer is listed once. See `TrainerBackend.weights`.
        """
        if self.adapter is not None:
            return self.adapter.weights()
        self.ranks.free(self.actor.decoder)
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def save(self, folder: Path, *, hf: bool) -> None:
        """Write `actor/` and, with a critic, `critic/` into `folder`.

        Raises:
            NumericError: a weight is not finite; nothing is written.
            WorkflowError: a function of a plugin has a state that cannot be saved.
        """
        for stepper in self._steppers():
            stepper.check_weights()
        extra = self.actor.stepper.state() | {
            "functions": function_states(self.loss_fn, self.advantage),
        }
        save_trained(
            folder / "actor",
            self.model,
            self.optimizer,
            extra,
            tokenizer=self.tokenizer,
            hf=hf,
            adapter=self.adapter,
            ranks=self.ranks,
            strategy=self.config.trainer.save_strategy,
            contents=settings.actor_of(self.config).checkpoint.save_contents,
            stages=self.actor.decoder.stages,
        )
        if self.critic is not None:
            self.critic.save(folder, tokenizer=self.tokenizer, hf=hf)

    def load(self, folder: Path) -> None:
        """Restore `actor/` and `critic/` of `folder`; see `TrainerBackend.load`."""
        with self.offload.loaded():  # an optimizer loads its state onto the device of its parameters
            extra = load_trained(
                folder / "actor",
                self.model,
                self.optimizer,
                adapter=self.adapter,
                ranks=self.ranks,
                contents=settings.actor_of(self.config).checkpoint.load_contents,
                stages=self.actor.decoder.stages,
            )
            if self.critic is not None:
                self.critic.load(folder)
        self.actor.stepper.refresh()
        if extra:
            self.actor.stepper.restore(extra)
            restore_functions(extra["functions"], self.loss_fn, self.advantage)

    def reference_facts(self) -> dict[str, str]:
        """Return path and hash of the reference model; empty if none is loaded."""
        reference = self.reference
        return {} if reference is None else {"path": reference.path, "hash": reference.fingerprint}

    def memory_table(self) -> dict[str, int]:
        """Return memory in bytes by its use, and that of the device."""
        parameters = list(self.model.parameters())
        reference = None if self.reference is None else self.reference.model
        state = (t for values in self.optimizer.state.values() for t in values.values() if isinstance(t, Tensor))
        table = {
            "parameters": num_bytes(map(local, parameters)),
            "gradients": num_bytes(local(p.grad) for p in parameters if p.grad is not None),
            # AdamW allocates its two moments in the first step: before it, count what they will take.
            "optimizer state": num_bytes(map(local, state))
            or 2 * num_bytes(local(p) for p in parameters if p.requires_grad),
            "reference model": 0 if reference is None else num_bytes(map(local, reference.parameters())),
            **(self.critic.memory_table() if self.critic else {}),
            "most held by PyTorch": peak_memory_bytes(self.device),
            "memory of the device": total_memory_bytes(self.device),
        }
        return {name: size for name, size in table.items() if size}

    def _load_critic(self, total_steps: int | None) -> Critic:
        """Load the value model, whose values the advantage function reads."""
        num_tokens = num_embeddings(self.model) if self.tokenizer is None else max(known_ids(self.tokenizer)) + 1
        critic = Critic(
            self.config, device=self.device, total_steps=total_steps, num_tokens=num_tokens, ranks=self.ranks
        )
        logger.info("critic from %s, actor first trained in step %d", critic.path, critic.warmup + 1)
        return critic

    def _offload(self) -> Offload:
        """Return the offload of policy and critic between two steps."""
        critic, is_alone = self.critic, self.ranks.is_alone
        parts = [("trainer", actor_switches(self.config), self.model, self.optimizer, self.actor.decoder)]
        if critic is not None:
            on = critic_switches(self.config)
            parts.append((f"{CRITIC_KEY}.fsdp_config", on, critic.model, critic.optimizer, critic.trained.decoder))
        models: list[nn.Module] = []
        optimizers, decoders = [], []
        for section, on, model, optimizer, decoder in parts:
            told = {"param_offload": on.params, "optimizer_offload": on.optimizer, "offload_policy": on.in_steps}
            for key in (key for key, is_on in told.items() if is_on):
                tell_idle_offload(f"{section}.{key}", self.device)
            decoders.append(decoder)
            if on.in_steps and not is_alone:
                continue  # it is never on the device as a whole
            if on.params:  # a sharded one is moved through the module that knows which part is where
                models.append(decoder if isinstance(decoder, nn.Module) and not is_alone else model)
            if on.optimizer:
                optimizers.append(optimizer)
        if self.reference is not None:
            decoders.append(self.reference.scorer.decoder)
        return Offload(self.device, models=models, optimizers=optimizers, decoders=decoders)

    def _out_of_memory(self, batch: TrainBatch, step: int) -> OutOfMemoryError:
        rows = memory_lines(self.memory_table())
        split = self.actor.settings
        return OutOfMemoryError(
            f"out of memory on {self.device} in training step {step}: {batch.num_experiences} experiences, "
            f"{batch.num_tokens} tokens, the longest {int(batch.lengths.max())}; micro-batches of at most "
            f"{split.max_tokens} tokens and {split.max_rows} rows\n{rows}\nlower one of {', '.join(OOM_KEYS)} under "
            "trainer.trainer_config.actor_rollout_ref.actor (raise the third instead), or set "
            f"enable_gradient_checkpointing: true{CRITIC_OOM if self.critic else ''}"
        )
