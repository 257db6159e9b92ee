"""The gradient probe: find the settings that change loss or gradient.

The probe changes one setting at a time. Every measurement is a training step of the real trainer on a synthetic
batch: collation, advantages, loss, backward. Only the optimizer differs: it records the gradient and moves the
weights in a fixed way.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trinity.algorithm.planning import mixes_experts
from trinity.common.config import Config, ConfigErrors, ConfigSource, StagePlan, keys, load_plan
from trinity.common.config.keys import ACTOR, KEYS, VERL_TRAINER, Key, path_of, value_of
from trinity.common.errors import TrinityError
from trinity.explain.dry_batch import SEED, add_logprobs, dry_experiences, probe_model, with_experts
from trinity.explain.probe_settings import CRITIC, Setting, as_override, candidates, settings_of
from trinity.explorer.assembly import build_advantage_fn
from trinity.trainer.batch import collate
from trinity.trainer.verl.dp_actor import DataParallelPPOActor
from trinity.trainer.verl.dp_critic import DataParallelPPOCritic
from trinity.trainer.verl.logprob import STATISTICS
from trinity.trainer.verl.worker import ActorWorker

if TYPE_CHECKING:
    from trinity.common.config import Catalogue
    from trinity.common.experience import Experience

MOVED = 1e-6  # smallest relative change that is not rounding
NOISE = 0.05  # of the weights' own size: policy and reference differ, and ratios leave 1 after a step
NOISE_OF_ZEROS = 0.02  # of weights that begin at 0, such as an adapter's
TRAIN_STEPS = 2
_USER_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Measurement:
    """Loss and gradients of the dry training steps of policy or critic.

    Attributes:
        loss: sum of the steps' losses.
        gradient: gradients of all optimizer steps, one after the other.
        critic: the critic's measurement beside the policy's; None without a critic.
    """

    loss: float
    gradient: Tensor
    critic: Measurement | None = None

    def moved(self, other: Measurement) -> tuple[float, float]:
        """Return relative changes of gradient and loss, maxima over both models."""
        if self.gradient.shape != other.gradient.shape or (self.critic is None) != (other.critic is None):
            return math.inf, math.inf  # another number of optimizer steps, or of models
        size = float(self.gradient.norm())
        gradient = float((other.gradient - self.gradient).norm()) / max(size, 1e-12)
        loss = abs(other.loss - self.loss) / max(abs(self.loss), 1e-3)
        if self.critic is None or other.critic is None:
            return gradient, loss
        of_critic = self.critic.moved(other.critic)
        return max(gradient, of_critic[0]), max(loss, of_critic[1])


@dataclass(frozen=True)
class ProbeRow:
    """The result for one setting.

    Attributes:
        key: the setting.
        value: its value.
        perturbed: the value that it was changed to; the last one tried where nothing moved.
        gradient: relative norm of the gradient's change; None where no other value is allowed.
        loss: relative change of the loss.
        is_written: it is in the file or in `--set`.
        reason: why nothing moves, if that is known.
    """

    key: str
    value: Any
    perturbed: Any = None
    gradient: float | None = None
    loss: float | None = None
    is_written: bool = False
    reason: str = ""

    @property
    def is_inert(self) -> bool:
        """Whether neither the loss nor the gradient moves."""
        return self.gradient is not None and max(self.gradient, self.loss or 0.0) <= MOVED


@dataclass
class ProbeReport:
    """The results of the probe of a stage.

    Attributes:
        stage: name of the stage.
        model: the model that was used, in words.
        num_experiences: rows of the synthetic batch.
        loss: loss of the synthetic batch; None where it could not be computed.
        gradient_norm: norm of its gradient.
        failure: the error of the loss or the fault of its gradient; empty if none.
        rows: one a setting.
    """

    stage: str | None
    model: str
    num_experiences: int = 0
    loss: float | None = None
    gradient_norm: float | None = None
    failure: str = ""
    rows: list[ProbeRow] = field(default_factory=list)


class GradientRecorder:
    """Replaces the optimizer to record the gradient of each step.

    It moves the weights by seeded noise that does not depend on the gradient, so all measurements are at the
    same weights.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": 0.0}]
        self.state: dict[Any, dict[str, Any]] = {}
        self.gradients: list[Tensor] = []
        self._generator = torch.Generator().manual_seed(SEED)

    def step(self) -> None:
        """Record the gradient, then move the weights."""
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in self.parameters]
        self.gradients.append(torch.cat(parts).double().clone())
        self.move()

    def move(self) -> None:
        """Add noise of a fixed share of each weight's own size."""
        with torch.no_grad():
            for parameter in self.parameters:
                size = float(parameter.std(correction=0))
                noise = torch.randn(parameter.shape, generator=self._generator)
                parameter.add_(noise * (NOISE * size or NOISE_OF_ZEROS))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None


class Probe:
    """Measures the loss of a stage under changed settings.

    Args:
        source: the YAML file, or its values.
        overrides: `a.b=c` texts of `--set`.
        catalogue: the known names.
        index: number of the stage in the file.
        folder: where a small model may be written.
    """

    def __init__(
        self, source: ConfigSource, overrides: Sequence[str], *, catalogue: Catalogue, index: int, folder: Path
    ) -> None:
        self.source, self.overrides, self.catalogue, self.index = source, tuple(overrides), catalogue, index
        self.stage = self._plan(())
        self.model_path, self.model = probe_model(str(self.stage.config.model.model_path or ""), folder)
        self.num_experiences = 0

    def _plan(self, changes: Sequence[str]) -> StagePlan:
        plan = load_plan(self.source, (*self.overrides, *changes), catalogue=self.catalogue, schema_only=True)
        return plan.stages[self.index]

    def _prefix(self, key: str) -> str:
        """Return the prefix of a key: its stage, none for the shared model."""
        return "" if self.stage.name is None or key.startswith("model.") else f"stages[{self.index}]."

    def measure(self, *changes: tuple[str, Any]) -> Measurement:
        """Return loss and gradients with settings changed.

        Raises:
            TrinityError: the configuration does not allow it, or the synthetic batch cannot be trained on.
        """
        stage = self._plan([f"{self._prefix(key)}{as_override(key, value)}" for key, value in changes])
        config = dry_config(stage.config, self.model_path)
        worker = ActorWorker(config, tokenizer=None, total_steps=TRAIN_STEPS, device="cpu")
        recorder, of_critic = _prepared(worker, config)
        loss, value_loss = 0.0, 0.0
        own = worker.actor.compute_log_prob(collate(self._experiences(config, worker, None)))
        for step in range(1, TRAIN_STEPS + 1):
            experiences = self._experiences(config, worker, own, step=step)
            metrics = worker.train_step(experiences, step)
            loss += metrics["actor/final_loss"]
            value_loss += metrics.get("critic/vf_loss", 0.0)
        self.num_experiences = len(experiences)
        if not recorder.gradients or not worker.is_healthy:
            raise TrinityError("the gradient of the synthetic batch is not finite", code="E6001")
        critic = None if of_critic is None else Measurement(value_loss, torch.cat(of_critic.gradients))
        return Measurement(loss, torch.cat(recorder.gradients), critic)

    def _experiences(
        self, config: Config, worker: ActorWorker, own: Tensor | None, *, step: int = 1
    ) -> list[Experience]:
        required = worker.loss_fn.required | (worker.advantage.required if worker.advantage is not None else set())
        experiences = dry_experiences(
            config, vocab_size=worker.model.config.vocab_size, extra=sorted(required - _OF_THE_TRAINER)
        )
        if own is None:
            return experiences
        add_logprobs(experiences, own)
        advantage = build_advantage_fn(config)
        if advantage is not None:
            experiences, _ = advantage.process(experiences)
        return with_experts(experiences, step=step) if mixes_experts(config) else list(experiences)

    def row(self, setting: Setting, base: Measurement) -> ProbeRow:
        """Return the effect of changing one setting."""
        found = ProbeRow(setting.key, setting.value, is_written=setting.is_written)
        for value in candidates(setting):
            other = self._try((setting.key, value))
            if other is None:
                continue
            gradient, loss = base.moved(other)
            found = dataclasses.replace(found, perturbed=value, gradient=gradient, loss=loss)
            if not found.is_inert:
                break
        return found

    def _try(self, *changes: tuple[str, Any]) -> Measurement | None:
        """Return the measurement, or None if the values are refused."""
        try:
            return self.measure(*changes)
        except (TrinityError, *_USER_ERRORS):
            return None

    def why(self, setting: Setting, others: Sequence[Setting]) -> str:
        """Return what must change for a setting without effect to have one."""
        if setting.is_term:
            zero = next(
                (o for o in others if o.role == setting.role and o.key.endswith("_coef") and o.value == 0), None
            )
            return f"its `{zero.name}` is 0" if zero is not None else "not known"
        peers = [o for o in others if o.role == setting.role and o.key != setting.key and not o.is_term]
        shadows = [peer for peer in peers if peer.is_optional and peer.value is not None]
        found = [peer for peer in shadows if self._matters(setting, (peer.key, None))]
        if not found and len(shadows) > 1 and self._matters(setting, *((peer.key, None) for peer in shadows)):
            found = shadows
        if found:
            names = ", ".join(f"`{peer.name}`" for peer in found)
            return f"{names} {'takes' if len(found) == 1 else 'take'} its place"
        for peer in peers:
            if isinstance(peer.value, bool | str) or peer.value == 0:
                for value in candidates(peer):
                    if self._matters(setting, (peer.key, value)):
                        return f"it matters only with `{as_override(peer.name, value).replace('=', ': ')}`"
        if setting.role == CRITIC and self._matters(setting, (f"{CRITIC}.ppo_epochs", 2)):
            return "the critic makes one optimizer step a batch, before which its predictions are the values themselves"
        if self._matters(setting, (str(KEYS.algorithm.bypass_old_logprobs), True)):
            return "old_logprob is computed again before the only optimizer step, so that every ratio is 1"
        return "no other setting was found that makes it matter: the function may not read it"

    def _matters(self, setting: Setting, *changes: tuple[str, Any]) -> bool:
        """Return whether a setting has an effect once others are changed."""
        base = self._try(*changes)
        if base is None:
            return False
        others = (self._try(*changes, (setting.key, value)) for value in candidates(setting))
        return any(other is not None and max(base.moved(other)) > MOVED for other in others)


_OF_THE_TRAINER = frozenset({
    "logprob", "old_logprob", "ref_logprob", "rollout_logprob", "action_mask", "response_mask", "advantages", "returns",
    "token_level_rewards", "values", "uid", "selected", "step", "rollout_is_weights", "teacher_logprobs",
    "expert_mask",
    *STATISTICS,
})  # fmt: skip


def dry_config(config: Config, model_path: str) -> Config:
    """Return a configuration for the probe's model: float32, no clipping."""
    changed = config
    fsdp, model = ACTOR.fsdp_config, KEYS.trainer.trainer_config.actor_rollout_ref.model
    # Entries of the run's model fit no other model.
    is_of_run = model_path == str(config.model.model_path)
    changes: tuple[tuple[Key[Any], Any], ...] = (
        (KEYS.model.model_path, model_path),
        (KEYS.model.critic_model_path, model_path),
        (model.override_config, value_of(config, model.override_config) if is_of_run else {}),
        (keys.CRITIC.model.override_config, {}),
        (fsdp.dtype, "float32"),
        (fsdp.mixed_precision, None),
        (KEYS.trainer.critic_warmup, 0),
        (VERL_TRAINER.critic_warmup, 0),
    )
    for key, value in changes:
        changed = replaced(changed, path_of(key), value)
    return changed


def replaced(section: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of a configuration with the value at `path` replaced."""
    name, *rest = path
    inner = replaced(vars(section)[str(name)], rest, value) if rest else value
    return section.model_copy(update={name: inner})


def _prepared(worker: ActorWorker, config: Config) -> tuple[GradientRecorder, GradientRecorder | None]:
    """Replace the optimizers of policy and critic by recorders; return them.

    A step splits the synthetic batch into as many parts as a step of the run has.
    """
    actor = worker.actor
    recorder = _recorded(actor)
    critic = None
    if worker.critic is not None:
        trained = worker.critic.trained
        critic = _recorded(trained)
        update = trained.settings.update
        update = dataclasses.replace(update, epochs=min(update.epochs, 2), max_tokens=None, max_rows=None)
        trained.settings = dataclasses.replace(trained.settings, update=update)
    recorder.move()  # away from the reference, as in the middle of a training
    actor.decoder.refresh()
    rows = len(dry_experiences(config, vocab_size=worker.model.config.vocab_size))
    size, batch = actor.settings.mini_batch_size, config.buffer.train_batch_size
    is_split = bool(size and batch and size < batch)
    actor.settings = dataclasses.replace(
        actor.settings,
        mini_batch_size=rows // 2 if is_split else None,
        epochs=min(actor.settings.epochs, 2),
        max_tokens=None,
        max_rows=None,
    )
    return recorder, critic


def _recorded(trained: DataParallelPPOActor | DataParallelPPOCritic) -> GradientRecorder:
    """Return a recorder in the optimizer's place; no clipping, no quarantine."""
    recorder = GradientRecorder(trained.stepper.parameters)
    trained.stepper.optimizer = recorder  # type: ignore[assignment]
    trained.stepper.grad_clip = None
    trained.quarantine = None
    return recorder


def probe_stage(
    source: ConfigSource,
    overrides: Sequence[str],
    *,
    catalogue: Catalogue,
    index: int,
    only: Callable[[Setting], bool] = lambda setting: True,
) -> ProbeReport:
    """Return the effect of each setting of a stage's loss.

    Args:
        source: the YAML file, or its values.
        overrides: `a.b=c` texts of `--set`.
        catalogue: the known names; plugins are imported already.
        index: number of the stage in the file.
        only: selects the settings to probe.

    Raises:
        ConfigErrors: the file has errors.
    """
    with tempfile.TemporaryDirectory(prefix="trinity_probe_") as folder:
        probe = Probe(source, overrides, catalogue=catalogue, index=index, folder=Path(folder))
        report = ProbeReport(probe.stage.name, probe.model)
        try:
            base = probe.measure()
        except ConfigErrors:
            raise
        except (TrinityError, *_USER_ERRORS) as error:
            report.failure = str(error) if isinstance(error, TrinityError) else f"{type(error).__name__}: {error}"
            return report
        report.num_experiences, report.loss = probe.num_experiences, base.loss
        report.gradient_norm = float(base.gradient.norm())
        if not report.gradient_norm:
            report.failure = "its gradient is 0 everywhere: nothing would be learned"
        settings = settings_of(probe.stage)
        for setting in filter(only, settings):
            row = probe.row(setting, base)
            if row.is_inert and (row.is_written or setting.is_term):
                row = dataclasses.replace(row, reason=probe.why(setting, settings))
            report.rows.append(row)
    return report
