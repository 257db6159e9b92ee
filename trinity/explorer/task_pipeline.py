"""The task pipeline beside the engines that its operators may ask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.buffer.pipelines.task_pipeline import CACHE, TaskPipeline
from trinity.common.config.sections import DataJuicerServiceConfig
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.wrappers import auxiliary_wrappers

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel

LOG = "log/data_juicer.log"


def service_of(config: Config) -> DataJuicerServiceConfig:
    """Return how the server is found; it is started where nothing is said."""
    return config.service.data_juicer or DataJuicerServiceConfig(auto_start=True)


def process_tasks(config: Config, auxiliary: Sequence[InferenceModel] = ()) -> dict[str, Any] | None:
    """Make the tasks that the explorer reads; return the report.

    None without a task pipeline.

    Args:
        config: resolved configuration.
        auxiliary: engines of `explorer.auxiliary_models`.

    Raises:
        DataError: the tasks cannot be read, or none is left.
        ConfigError: an operator or a model is not known.
        ServiceError: the server failed.
    """
    section, taskset = config.data_processor.task_pipeline, config.buffer.explorer_input.taskset
    if section is None or taskset is None:
        return None
    endpoint = Endpoint(limits=EndpointLimits.of(config))
    wrappers = auxiliary_wrappers(config, auxiliary, endpoint)
    named = zip(config.explorer.auxiliary_models, wrappers, strict=True)
    job = Path(config.checkpoint_job_dir)
    pipeline = TaskPipeline(
        section,
        taskset,
        service_of(config),
        cache=Path(config.checkpoint_root_dir) / config.project / CACHE,
        seed=config.seed,
        log=job / LOG,
        timeout_s=config.synchronizer.sync_timeout,
        max_bad_row_ratio=config.buffer.max_bad_row_ratio,
    )
    try:
        return pipeline.run({each.name or i: wrapper for i, (each, wrapper) in enumerate(named)})
    finally:
        endpoint.close()
