"""Sections `cluster`, `monitor`, `service`, `data_processor` and `log`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity.common.config.base import (
    GUIDE,
    LATER,
    OWN,
    TRINITY,
    Args,
    Count,
    IdleWith,
    Int,
    Natural,
    Port,
    Section,
    key,
    only,
    section,
)


class ClusterConfig(Section):
    """Machines of the run."""

    node_num: Natural = key(0, "Number of nodes; 0: as found.", GUIDE)
    gpu_per_node: Natural = key(0, "GPUs per node; 0: none on Ray, else as found.", GUIDE)
    ray_address: str = key(
        "auto",
        "Address of a Ray cluster; auto: none needed for one process.",
        TRINITY,
        verl_names=("ray_init", "ray_kwargs"),
    )
    runtime: Literal["auto", "local", "ray"] = key("auto", "Where the components run; local: this process.", OWN)
    total_gpu_num: Natural | None = key(None, "All GPUs of the run.", TRINITY, derived=True)
    explorer_gpu_num: Natural | None = key(None, "GPUs of the explorer.", TRINITY, derived=True)
    rollout_gpu_num: Natural | None = key(None, "GPUs of the rollout engines.", TRINITY, derived=True)
    auxiliary_model_gpu_num: Natural | None = key(None, "GPUs of auxiliary models.", TRINITY, derived=True)
    trainer_gpu_num: Natural | None = key(None, "GPUs of the trainer.", TRINITY, derived=True)
    trainer_node_num: Natural | None = key(None, "Nodes of the trainer.", TRINITY, derived=True)
    trainer_gpu_num_per_node: Natural | None = key(None, "GPUs of the trainer per node.", TRINITY, derived=True)


class MonitorConfig(Section):
    """Destinations of metrics besides `<job>/metrics.jsonl`, always written."""

    monitor_type: str = key("tensorboard", "tensorboard, wandb, mlflow or swanlab.", TRINITY)
    monitor_args: Args | None = key(None, "Arguments of the monitor (wandb: base_url, api_key, ...).", GUIDE)
    enable_ray_timeline: bool = key(
        False,
        "Write <job>/monitor/timeline.json.",
        GUIDE,
        idle_with=(
            IdleWith(
                "cluster.runtime", but=("ray",), instead="remove it, or write `cluster.runtime: ray`", code="W3407"
            ),
        ),
    )
    detailed_stats: bool = key(False, "Log the distribution of rollout metrics too.", TRINITY, support=only(False))
    cache_dir: str | None = key(None, "Folder of the monitor: <job>/monitor.", TRINITY, derived=True)


class DataJuicerServiceConfig(Section):
    """The Data-Juicer server."""

    server_url: str | None = key(None, "Address of the server.", GUIDE)
    auto_start: bool = key(False, "Start the server with the run.", GUIDE)
    port: Port | None = key(None, "Port of a server started with the run.", GUIDE)


class ServiceConfig(Section):
    """Outside services."""

    data_juicer: DataJuicerServiceConfig | None = key(None, "The Data-Juicer server.", GUIDE, support=LATER)


class OperatorConfig(Section):
    """One operator of a pipeline."""

    name: str = key("", "Name of the operator.", GUIDE)
    args: Args = key({}, "Arguments of the operator.", GUIDE)


class TaskPipelineConfig(Section):
    """Processing of tasks before the run."""

    num_process: Count = key(4, "Worker processes.", GUIDE)
    operators: tuple[OperatorConfig, ...] = key((), "Operators in order.", GUIDE)
    inputs: tuple[str, ...] = key((), "Raw datasets.", GUIDE)
    target_fields: tuple[str, ...] = key((), "Columns that are kept.", GUIDE)
    config_path: str | None = key(None, "File of a Data-Juicer recipe.", TRINITY)
    output: Args | None = key(None, "Taskset that is written; null: the explorer's.", TRINITY)
    priority_weights: dict[str, float] | None = key(None, "Weights of the task priority.", TRINITY)
    top_k: Annotated[Int, Field(ge=-1)] = key(-1, "Tasks that are kept; -1: all.", TRINITY)


class ExperiencePipelineConfig(Section):
    """Processing of experiences before they are stored."""

    operators: tuple[OperatorConfig, ...] = key((), "Operators in order.", GUIDE)
    save_input: bool = key(False, "Keep the experiences as they entered the pipeline too.", OWN, support=only(False))
    input_save_path: str | None = key(
        None, "Where the input is kept; null: the run's store.", TRINITY, support=only(None)
    )
    inputs: Args = key({}, "Further sources.", TRINITY, support=only({}))
    output: Args | None = key(None, "Further sink.", TRINITY, support=only(None, {}))


class DataProcessorConfig(Section):
    """Pipelines over tasks and experiences."""

    task_pipeline: TaskPipelineConfig | None = key(None, "Processing of tasks before the run.", GUIDE, support=LATER)
    experience_pipeline: ExperiencePipelineConfig = section(
        ExperiencePipelineConfig, "Processing of experiences before they are stored."
    )


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class LogConfig(Section):
    """Log files `<job>/log/<actor>.log`."""

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = key(
        "INFO", "Level in any case: debug, info, warning or error.", GUIDE
    )
    group_by_node: bool = key(False, "One folder per node: <job>/log/<node_ip>/<actor>.log.", GUIDE)
