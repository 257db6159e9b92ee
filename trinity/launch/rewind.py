"""Resuming from an older checkpoint (`resume_mode: resume_path`)."""

from __future__ import annotations

import json
from pathlib import Path

from trinity.common.checkpoint import MANIFEST, CheckpointStore, verify_checkpoint
from trinity.common.errors import CheckpointError
from trinity.utils.disk import write_atomically
from trinity.utils.log import get_logger

logger = get_logger("launch")

NOTE = "rewound.json"


def rewound(checkpoints: CheckpointStore, path: Path) -> Path | None:
    """Return the checkpoint from which a run that asks for `path` continues.

    The first time, that is `path`, and newer checkpoints are renamed to `<name>.left_<N>`, so that nothing continues
    from what this run leaves. Later, while the same path is asked for, it is the newest: what was learned since then is
    not thrown away by an interruption.

    Raises:
        CheckpointError: it is no whole checkpoint of this job (E7044, E7001).
    """
    job_dir = checkpoints.job_dir
    target, step = _target(checkpoints, path)
    if _was_asked(job_dir, step):
        return checkpoints.latest()
    for later in [number for number in checkpoints.steps() if number > step]:
        folder = job_dir / f"global_step_{later}"
        number = 1 + sum(1 for _ in job_dir.glob(f"{folder.name}.left_*"))
        folder.rename(folder.with_name(f"{folder.name}.left_{number}"))
        logger.warning("resume_mode resume_path: %s is left behind as %s.left_%d", folder, folder.name, number)
    write_atomically(job_dir / NOTE, json.dumps(step))
    return target


def goes_back(checkpoints: CheckpointStore, path: Path) -> bool:
    """Return whether resuming from `path` skips newer checkpoints.

    A finished job then continues.

    Raises:
        CheckpointError: as of `rewound`.
    """
    if is_foreign(checkpoints, path):
        return False
    _, step = _target(checkpoints, path)
    return not _was_asked(checkpoints.job_dir, step) and any(number > step for number in checkpoints.steps())


def is_foreign(checkpoints: CheckpointStore, path: Path) -> bool:
    """Return whether a path is a checkpoint of another program.

    It is outside of the job's folder, has no manifest, and holds a policy as shards of ranks.
    """
    target = path.expanduser().absolute()
    is_elsewhere = target.parent.resolve() != checkpoints.job_dir.absolute().resolve()
    has_shards = any((target / "actor").glob("model_world_size_*_rank_*.pt"))
    return is_elsewhere and has_shards and not (target / MANIFEST).is_file()


def _target(checkpoints: CheckpointStore, path: Path) -> tuple[Path, int]:
    job_dir, target = checkpoints.job_dir, path.expanduser().absolute()
    if target.parent.resolve() != job_dir.absolute().resolve():
        raise CheckpointError(
            f"resume_from_path: {target} is not a checkpoint of {job_dir}, whose data, buffer and explorers would not "
            "fit it; to start from the weights of another job, give its actor/huggingface as model.model_path",
            code="E7044",
        )
    return target, int(verify_checkpoint(target)["step"])


def _was_asked(job_dir: Path, step: int) -> bool:
    note = job_dir / NOTE
    return note.exists() and json.loads(note.read_text(encoding="utf-8")) == step
