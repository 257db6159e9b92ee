"""The critic of one worker: value model, optimizer and checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.config import Config
from trinity.common.config.keys import CRITIC, KEYS
from trinity.common.config.resolved import critic_products, filled, has_critic
from trinity.common.config.verl_critic import CriticConfig
from trinity.common.errors import EnvironmentProblem
from trinity.trainer.advantage import BatchAdvantage
from trinity.trainer.batch import TrainBatch
from trinity.trainer.quarantine import Quarantine
from trinity.trainer.verl import settings
from trinity.trainer.verl.checkpoint import load_trained, save_trained
from trinity.trainer.verl.decoder import make_decoder
from trinity.trainer.verl.dp_critic import CriticSettings, DataParallelPPOCritic
from trinity.trainer.verl.loading import load_value_model, move_buffers, num_embeddings, value_head
from trinity.trainer.verl.optim import LRSchedule, make_optimizer, make_schedule
from trinity.trainer.verl.parallel.exchange import local
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.parallel.ulysses import check_heads
from trinity.trainer.verl.scorer import ActorSettings
from trinity.trainer.verl.shard_settings import critic_options
from trinity.utils.device import num_bytes
from trinity.utils.log import get_logger

logger = get_logger("trainer")

FOLDER = "critic"


class Critic:
    """A value model beside the policy.

    Args:
        config: resolved configuration of the stage.
        device: where it computes.
        total_steps: training steps of the run, for the learning-rate schedule.
        num_tokens: size of the policy's vocabulary; the value model's must be at least as large.
        ranks: the processes that train together.

    Raises:
        EnvironmentProblem: the model cannot be loaded, or does not fit the policy.
    """

    def __init__(
        self,
        config: Config,
        *,
        device: torch.device,
        total_steps: int | None,
        num_tokens: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.path = filled(config, KEYS.model.critic_model_path)
        self.model = load_value_model(self.path, ranks.loading_device(device), config=config)
        check_heads(self.model, ranks.sequence_size)
        own = num_embeddings(self.model)
        if own < num_tokens:
            raise EnvironmentProblem(
                f"model.critic_model_path {self.path} has embeddings of {own} tokens, the policy's tokenizer has "
                f"{num_tokens}: the critic reads the policy's tokens, so both need the same vocabulary",
                code="E3121",
            )
        critic, optimizer = critic_of(config), config.algorithm.optimizer
        schedule = critic_lr_schedule(config, total_steps)
        self.warmup = critic_warmup(config)
        recompute = critic.model.enable_gradient_checkpointing
        decoder = make_decoder(self.model, dtype=critic_dtype(config, device), recompute=recompute)
        ranks.shard(decoder, critic_options(config))
        move_buffers(self.model, device)
        self.optimizer = make_optimizer(
            self.model.parameters(),
            optimizer.optimizer_type,
            lr=schedule.lr,
            betas=filled(config, CRITIC.optim.betas),
            weight_decay=filled(config, CRITIC.optim.weight_decay),
        )
        self.trained = DataParallelPPOCritic(
            self.model,
            decoder,
            head=value_head(self.model),
            optimizer=self.optimizer,
            schedule=schedule,
            settings=critic_settings(config),
            quarantine=Quarantine(Path(config.checkpoint_job_dir) / "quarantine", prefix="critic_step"),
            ranks=ranks,
        )

    def with_values(self, batch: TrainBatch) -> TrainBatch:
        """Return the batch with `values` [B, T], from the current weights."""
        return batch.with_columns(values=self.trained.compute_values(batch))

    def update(self, batch: TrainBatch, *, step: int) -> dict[str, float]:
        """Train on a batch with `values` and `returns`; return metrics."""
        return self.trained.update_critic(batch, step=step)

    def is_warming_up(self, step: int) -> bool:
        """Return whether training step `step` (1-based) skips the policy."""
        return step <= self.warmup

    def save(self, folder: Path, *, tokenizer: PreTrainedTokenizerBase | None, hf: bool) -> None:
        """Write `critic/` into `folder`, in the layout of `actor/`."""
        extra = self.trained.stepper.state()
        save_trained(
            folder / FOLDER,
            self.model,
            self.optimizer,
            extra,
            tokenizer=tokenizer,
            hf=hf,
            ranks=self.ranks,
            strategy=self.config.trainer.save_strategy,
            contents=critic_of(self.config).checkpoint.save_contents,
            stages=self.trained.decoder.stages,
        )

    def load(self, folder: Path) -> None:
        """Restore `critic/` of `folder`.

        Raises:
            CheckpointError: it is missing, or of another model.
        """
        contents = critic_of(self.config).checkpoint.load_contents
        extra = load_trained(
            folder / FOLDER,
            self.model,
            self.optimizer,
            ranks=self.ranks,
            contents=contents,
            stages=self.trained.decoder.stages,
        )
        self.trained.stepper.refresh()
        if extra:
            self.trained.stepper.restore(extra)

    def memory_table(self) -> dict[str, int]:
        """Return memory in bytes by its use."""
        parameters = list(self.model.parameters())
        state = (t for values in self.optimizer.state.values() for t in values.values() if isinstance(t, Tensor))
        return {
            "critic parameters": num_bytes(map(local, parameters)),
            "critic gradients": num_bytes(local(p.grad) for p in parameters if p.grad is not None),
            "critic optimizer state": num_bytes(map(local, state)) or 2 * num_bytes(map(local, parameters)),
        }


def reads_values(advantage: BatchAdvantage, config: Config) -> bool:
    """Return whether the advantage function is given a critic's `values`.

    It is if it requires them, or takes them and the critic is enabled.
    """
    return "values" in advantage.required or ("values" in advantage.names and has_critic(config))


def critic_of(config: Config) -> CriticConfig:
    """Return `trainer.trainer_config.critic`."""
    return config.trainer.trainer_config.critic


def critic_warmup(config: Config) -> int:
    """Return how many training steps at the start skip the policy."""
    return config.trainer.critic_warmup


def critic_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the data type of the critic's products, by default the actor's."""
    return settings.dtype_of(critic_products(config), device)


def critic_lr_schedule(config: Config, total_steps: int | None) -> LRSchedule:
    """Return the learning rate of each training step.

    Raises:
        ConfigError: the rate depends on the number of all steps, and `total_steps` is None.
    """
    return make_schedule(config, CRITIC.optim, total_steps)


def critic_settings(config: Config) -> CriticSettings:
    """Return how the value model is trained."""
    critic, of_actor = critic_of(config), settings.actor_settings(config)

    def split(max_tokens: int | None, max_rows: int | None) -> ActorSettings:
        return ActorSettings(
            mini_batch_size=settings.mini_batch_size(config, critic.ppo_mini_batch_size),
            max_tokens=max_tokens,
            max_rows=max_rows,
            epochs=filled(config, CRITIC.ppo_epochs),
            shuffle_seed=settings.actor_of(config).data_loader_seed if critic.shuffle else None,
            grad_clip=critic.grad_clip,
            normalizer=of_actor.normalizer,
            averages_micro_batches=of_actor.averages_micro_batches,
        )

    if filled(config, CRITIC.use_dynamic_bsz):
        update = split(filled(config, CRITIC.ppo_max_token_len_per_gpu), None)
        forward = split(filled(config, CRITIC.forward_max_token_len_per_gpu), None)
    else:
        update = split(None, filled(config, CRITIC.ppo_micro_batch_size_per_gpu))
        forward = split(None, filled(config, CRITIC.forward_micro_batch_size_per_gpu))
    return CriticSettings(
        update=update,
        forward=forward,
        cliprange_value=critic.cliprange_value,
        loss_agg_mode=filled(config, CRITIC.loss_agg_mode),
    )
