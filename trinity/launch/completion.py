"""Whether a stage of a job is complete, and what it left."""

from __future__ import annotations

from pathlib import Path

from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config, Plan
from trinity.common.constants import Mode
from trinity.common.errors import CheckpointError
from trinity.launch.job import read_record
from trinity.launch.parts import part_of
from trinity.launch.rewind import goes_back


def finished_model(config: Config) -> Path | None:
    """Return the Hugging Face folder of a complete stage.

    None if the stage is not complete, or is to continue. One that has trained nothing is not complete.

    Raises:
        CheckpointError: the stage is complete but its model is gone.
    """
    job_dir = Path(config.checkpoint_job_dir)
    record = read_record(job_dir, part_of(config))
    if (
        config.mode in (Mode.EXPLORE, Mode.SERVE, Mode.BENCH)
        or record.get("status") != "done"
        or not record.get("training_step")
        or record.get("length") != length_of(config)
    ):
        return None
    model = job_dir / f"global_step_{record['training_step']}" / "actor" / "huggingface"
    if not (model / "config.json").is_file():
        raise CheckpointError(
            f"{job_dir} is recorded as complete but {model} does not exist; delete {job_dir} to run it again",
            code="E7013",
        )
    return model


def may_get_more(config: Config) -> bool:
    """Return whether a complete stage continues if an explorer joins.

    True for a part that runs apart and has no last training step (`trainer.total_steps` is null).
    """
    return part_of(config) is not None and config.trainer.total_steps is None


def is_to_go_back(config: Config, plan: Plan) -> bool:
    """Return whether a complete stage continues from an older checkpoint.

    The setting is `resume_mode: resume_path`.
    """
    verl, job_dir = config.trainer.trainer_config.trainer, Path(config.checkpoint_job_dir)
    path = Path(str(verl.resume_from_path))
    others = {Path(stage.config.checkpoint_job_dir).absolute() for stage in plan.stages} - {job_dir.absolute()}
    if verl.resume_mode != "resume_path" or path.expanduser().absolute().parent in others:
        return False
    return goes_back(CheckpointStore(job_dir), path)


def length_of(config: Config) -> list[int | None]:
    """Return the settings that decide how long a stage runs.

    A complete stage with a greater length continues.
    """
    return [config.trainer.total_steps, config.buffer.total_steps, config.buffer.total_epochs]
