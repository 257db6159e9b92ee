"""A whole run: its stages in order, the job folders, and the exit status."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.catalogue import builtin_catalogue
from trinity.common.config import (
    Config,
    ConfigErrors,
    ConfigSource,
    Plan,
    StagePlan,
    dump_config,
    load_plan,
    plugin_dirs_of,
)
from trinity.common.config.showing import unwritten_types
from trinity.common.constants import BENCH
from trinity.common.errors import ConfigError, ExitCode, TrinityError
from trinity.common.models.hub import fetched_model
from trinity.launch.completion import finished_model, is_to_go_back, length_of, may_get_more
from trinity.launch.copies import RECORDED, check_same_content, fetched_record, with_local_copies
from trinity.launch.ending import StageEnd, summarized
from trinity.launch.facts import check_same_facts, compute_as_the_command
from trinity.launch.job import (
    RUNNING,
    JobLock,
    check_same_config,
    config_file,
    has_content,
    read_record,
    recorded,
    write_record,
)
from trinity.launch.models import with_local_models
from trinity.launch.parts import check_shared_keys, part_of
from trinity.launch.process import prepare_process, use_deterministic_algorithms
from trinity.launch.stop import StopSignal
from trinity.launch.type_check import check_type_of
from trinity.monitor.headline import TOTAL_STEPS
from trinity.preflight.machine import refuse_unfit_machine
from trinity.runtime.event_loop import run_event_loop
from trinity.runtime.failure import user_place
from trinity.runtime.scratch import JOB_ENV_VAR, sweep
from trinity.utils.log import get_logger, set_level
from trinity.utils.packages import check_packages, explained_imports
from trinity.utils.plugin_loader import load_plugins

if TYPE_CHECKING:
    from trinity.launch.samples import LatestRollout
    from trinity.launch.stage import MetricsListener, RolloutsListener, ServedListener, StageResult

logger = get_logger("launch")


@dataclass
class RunOptions:
    """What the command line adds to a YAML file.

    Attributes:
        overrides: `a.b=c` texts of `--set`.
        plugin_dirs: folders whose modules are imported before the run.
        accepted_changes: keys whose change a resumed run may have.
        is_quiet: print warnings and errors only.
        on_metrics: called with actor, step and values of every logged line.
        on_rollouts: called with the newest rollouts, or why there are none, on Ray: elsewhere the database is at hand.
        on_stage: called with each stage's plan before it starts.
        on_served: called with where mode serve answers, once it does.
        resume_overrides: what `--set` must add to continue this run; `plan_run` fills it.
        command: what continues the run from any folder, for those who wait for it; without secrets.
        log_dir: folder of the logs of the last stage that began; `run_plan` fills it.
        job_dirs: folders of the stages that were complete or have begun, in order; `run_plan` fills it.
        stop: ends the run early; None: signals alone do.
    """

    overrides: Sequence[str] = ()
    plugin_dirs: Sequence[Path] = ()
    accepted_changes: Sequence[str] = ()
    is_quiet: bool = False
    on_metrics: MetricsListener | None = None
    on_rollouts: RolloutsListener | None = None
    on_stage: Any = None
    on_served: ServedListener | None = None
    resume_overrides: Sequence[str] = ()
    command: str = ""
    log_dir: Path | None = None
    job_dirs: list[Path] = field(default_factory=list)
    stop: StopSignal | None = None


@dataclass
class RunResult:
    """How a run ended.

    Attributes:
        exit_code: 0 only if everything asked for was done.
        stages: results of the stages that ran.
        error: what ended the run, if anything did.
    """

    exit_code: ExitCode = ExitCode.DONE
    stages: list[StageResult] = field(default_factory=list)
    error: TrinityError | None = None


def checked_plan(source: ConfigSource, options: RunOptions) -> Plan:
    """Return the plan of a run that may begin on this machine.

    Raises:
        ConfigErrors: all that is wrong with the configuration.
        TrinityError: this machine, the models or the data do not fit.
    """
    plan = plan_run(source, options)
    refuse_unfit_machine(plan)
    return plan


def plan_run(source: ConfigSource, options: RunOptions) -> Plan:
    """Return the resolved plan of a configuration.

    `continue_from_checkpoint: false` renames a job that exists.

    Models that are given by their hub id are in the local cache then, and so is what is given by an address; the plan
    has their folders.

    Raises:
        ConfigErrors: all that is wrong with the file, or a model or a file cannot be fetched.
    """
    return with_local_models(with_local_copies(_planned(source, options)), fetched_model)


def _planned(source: ConfigSource, options: RunOptions) -> Plan:
    options.plugin_dirs = tuple(dict.fromkeys([*options.plugin_dirs, *plugin_dirs_of(source, options.overrides)]))
    catalogue = builtin_catalogue(options.plugin_dirs)
    plan = load_plan(source, options.overrides, catalogue=catalogue)
    first = plan.stages[0].config
    if first.continue_from_checkpoint:
        return plan
    if any(part_of(stage.config) is not None for stage in plan.stages):
        return _begin_apart(plan)
    name = base = first.name.split("/")[0]
    if any(has_content(Path(s.config.checkpoint_job_dir)) for s in plan.stages):
        name = f"{base}_{time.strftime('%Y%m%d%H%M%S')}"
        logger.info("continue_from_checkpoint is false and %s holds an earlier run: this one is named %s", base, name)
        plan = load_plan(source, [*options.overrides, f"name={name}"], catalogue=catalogue)
    options.resume_overrides = (f"name={name}", "continue_from_checkpoint=true", *_resuming(plan))
    return plan


def _resuming(plan: Plan) -> list[str]:
    """Return what continues a run that `resume_mode: disable` began again."""
    key = "trainer.trainer_config.trainer.resume_mode"
    verl = [stage.config.trainer.trainer_config.trainer.resume_mode for stage in plan.stages]
    return [f"{key}=auto"] if "disable" in verl else []


def _begin_apart(plan: Plan) -> Plan:
    """Return `plan` unless a part of it ran in its job before.

    In that case another name would separate it from the other parts.

    Raises:
        ConfigError: it has, and `continue_from_checkpoint` is false (E1840).
    """
    for stage in plan.stages:
        job_dir, part = Path(stage.config.checkpoint_job_dir), part_of(stage.config)
        if part not in (None, BENCH) and config_file(job_dir, part).exists():
            raise ConfigError(
                f"`continue_from_checkpoint: false`, but {part} has run in {job_dir} before; to begin again write "
                "another `name` in the files of all parts, to continue write true",
                code="E1840",
            )
    return plan


def run_plan(plan: Plan, options: RunOptions) -> RunResult:
    """Run the stages of `plan` in order; end at a failure or a stop.

    Raises:
        EnvironmentProblem: the run is deterministic, and this process computes otherwise than the command (E3303).
        ConfigError: the algorithm type of a plugin refuses the configuration.
    """
    result = RunResult()
    check_packages()
    with explained_imports():
        _prepare(plan.stages[0].config)
    load_plugins(options.plugin_dirs)
    for stage in plan.stages:
        check_type_of(stage.config)
    previous: Path | None = None
    with options.stop or StopSignal() as stop, explained_imports():
        for number, stage in enumerate(plan.stages):
            given, stage = previous, _after(stage, previous)
            previous = finished_model(stage.config)
            if previous is not None and not may_get_more(stage.config) and not is_to_go_back(stage.config, plan):
                logger.info("stage %s is already complete in %s", stage.name or "", stage.config.checkpoint_job_dir)
                options.job_dirs.append(Path(stage.config.checkpoint_job_dir))
                continue
            stop.refuse()
            if options.on_stage is not None:
                options.on_stage(stage)
            options.log_dir = Path(stage.config.checkpoint_job_dir) / "log"
            put_back = partial(_put_back, plan, options, number, given)
            outcome = _run_stage(stage, stop, options, put_back)
            result.stages.append(outcome)
            if outcome.stopped is not None:
                result.exit_code = outcome.stopped
                break
            previous = finished_model(stage.config)
    return result


def begun(plan: Plan, number: int) -> StagePlan:
    """Return a stage with the model that it begins from.

    That is the one that the stage before it has left, or its own as long as that is not complete.

    Raises:
        CheckpointError: the stage before is complete but its model is gone.
    """
    return _after(plan.stages[number], finished_model(plan.stages[number - 1].config) if number else None)


def unforeseen(error: Exception) -> TrinityError:
    """Return an error that nobody expected as one of the framework."""
    return TrinityError(f"{type(error).__name__}: {error} ({user_place(error)})")


def _prepare(config: Config) -> None:
    """Set up this process for the run before plugins compute anything.

    All stages have the same requirements.
    """
    is_late = "torch" in sys.modules
    prepare_process(config.model.model_path, deterministic=config.deterministic)
    if is_late and config.deterministic:
        compute_as_the_command()


def _after(stage: StagePlan, model: Path | None) -> StagePlan:
    """Return `stage` starting from the model that the stage before it left."""
    if model is None:
        return stage
    config = stage.config
    old = config.model.model_path
    update: dict[str, Any] = {"model_path": str(model)}
    if config.model.critic_model_path == old:
        update["critic_model_path"] = str(model)
    rollout = config.explorer.rollout_model
    if rollout.model_path == old:
        rollout = rollout.model_copy(update={"model_path": str(model)})
    changed = config.model_copy(
        update={
            "model": config.model.model_copy(update=update),
            "explorer": config.explorer.model_copy(update={"rollout_model": rollout}),
        }
    )
    return replace(stage, config=changed)


def _put_back(
    plan: Plan, options: RunOptions, number: int, model: Path | None, values: Mapping[str, Any]
) -> str | None:
    """Return a stage's configuration with other `values`.

    None if they do not fit the remaining keys.
    """
    section = "" if plan.stages[number].name is None else f"stages[{number}]."
    overrides = [*options.overrides, *(f"{section}{key}={json.dumps(value)}" for key, value in values.items())]
    try:
        other = load_plan(plan.source, overrides, catalogue=builtin_catalogue(options.plugin_dirs))
    except ConfigErrors:
        return None
    stage = _after(other.stages[number], model)
    return dump_config(stage.config, stage.references)


def _run_stage(
    stage: StagePlan, stop: StopSignal, options: RunOptions, put_back: Callable[[Mapping[str, Any]], str | None]
) -> StageResult:
    config = stage.config
    job_dir = Path(config.checkpoint_job_dir)
    part = part_of(config)
    lock = JobLock(job_dir, part, command=options.command)
    os.environ[JOB_ENV_VAR] = str(job_dir.absolute())
    sweep()
    try:
        if read_record(job_dir, part).get("status") == RUNNING:  # nobody was left to say how it ended
            write_record(job_dir, part, status="killed")
        text = dump_config(config, stage.references, addresses=stage.addresses)
        check_shared_keys(job_dir, part, text)
        if part != BENCH:  # an evaluation continues nothing
            check_same_config(
                job_dir,
                text,
                accepted=options.accepted_changes,
                part=part,
                derived={each.key: each.reason for each in stage.derived},
                put_back=put_back,
            )
            check_same_content(job_dir, stage.fetched, accepted=options.accepted_changes, part=part)
        set_level(config.log.level)
        # The driver of a cluster computes nothing but evaluations, and imports no torch.
        if config.deterministic and (config.cluster.runtime != "ray" or part == BENCH):
            use_deterministic_algorithms()
        facts: dict[str, Any] = {"stage": stage.name, "unwritten": unwritten_types(config), "command": options.command}
        facts[RECORDED] = fetched_record(stage.fetched)
        with summarized(config, options.job_dirs) as ended, recorded(job_dir, part, text, **facts) as ended.attempt:
            ended.result = _perform(stage, stop, options, ended)
            return ended.result
    finally:
        sweep()
        lock.release()


def _perform(stage: StagePlan, stop: StopSignal, options: RunOptions, ended: StageEnd) -> StageResult:
    from trinity.algorithm.planning import steps_by_actor
    from trinity.launch.placement import placed
    from trinity.launch.stage import Stage

    config = stage.config
    job_dir, part = Path(config.checkpoint_job_dir), part_of(config)
    counted, guard = next(iter(steps_by_actor(config)), None), threading.Lock()

    def note(facts: Mapping[str, Any]) -> None:
        with guard:
            known = read_record(job_dir, part).get("facts", {})
            check_same_facts(known, facts, deterministic=config.deterministic)
            write_record(job_dir, part, facts=facts)

    def listen(actor: str, step: int, values: Mapping[str, float]) -> None:
        if TOTAL_STEPS in values and actor == counted:
            with guard:
                write_record(job_dir, part, planned={actor: int(values[TOTAL_STEPS])})
        if options.on_metrics is not None:
            options.on_metrics(actor, step, values)

    def keep(rollouts: list[LatestRollout], note: str) -> None:
        ended.rollouts = rollouts or ended.rollouts
        if options.on_rollouts is not None:
            options.on_rollouts(rollouts, note)

    with placed(config) as place:
        told: dict[str, Any] = {"on_metrics": listen, "on_facts": note, "on_served": options.on_served}
        told["on_rollouts"] = keep
        made = Stage(config, name=stage.name, stop=stop, place=place, **told)
        ended.attempt.has_begun = lambda: made.has_begun
        outcome = run_event_loop(place.watched(made.run()))
    stop.refuse()
    write_record(
        job_dir,
        part,
        status="done" if outcome.stopped is None else "stopped",
        exit_code=int(outcome.stopped or ExitCode.DONE),
        length=length_of(config),
        training_step=outcome.training_step,
        explore_step=outcome.explore_step,
        seconds=round(read_record(job_dir, part).get("seconds", 0.0) + outcome.seconds, 3),
    )
    return outcome
