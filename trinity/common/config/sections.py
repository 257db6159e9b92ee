"""Sections `cluster`, `monitor`, `service`, `data_processor` and `log`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity.common.config.base import (
    GUIDE,
    OWN,
    TRINITY,
    Args,
    Count,
    IdleWith,
    Int,
    Natural,
    Port,
    Positive,
    Section,
    key,
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
    """Where metrics go besides `<job>/metrics.jsonl`, always written."""

    monitor_type: str | tuple[str, ...] = key(
        "tensorboard", "tensorboard, wandb, mlflow, swanlab, prometheus, or several as a list; empty: none.", TRINITY
    )
    monitor_args: Args | None = key(
        None, "Arguments of the monitor (wandb: base_url, api_key, ...); they win over environment variables.", GUIDE
    )
    verl_names: bool = key(
        False, "Metrics also under veRL's names, such as timing_s/update_actor; true for a file of veRL's.", OWN
    )
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
    detailed_stats: bool = key(
        False,
        "Log distributions too: std, p10, p50, p90 of rollout and evaluation metrics over tasks, and of lengths.",
        TRINITY,
    )
    cache_dir: str | None = key(None, "Folder of the monitor: <job>/monitor.", TRINITY, derived=True)


class DataJuicerServiceConfig(Section):
    """The Data-Juicer server."""

    server_url: str | None = key(None, "Address of a server that runs already: http://host:port.", GUIDE)
    auto_start: bool = key(False, "Start the server with the run; true where no section is written.", GUIDE)
    port: Port | None = key(None, "Port of a server started with the run; null or 0: a free one.", GUIDE)
    python: str | None = key(
        None,
        "Python of the environment with py-data-juicer; null: TRINITY_DATA_JUICER_PYTHON, else that of the run.",
        OWN,
    )
    token: str | None = key(None, "Token of a server at server_url; null: TRINITY_DATA_JUICER_TOKEN.", OWN, secret=True)
    allowed_operators: tuple[str, ...] = key(
        (), "Operators that may do anything, beside those that only compute on rows.", OWN
    )
    timeout: Positive = key(600.0, "Longest wait for an answer in seconds, > 0.", OWN)
    start_timeout: Positive = key(120.0, "Longest wait for the start in seconds, > 0.", OWN)


class ServiceConfig(Section):
    """Outside services."""

    data_juicer: DataJuicerServiceConfig | None = key(None, "The Data-Juicer server.", GUIDE)


class OperatorConfig(Section):
    """One operator of a pipeline."""

    name: str = key("", "Name of the operator.", GUIDE)
    args: Args = key({}, "Arguments of the operator.", GUIDE)


class TaskPipelineConfig(Section):
    """Processing of tasks before the run."""

    num_process: Count = key(4, "Worker processes.", GUIDE)
    operators: tuple[OperatorConfig, ...] = key((), "Operators in order.", GUIDE)
    inputs: tuple[str, ...] = key((), "Raw datasets.", GUIDE)
    target_fields: tuple[str, ...] = key(
        (), "Columns that are kept, the first is the text of operators that name none; empty: all.", GUIDE
    )
    config_path: str | None = key(None, "File of a Data-Juicer recipe, in place of operators.", TRINITY)
    output: Args | None = key(None, "`path` of the folder that is written; null: that of the taskset.", TRINITY)
    priority_weights: dict[str, float] | None = key(
        None,
        "Weights of the task priority: difficulty, diversity, usage_frequency, quality; null: as published.",
        TRINITY,
    )
    order_method: Literal["sort", "shuffle", "keep", "folding"] = key(
        "sort", "Order of the tasks: by priority, at random, as they came, or by priority in layers.", TRINITY
    )
    folding_layers: Count = key(3, "Layers of order_method folding.", TRINITY)
    top_k: Annotated[Int, Field(ge=-1)] = key(-1, "Tasks that are kept, at least 1; -1: all.", TRINITY)


class ExperiencePipelineConfig(Section):
    """Processing of experiences before they are stored."""

    operators: tuple[OperatorConfig, ...] = key((), "Operators in order.", GUIDE)
    max_refill_batches: Natural = key(
        0,
        "Further tasks of an explore step, in batches of buffer.batch_size, for those that operators dropped; 0: none.",
        OWN,
        idle_with=(IdleWith("operators", values=((),), why="nothing is dropped"),),
    )
    save_input: bool = key(
        False, "Keep the experiences as they came into the pipeline, before the operators, too.", OWN
    )
    input_save_path: str | None = key(
        None,
        "Database URL, SQLite file or JSON lines file of what came in; null: <job>/buffer/explorer_output.db.",
        TRINITY,
        idle_with=(IdleWith("save_input", values=(False,), why="the input is not kept"),),
    )
    input_copy_path: str | None = key(None, "JSON lines file beside it, from input_save_path.", OWN, derived=True)
    inputs: dict[str, Args] = key(
        {}, "Sources of experiences, always the explorer; may only repeat input_save_path.", TRINITY
    )
    output: Args | None = key(
        None, "Destination of experiences, always trainer_input.experience_buffer; may only repeat it.", TRINITY
    )


class DataProcessorConfig(Section):
    """Pipelines over tasks and experiences."""

    task_pipeline: TaskPipelineConfig | None = key(None, "Processing of tasks before the run.", GUIDE)
    experience_pipeline: ExperiencePipelineConfig = section(
        ExperiencePipelineConfig, "Processing of experiences before they are stored."
    )


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class LogConfig(Section):
    """Log files `<job>/log/<actor>.log`."""

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = key(
        "INFO", "Log level, in upper or lower case: debug, info, warning or error.", GUIDE
    )
    group_by_node: bool = key(False, "One folder per node: <job>/log/<node_ip>/<actor>.log.", GUIDE)
