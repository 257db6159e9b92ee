"""`trinity.evaluate`: scores of a model, by the evaluation of mode bench."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Overrides, TasksetConfig, override_texts
from trinity.common.constants import Mode
from trinity.common.errors import CheckpointError, ConfigError
from trinity.program.reports import EvaluationReport, scores_of
from trinity.program.run import run

Tasks = str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Mapping[str, Any] | TasksetConfig
"""A dataset, rows, or the values of a taskset."""

DEFAULTS = {"default_workflow_type": "simple_workflow", "default_reward_fn_type": "accuracy_reward"}
"""How a task is evaluated by default: one response, compared with the truth of its row."""

ROWS = "tasks"


def evaluate(
    model: str | os.PathLike[str],
    tasks: Tasks,
    overrides: Overrides | None = None,
    *,
    taskset: Mapping[str, Any] | None = None,
    plugin_dirs: Sequence[str | Path] = (),
) -> EvaluationReport:
    """Return the scores of a model on tasks; the model is not changed.

    It is the evaluation of mode bench, whose files lie in a temporary folder unless `checkpoint_root_dir` is among the
    overrides.

    A taskset that names no workflow gets `simple_workflow` and `accuracy_reward`.

    Args:
        model: a Hugging Face folder or hub id, a checkpoint `global_step_N`, or a job folder, of which it takes the
            newest checkpoint.
        tasks: a file or a hub id; the rows themselves, as mappings; or a taskset with the keys of
            `buffer.explorer_input.eval_tasksets`.
        overrides: of the configuration, such as `{"explorer.runner_per_model": 64}`.
        taskset: more keys of the taskset, such as `{"format": {"prompt_key": "question"}}`.
        plugin_dirs: folders of the plugins that the tasks use.

    Raises:
        CheckpointError: the checkpoint has no Hugging Face weights (E7045).
        ConfigError: there is no row (E1306).
        TrinityError: as of `run`.
    """
    path = _model_folder(model)
    with tempfile.TemporaryDirectory(prefix="trinity_evaluation_") as folder:
        values = _taskset(tasks, Path(folder)) | dict(taskset or {})
        config = {
            "project": "evaluation",
            "name": "model",
            "mode": Mode.BENCH.value,
            "checkpoint_root_dir": folder,
            "model": {"model_path": str(path)},
            "buffer": {"explorer_input": DEFAULTS | {"eval_tasksets": [values]}},
            "explorer": {"eval_on_startup": True},
        }
        report = run(config, override_texts(overrides), plugin_dirs=plugin_dirs).stages[-1]
    metrics = report.evaluations[0]
    return EvaluationReport(Path(path), scores_of(metrics), metrics, report.seconds)


def _model_folder(model: str | os.PathLike[str]) -> str:
    """Return the Hugging Face folder or hub id that is meant.

    Raises:
        CheckpointError: the checkpoint has no Hugging Face weights, or a job folder has no checkpoint that verifies.
    """
    path = Path(model)
    is_checkpoint = path.name.startswith("global_step_")
    if not path.is_dir() or (path / "config.json").is_file():
        return os.fspath(model)
    store = CheckpointStore(path.parent if is_checkpoint else path)
    checkpoint = path if is_checkpoint else store.latest()
    if checkpoint is None:
        return os.fspath(model)
    if not store.manifest(checkpoint)["meta"].get("has_hf_weights"):
        raise CheckpointError(
            f"{checkpoint} has no Hugging Face weights; train with `trainer.save_hf_checkpoint: always`, or run the "
            "configuration of the job with `mode: bench`, which evaluates any checkpoint",
            code="E7045",
        )
    return str(checkpoint / "actor" / "huggingface")


def _taskset(tasks: Tasks, folder: Path) -> dict[str, Any]:
    """Return the keys of the taskset; rows are written into `folder`."""
    if isinstance(tasks, TasksetConfig):
        return tasks.model_dump(mode="json", exclude_unset=True)
    if isinstance(tasks, Mapping):
        return dict(tasks)
    if isinstance(tasks, str | os.PathLike):
        return {"name": Path(tasks).stem, "path": os.fspath(tasks)}
    rows = list(tasks)
    if not rows:
        raise ConfigError("evaluate: there is no task to evaluate on; give at least one", code="E1306")
    file = folder / f"{ROWS}.jsonl"
    file.write_text("".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return {"name": ROWS, "path": str(file)}
