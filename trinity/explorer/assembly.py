"""From a configuration to the explorer's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.building import build
from trinity.buffer.buffer import kept_bytes
from trinity.buffer.operators import build_operators
from trinity.buffer.operators.data_juicer import DataJuicer
from trinity.buffer.pipelines.experience_pipeline import ExperiencePipeline
from trinity.buffer.pipelines.pipeline_input import PipelineInput
from trinity.buffer.pipelines.reward_model import NAME, RewardModelScores
from trinity.buffer.prompt_limit import PromptLimit
from trinity.buffer.task_mixture import TaskMixture
from trinity.buffer.task_prompts import TaskPrompts
from trinity.buffer.task_reader import TaskReader
from trinity.common.config.resolved import input_log, training_tasksets
from trinity.common.constants import BENCH
from trinity.common.models.chat_template import load_tokenizer
from trinity.common.models.reward_models import REWARD_MODELS
from trinity.explorer.advantage_inputs import NeededInputs, input_completer, needed_inputs
from trinity.explorer.answers import AnswerFiles
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.evaluator import EVAL, EvalTaskset, Evaluator
from trinity.explorer.isolation.place import RunnerPlace
from trinity.explorer.pacing import DynamicTimeout, OverRollout
from trinity.explorer.scheduler import Scheduler, SchedulerSettings
from trinity.explorer.task_pipeline import LOG, service_of
from trinity.explorer.wrappers import auxiliary_wrappers, wrapper
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config, TasksetConfig
    from trinity.common.models.inference_model import InferenceModel
    from trinity.common.models.reward_models import RewardModel
    from trinity.runtime.base import Runtime

logger = get_logger("explorer")


@dataclass
class ExplorerParts:
    """What the rollout loop works with.

    Attributes:
        reader: tasks to explore.
        scheduler: runs them.
        evaluator: evaluates the model.
        pipeline: what happens to experiences before they are stored.
        needs: what the advantage function asks of the rollouts.
    """

    reader: TaskReader | TaskMixture
    scheduler: Scheduler
    evaluator: Evaluator
    pipeline: ExperiencePipeline
    needs: NeededInputs = NeededInputs()


def build_parts(
    config: Config,
    engine: InferenceModel,
    auxiliary: Sequence[InferenceModel] = (),
    place: RunnerPlace | None = None,
) -> ExplorerParts:
    """Return the parts of an explorer that `config` describes.

    They use `engine` and the engines of the auxiliary models.

    `place` has the processes of runners that are no threads.

    Raises:
        ConfigError: a name that no registry knows, or arguments that do not fit.
        DataError: a dataset that cannot be used.
    """
    needs = needed_inputs(config)
    scheduler = build_scheduler(config, engine, auxiliary=auxiliary, needs=needs, place=place)
    evaluator = build_evaluator(config, scheduler)
    pipeline = build_pipeline(config)
    clients = zip(config.explorer.auxiliary_models, scheduler.auxiliary_models, strict=True)
    pipeline.set_auxiliary_model({section.name or i: client for i, (section, client) in enumerate(clients)})
    return ExplorerParts(build_reader(config), scheduler, evaluator, pipeline, needs)


def build_evaluator(config: Config, scheduler: Scheduler) -> Evaluator:
    """Return the evaluator of all evaluation tasksets.

    It keeps the answers in the folders `eval` and `bench` of the job.

    Raises:
        DataError: a dataset that cannot be used.
    """
    own = config.explorer.rollout_model.temperature
    answers = {
        folder: AnswerFiles(
            Path(config.checkpoint_job_dir) / folder,
            explorer=config.explorer.name,
            limit=kept_bytes(config),
            temperature=config.model.temperature if own is None else own,
        )
        for folder in (EVAL, BENCH)
    }
    tasksets = build_eval_tasksets(config)
    return Evaluator(tasksets, scheduler, answers=answers, is_detailed=config.monitor.detailed_stats)


def build_scheduler(
    config: Config,
    engine: InferenceModel,
    *,
    auxiliary: Sequence[InferenceModel] = (),
    needs: NeededInputs | None = None,
    place: RunnerPlace | None = None,
) -> Scheduler:
    """Return the scheduler with `engine_num` x `runner_per_model` runners.

    Runners are threads, or in processes of `place`.

    Raises:
        ConfigError: the advantage function asks for what the configuration does not give.
    """
    explorer = config.explorer
    settings = SchedulerSettings(
        num_runners=num_runners(config),
        max_timeout=explorer.max_timeout,
        max_retry_times=explorer.max_retry_times,
        max_repeat_times_per_runner=explorer.max_repeat_times_per_runner,
        concurrent_mode=explorer.concurrent_mode,
        is_deterministic=config.deterministic,
        over_rollout=over_rollout_of(config),
        dynamic_timeout=dynamic_timeout_of(config),
        report_interval_s=explorer.runner_state_report_interval,
    )
    endpoint = Endpoint(limits=EndpointLimits.of(config))
    model, others = wrapper(config, engine, endpoint=endpoint), auxiliary_wrappers(config, auxiliary, endpoint)
    completer = input_completer(config, needs or NeededInputs(), student=model, others=others)
    return Scheduler(engine, model, settings=settings, auxiliary_models=others, completer=completer, place=place)


def num_runners(config: Config) -> int:
    """Return how many tasks are under way at once."""
    return config.explorer.rollout_model.engine_num * config.explorer.runner_per_model


def runner_place(
    config: Config, engine: InferenceModel, auxiliary: Sequence[InferenceModel], runtime: Runtime
) -> RunnerPlace | None:
    """Return where the runners' processes are; None if runners are threads."""
    if config.explorer.runner_isolation != "process":
        return None
    return RunnerPlace(runtime, config, (engine, *auxiliary), runner_count=num_runners(config))


def over_rollout_of(config: Config) -> OverRollout | None:
    """Return which tasks of a batch may be abandoned; None: no task."""
    section = config.explorer.over_rollout
    if section.ratio == 0:
        return None
    return OverRollout(section.ratio, section.wait_after_min, section.return_partial_tasks)


def dynamic_timeout_of(config: Config) -> DynamicTimeout | None:
    """Return how measured durations shorten an attempt's deadline, or None."""
    section = config.explorer.dynamic_timeout
    return DynamicTimeout(section.ratio, section.warmup_min_steps) if section.enable else None


def build_pipeline(config: Config) -> ExperiencePipeline:
    """Return the experience pipeline.

    It has the reward model, the configured operators, and the advantage function if that works on groups.

    Raises:
        ConfigError: an unknown operator or advantage function, or arguments that it does not take.
    """
    operators = build_operators(config.data_processor.experience_pipeline.operators)
    for _, operator in operators:
        if isinstance(operator, DataJuicer):
            operator.use_service(service_of(config), log=Path(config.checkpoint_job_dir) / LOG, seed=config.seed)
    reward_model = build_reward_model(config)
    if reward_model is not None:
        operators.insert(0, (NAME, RewardModelScores(reward_model)))
    return ExperiencePipeline(operators, build_advantage_fn(config), timeout_s=config.explorer.max_timeout)


def build_reward_model(config: Config) -> RewardModel | None:
    """Return the reward model; None if none is enabled.

    Raises:
        ConfigError: an unknown worker, or arguments that it does not take.
        EnvironmentProblem: its model cannot be used.
    """
    section = config.trainer.trainer_config.reward_model
    if not section.enable:
        return None
    key = "trainer.trainer_config.reward_model.worker_args"
    made: RewardModel = REWARD_MODELS.build(
        section.worker, section.worker_args, config, key=key, code="E1703", names_only=True
    )
    return made


def build_advantage_fn(config: Config) -> Any:
    """Return the advantage function of the pipeline.

    None if there is none, or if the trainer computes it.

    Raises:
        ConfigError: an unknown name, or arguments that the function does not take (E1302).
    """
    advantage_class = ADVANTAGE_FN.get(config.algorithm.advantage_fn)
    if advantage_class is None or advantage_class.compute_in_trainer():
        return None
    return build(config.algorithm, "advantage_fn")


def build_reader(config: Config) -> TaskReader | TaskMixture:
    """Return the reader of the tasks to explore; write down the bad rows.

    Raises:
        DataError: a dataset that cannot be used.
    """
    reader = read_tasksets(config)
    for each in reader.by_number.values():
        _report_bad_rows(each, config)
    return reader


def prompt_limit(config: Config, tasksets: Sequence[TasksetConfig]) -> PromptLimit | None:
    """Return the longest prompt of tasksets, None where all are kept.

    Raises:
        EnvironmentProblem: the tokenizer cannot be loaded.
    """
    longest = config.model.max_prompt_tokens
    if longest is None or all(taskset.long_prompts == "keep" for taskset in tasksets):
        return None
    return PromptLimit(TaskPrompts(load_tokenizer(config.model), model=config.model), longest)


def read_tasksets(config: Config) -> TaskReader | TaskMixture:
    """Return the reader of the tasksets that are explored for training.

    Raises:
        DataError: a dataset that cannot be used.
    """
    tasksets = training_tasksets(config)
    assert tasksets, "the rules of the configuration let an explorer without tasks pass"
    size, seed, ratio = config.buffer.batch_size, config.seed, config.buffer.max_bad_row_ratio
    limit = prompt_limit(config, tasksets)
    if len(tasksets) == 1:
        return TaskReader(tasksets[0], batch_size=size, seed=seed, max_bad_row_ratio=ratio, limit=limit)
    epochs = 0 if config.buffer.total_steps else config.buffer.total_epochs
    readers = [TaskReader(each, seed=seed, total_epochs=0, max_bad_row_ratio=ratio, limit=limit) for each in tasksets]
    return TaskMixture(readers, batch_size=size, seed=seed, total_epochs=epochs)


def build_eval_tasksets(config: Config) -> list[EvalTaskset]:
    """Return every evaluation taskset with all of its tasks.

    Raises:
        DataError: a dataset that cannot be used.
    """
    tasksets = []
    trained = {taskset.name for taskset in training_tasksets(config)}
    for taskset in config.buffer.explorer_input.eval_tasksets:
        place = "eval" if taskset.name in trained else ""
        ratio, limit = config.buffer.max_bad_row_ratio, prompt_limit(config, [taskset])
        reader = TaskReader(taskset, is_eval=True, max_bad_row_ratio=ratio, limit=limit)
        _report_bad_rows(reader, config, place=place)
        tasksets.append(EvalTaskset(taskset.name, reader.tasks(), taskset.repeat_times or 1, reader.fingerprint))
    return tasksets


def _report_bad_rows(reader: TaskReader, config: Config, *, place: str = "") -> TaskReader:
    file = reader.write_quarantine(Path(config.checkpoint_job_dir) / "buffer" / "quarantine" / place)
    if file is not None:
        logger.warning(
            "taskset %r: %d of %d rows cannot be used and are left out; they are listed in %s; first: %s",
            reader.config.name, len(reader.quarantined), len(reader.quarantined) + len(reader), file,
            reader.quarantined[0],
        )  # fmt: skip
    return reader


def experience_buffer(config: Config) -> str:
    """Return the name of the buffer between explorer and trainer."""
    buffer = config.buffer.trainer_input.experience_buffer
    return "experience_buffer" if buffer is None else buffer.name


def pipeline_input(config: Config) -> PipelineInput | None:
    """Return where what comes into the pipeline is kept; None if it is not."""
    section = config.data_processor.experience_pipeline
    if not section.save_input:
        return None
    keeps_all = section.input_save_path != input_log(config) and config.buffer.keep_payloads is None
    return PipelineInput.of(
        section,
        producer=config.explorer.name,
        scope=store_scope(config),
        limit=None if keeps_all else kept_bytes(config),
    )


def store_scope(config: Config) -> dict[str, str]:
    """Return `run` and `stage` of this job's rows in the store.

    The job's name contains the stage's.
    """
    return {"run": f"{config.project}/{config.name}", "stage": ""}
