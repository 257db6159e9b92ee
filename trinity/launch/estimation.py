"""What a file's stages will need: memory by part, and time.

Steps per hour are known where an earlier run says them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trinity.catalogue import catalogue_of
from trinity.catalogue import plugin_dirs as all_plugin_dirs
from trinity.common.config import Config, ConfigErrors, ConfigSource, Finding, StagePlan, examine, plugin_dirs_of
from trinity.common.config.resolved import has_critic
from trinity.common.errors import CheckpointError, EnvironmentProblem
from trinity.common.models.hub import cached_model
from trinity.explain.effective_loss import reads_reference
from trinity.launch.copies import kept, with_local_copies
from trinity.launch.job import SAVED_CONFIG
from trinity.launch.models import with_local_models
from trinity.preflight.devices import is_here
from trinity.preflight.doctor.gpus import listed
from trinity.preflight.estimate.advice import MemoryLimits, Recommendation, recommendations
from trinity.preflight.estimate.limits import MIB, machine_bytes
from trinity.preflight.estimate.parts import PlacedMemory
from trinity.preflight.estimate.places import PlannedModels, placed, total_bytes
from trinity.preflight.estimate.sizes import ModelSizes, sizes_of
from trinity.preflight.estimate.speed import StepSpeed, differences, measured_speed
from trinity.preflight.estimate.work import explores, trains


@dataclass(frozen=True)
class StageEstimate:
    """What a stage will need.

    Attributes:
        stage: its name; None: the file has no stages.
        models: the sizes of its models.
        places: the memory of every process, by place.
        host_bytes: of all processes in the memory of the machines.
        device_bytes: of all GPUs.
        limits: the memory that there is.
        speed: pace of an earlier run; None: none of this shape is known.
        speed_note: where the pace is from, or why there is none.
        advice: what to change.
    """

    stage: str | None
    models: PlannedModels
    places: tuple[PlacedMemory, ...]
    host_bytes: int
    device_bytes: int
    limits: MemoryLimits
    speed: StepSpeed | None
    speed_note: str
    advice: tuple[Recommendation, ...] = field(default_factory=tuple)

    def facts(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return {
            "stage": self.stage,
            "model": asdict(self.models.policy),
            "critic": None if self.models.critic is None else asdict(self.models.critic),
            "has_reference": self.models.has_reference,
            "host_bytes": self.host_bytes,
            "device_bytes": self.device_bytes,
            "have": asdict(self.limits),
            "processes": [each.facts() for each in self.places],
            "speed": None if self.speed is None else asdict(self.speed),
            "speed_note": self.speed_note,
            "recommendations": [{"why": each.why, "set": dict(each.changes)} for each in self.advice],
        }


def estimate(
    source: ConfigSource,
    overrides: tuple[str, ...] = (),
    *,
    plugin_dirs: tuple[Path, ...] = (),
    like: Path | None = None,
    card_bytes: int | None = None,
) -> tuple[list[StageEstimate], list[Finding]]:
    """Return what each stage of a file will need, and the file's findings.

    What this machine lacks is no finding: the file may be meant for another one.

    Args:
        source: the YAML file, or its values.
        overrides: `a.b=c`, applied in order.
        plugin_dirs: folders of plugins.
        like: folder of an earlier job, for the pace; None: the stage's own.
        card_bytes: memory of a GPU; None: that of this machine's.

    Raises:
        ConfigErrors: the file has errors.
        EnvironmentProblem: nothing is known of a model (E3101).
        CheckpointError: `like` is no job (E7003).
    """
    catalogue, of_plugins = catalogue_of(all_plugin_dirs((*plugin_dirs, *plugin_dirs_of(source, overrides))))
    plan, found = examine(source, overrides, catalogue=catalogue)
    found = [*of_plugins, *found]
    if any(finding.is_error for finding in found):
        raise ConfigErrors(found)
    local = with_local_models(with_local_copies(plan, kept), _described)
    stages = [_of_stage(stage, like=like, card_bytes=card_bytes) for stage in local.stages]
    return stages, found


def _described(hub_id: str, *, needs_weights: bool) -> Path | None:
    """Return the folder of a model in the local cache; weights are not needed."""
    return cached_model(hub_id, needs_weights=False)


def _of_stage(stage: StagePlan, *, like: Path | None, card_bytes: int | None) -> StageEstimate:
    config = stage.config
    models = planned_models(stage)
    here, cards = is_here(config.cluster), [int(gpu.total_mib * MIB) for gpu in listed() if gpu.total_mib]
    card = card_bytes or (min(cards) if cards and here else None)
    limits = MemoryLimits(machine_bytes() if here else None, card)
    places = placed(config, models, card_bytes=card)
    speed, note = _speed(config, models.policy, like)
    return StageEstimate(
        stage=stage.name,
        models=models,
        places=tuple(places),
        host_bytes=total_bytes(places, is_host=True),
        device_bytes=total_bytes(places, is_host=False),
        limits=limits,
        speed=speed,
        speed_note=note,
        advice=tuple(recommendations(config, models, limits)),
    )


def planned_models(stage: StagePlan) -> PlannedModels:
    """Return the sizes of all models of a stage.

    Raises:
        EnvironmentProblem: nothing is known of one (E3101).
    """
    config, detailed = stage.config, stage.config.trainer.trainer_config
    trusts, overrides = config.model.trust_remote_code, detailed.actor_rollout_ref.model.override_config
    policy = sizes_of(_folder(config.model.model_path), overrides, trusts_code=trusts)
    critic = None
    if trains(config) and has_critic(config):
        path = config.model.critic_model_path or config.model.model_path
        critic = sizes_of(_folder(path), detailed.critic.model.override_config, trusts_code=trusts)
    own = config.explorer.rollout_model.model_path
    is_other = explores(config) and own and own != config.model.model_path
    return PlannedModels(
        policy=policy,
        critic=critic,
        engine=sizes_of(_folder(own), trusts_code=trusts) if is_other and own else policy,
        auxiliary=tuple(_auxiliary(config)),
        has_reference=trains(config) and reads_reference(stage),
    )


def _auxiliary(config: Config) -> Iterator[tuple[int, ModelSizes]]:
    for index, each in enumerate(config.explorer.auxiliary_models if config.mode != "train" else ()):
        if each.engine_type != "external" and each.model_path:
            yield index, sizes_of(_folder(each.model_path), trusts_code=bool(each.trust_remote_code))


def _folder(path: str) -> Path:
    return Path(path).expanduser()


def _speed(config: Config, policy: ModelSizes, like: Path | None) -> tuple[StepSpeed | None, str]:
    """Return the pace of an earlier run, and where it is from.

    Without one, why there is none.

    Raises:
        CheckpointError: `like` is no job (E7003).
    """
    job = like or Path(config.checkpoint_job_dir)
    saved = _saved(job)
    if saved is None:
        if like is not None:
            raise CheckpointError(f"{like} is no folder of a job: it has no {SAVED_CONFIG}", code="E7003")
        return None, "not known before a run of this shape; --like JOB takes it from another one"
    different = differences(config, saved)
    if not different and (why := _other_model(policy, saved)):
        different = [why]
    if different:
        return None, f"{job} has another shape: it differs in {', '.join(different)}"
    speed = measured_speed(job)
    return speed, f"measured in {job}" if speed else f"{job} has not made three steps yet"


def _saved(job: Path) -> dict[str, Any] | None:
    try:
        found = yaml.safe_load((job / SAVED_CONFIG).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None


def _other_model(policy: ModelSizes, saved: dict[str, Any]) -> str:
    """Return the key of the model if that of the earlier run has other sizes."""
    section = saved.get("model")
    path = str(section.get("model_path")) if isinstance(section, dict) else ""
    try:
        return "" if sizes_of(_folder(path)) == policy else "model.model_path"
    except EnvironmentProblem:
        return "model.model_path (it is not there any more)"
