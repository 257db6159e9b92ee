"""The newest Hugging Face weights of a job."""

from __future__ import annotations

from pathlib import Path

from trinity.common.checkpoint import CheckpointStore, verify_checkpoint
from trinity.common.config import Config
from trinity.common.errors import CheckpointError


def get_latest_hf_checkpoint_path(config: Config) -> str:
    """Return the folder with the newest Hugging Face weights of a job.

    It is `global_step_N/actor/huggingface` of the newest whole checkpoint that contains weights.

    Args:
        config: resolved configuration; its `checkpoint_job_dir` is the job's folder.

    Raises:
        CheckpointError: no checkpoint of the job has Hugging Face weights (E7003), or the newest that has is damaged.
    """
    job_dir = Path(config.checkpoint_job_dir)
    for step in reversed(CheckpointStore(job_dir).steps()):
        checkpoint = job_dir / f"global_step_{step}"
        folder = checkpoint / "actor" / "huggingface"
        if any(folder.glob("*.safetensors")):
            verify_checkpoint(checkpoint)
            return str(folder)
    raise CheckpointError(
        f"no checkpoint under {job_dir} has Hugging Face weights; trainer.save_hf_checkpoint must be last or always",
        code="E7003",
    )
