"""The stage of a configuration whose tasks are attempted outside of a run.

What is attempted is what the stage would attempt; where it is, and how often a failure is repeated, is not the run's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity.common.config import Config, ConfigSource, InferenceModelConfig, Plan, StagePlan
from trinity.common.config.engine_args import TORCH_ENGINE_ARGS
from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import training_tasksets
from trinity.common.constants import Mode
from trinity.common.errors import ConfigError
from trinity.launch.process import prepare_process, use_deterministic_algorithms
from trinity.launch.run import RunOptions, begun, plan_run
from trinity.preflight.data import training_datasets
from trinity.preflight.machine import refuse_unfit_machine
from trinity.utils.gpu import has_gpu
from trinity.utils.log import get_logger, set_level
from trinity.utils.packages import check_packages
from trinity.utils.plugin_loader import load_plugins

logger = get_logger("launch")

VLLM = ("vllm", "vllm_async")


@dataclass(frozen=True)
class TrialOptions:
    """What the command line adds to a YAML file.

    Attributes:
        overrides: `a.b=c` texts of `--set`.
        plugin_dirs: folders whose modules are imported.
        stage: name of the stage; None: the first one with tasks to attempt.
    """

    overrides: Sequence[str] = ()
    plugin_dirs: Sequence[Path] = ()
    stage: str | None = None


def trial_stage(source: ConfigSource, options: TrialOptions) -> Config:
    """Return the configuration of the stage, for which this process is ready.

    Its model is the one that the stage begins from.
    Nothing is written: neither a folder of the job nor anything in it.

    Raises:
        ConfigErrors: all that is wrong with the configuration.
        ConfigError: no stage has tasks, or none has the name (E1920); a plugin cannot be imported.
        TrinityError: this machine, the model or the data do not fit.
    """
    # An earlier run of the job is neither continued nor in the way.
    overrides = (*options.overrides, "continue_from_checkpoint=true")
    asked = RunOptions(overrides=overrides, plugin_dirs=tuple(options.plugin_dirs))
    plan = plan_run(source, asked)
    stage = _chosen(plan, options.stage)
    stage = replace(stage, config=alone(stage.config))
    refuse_unfit_machine(Plan(plan.source, [stage]))
    check_packages()
    config = with_raw_tasks(stage.config)
    if config.trainer.trainer_config.reward_model.enable:
        logger.warning("the reward model is not asked here: rewards are those of the workflow")
    is_late = "torch" in sys.modules
    prepare_process(config.model.model_path, deterministic=config.deterministic)
    load_plugins(asked.plugin_dirs)
    set_level(config.log.level)
    if config.deterministic and not is_late:
        use_deterministic_algorithms()
    return config


def with_raw_tasks(config: Config) -> Config:
    """Return a configuration that reads raw tasks where none were made.

    They are the input of a task pipeline that has not run yet.
    """
    section, taskset = config.data_processor.task_pipeline, config.buffer.explorer_input.taskset
    if section is None or taskset is None or Path(str(taskset.path)).expanduser().exists():
        return config
    found = Finding(
        "W4041",
        str(KEYS.data_processor.task_pipeline),
        f"the task pipeline has not made {taskset.path} yet: its input is read ({', '.join(section.inputs)}), before "
        "operators, order and top_k",
    )
    logger.warning("[%s] %s", found.code, found.message)
    raw = config.buffer.explorer_input.model_copy(
        update={"taskset": taskset.model_copy(update={"path": tuple(section.inputs)})}
    )
    return config.model_copy(update={"buffer": config.buffer.model_copy(update={"explorer_input": raw})})


def data_stages(source: ConfigSource, options: TrialOptions) -> list[Config]:
    """Return the stages with data to look at; this process is ready.

    Nothing is written. Without a name these are all stages with tasks, or with files to train on.

    Raises:
        ConfigErrors: all that is wrong with the configuration.
        ConfigError: no stage has data, or none has the name (E1920); a plugin cannot be imported.
        TrinityError: this machine, the model or the tasks do not fit.
    """
    overrides = (*options.overrides, "continue_from_checkpoint=true")
    asked = RunOptions(overrides=overrides, plugin_dirs=tuple(options.plugin_dirs))
    plan = plan_run(source, asked)  # which adds the file's own folders
    able = [stage for stage in plan.stages if has_tasks(stage.config) or any(training_datasets(stage.config))]
    chosen = [stage for stage in able if options.stage in (None, stage.name)]
    if not chosen:
        way_out = "give it `buffer.explorer_input.taskset`, or a file in `buffer.trainer_input.experience_buffer`"
        raise _no_stage(able, options.stage, "data to look at", way_out)
    begin = [begun(plan, plan.stages.index(stage)) for stage in chosen]
    with_tasks = [replace(stage, config=alone(stage.config)) for stage in begin if has_tasks(stage.config)]
    if with_tasks:
        refuse_unfit_machine(Plan(plan.source, with_tasks))
    check_packages()
    first = begin[0].config
    prepare_process(first.model.model_path, deterministic=first.deterministic)
    load_plugins(asked.plugin_dirs)
    set_level(first.log.level)
    return [with_raw_tasks(stage.config) for stage in begin]


def has_tasks(config: Config) -> bool:
    """Return whether a stage attempts tasks."""
    return bool(training_tasksets(config)) and config.mode not in (Mode.TRAIN, Mode.SERVE, Mode.BENCH)


def _chosen(plan: Plan, name: str | None) -> StagePlan:
    able = [stage for stage in plan.stages if has_tasks(stage.config)]
    chosen = [stage for stage in able if name in (None, stage.name)]
    if not chosen:
        datasets = [f"`{key}`" for stage in plan.stages for key, _, _ in training_datasets(stage.config)]
        way_out = "give it `buffer.explorer_input.taskset`, with `mode: both`"
        if datasets:
            way_out = (
                f"it trains on a dataset ({', '.join(dict.fromkeys(datasets))}), which has rows and no tasks: "
                "`trinity data preview` shows them, and a run writes those that it leaves out to "
                "<job>/buffer/quarantine"
            )
        raise _no_stage(able, name, "tasks to run", way_out)
    return begun(plan, plan.stages.index(chosen[0]))


def _no_stage(able: Sequence[StagePlan], name: str | None, what: str, way_out: str) -> ConfigError:
    names = ", ".join(str(stage.name) for stage in able if stage.name)
    said = "" if name is None else f" called {name!r}"
    more = f"; those that have: {names}" if names else f"; {way_out}"
    return ConfigError(f"no stage{said} of the file has {what}{more}", code="E1920")


def alone(config: Config) -> Config:
    """Return a configuration for one engine of each model, beside no trainer.

    Runners are threads, and no rollout is retried. Without a GPU an engine of vLLM becomes the torch engine.
    """
    explorer = config.explorer
    update = {
        "rollout_model": _one_engine(explorer.rollout_model, "rollout_model"),
        "auxiliary_models": [
            _one_engine(model, f"auxiliary_models[{index}]") for index, model in enumerate(explorer.auxiliary_models)
        ],
        "runner_isolation": "thread",
        "max_retry_times": 0,
        "runner_state_report_interval": 0.0,
        "over_rollout": explorer.over_rollout.model_copy(update={"ratio": 0.0}),
        "dynamic_timeout": explorer.dynamic_timeout.model_copy(update={"enable": False}),
    }
    cluster = config.cluster.model_copy(update={"runtime": "local", "node_num": 1, "gpu_per_node": 0})
    return config.model_copy(
        update={"mode": Mode.EXPLORE, "cluster": cluster, "explorer": explorer.model_copy(update=update)}
    )


def _one_engine(model: InferenceModelConfig, name: str) -> InferenceModelConfig:
    update: dict[str, object] = {"engine_num": 1, "data_parallel_size": 1}
    if model.engine_type in VLLM and not has_gpu():
        logger.warning("explorer.%s: the torch engine in place of vLLM, because this machine has no GPU", name)
        kept = {key: value for key, value in model.extra_engine_args.items() if key in TORCH_ENGINE_ARGS}
        update |= {"engine_type": "torch", "extra_engine_args": kept}
        update |= {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    return model.model_copy(update=update)
