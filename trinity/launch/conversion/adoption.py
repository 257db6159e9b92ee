"""A checkpoint of veRL as the one that a run continues from.

```
.../global_step_N/actor, critic  (veRL's)      weights, optimizer, schedule, random generators
<job>/global_step_N              (ours)        the same files, and a trainer and an explorer that stand at step N
```

What veRL does not have in our form begins as in a new run: experiences, metrics, the state of operators. The tasks of
the first N steps count as read; veRL's own order of the rows is not known here.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trinity.algorithm.planning import num_rollouts
from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config
from trinity.common.config.resolved import rhythm, schema_of
from trinity.common.constants import LORA_FOLDER, VERL_DATA, Mode
from trinity.common.errors import CheckpointError
from trinity.common.models.shards import RankShards, check_intact, read_state, shard_files
from trinity.common.tensor_files import write_tensors_to
from trinity.explorer.state import ExplorerState
from trinity.synchronizer.schedule import sync_schedule
from trinity.trainer.state import TrainerState, write_explorer_part
from trinity.trainer.verl.random_state import random_state_of
from trinity.trainer.verl.settings import actor_of
from trinity.utils.caches import cache_dir
from trinity.utils.disk import write_atomically
from trinity.utils.log import get_logger

logger = get_logger("launch")

NOTE = "begun_from.json"
PARTS = ("actor", "critic")
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def adopted(config: Config, checkpoints: CheckpointStore, path: Path) -> Path | None:
    """Return the checkpoint from which a run that asks for `path` continues.

    The first time, `path` is copied to the job as a checkpoint of its step. Later it is the newest of the job.

    Args:
        config: resolved configuration of the run.
        checkpoints: of the job.
        path: a folder `global_step_N` of veRL.

    Raises:
        CheckpointError: the job has begun otherwise (E7044), or the checkpoint cannot be continued here (E7057).
    """
    source, note = path.expanduser().absolute(), checkpoints.job_dir / NOTE
    begun = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
    if begun == _name(source) and checkpoints.steps():
        return checkpoints.latest()
    if checkpoints.steps():
        raise CheckpointError(
            f"resume_from_path: {source} is of another program, and {checkpoints.job_dir} has checkpoints of its own; "
            "choose another `name` to begin from it",
            code="E7044",
        )
    step = int(source.name.rpartition("_")[2])
    explore_step = _explore_step(config, step, source)
    contents = actor_of(config).checkpoint.load_contents
    for part in PARTS:
        if (source / part).is_dir():
            _check(source / part, contents)
    state = TrainerState(
        step, f"{config.project}/{config.name}", monitor={"lines": 0, "samples": 0}, begun_from=str(source)
    )
    explorer = ExplorerState(explore_step=explore_step, model_version=step).as_json()

    def fill(folder: Path) -> None:
        for part in PARTS:
            if (source / part).is_dir():
                _copy(source / part, folder / part, has_extra="extra" in contents)
        state.write(folder)
        write_explorer_part(folder, explorer, {})

    tell_rows(config, source, step)
    meta = {"run": state.run, "ledger_cut": step, "begun_from": str(source)}
    note.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(note, json.dumps(_name(source)))  # first: a kill between both is then no other beginning
    made = checkpoints.write(step, fill, meta=meta, keep=0)
    logger.info("continuing %s of veRL at step %d; the rows of the first %d steps count as read", source, step, step)
    return made


def _name(source: Path) -> str:
    """Return what a job remembers of a folder.

    Of the copy of an address that is not where the cache is.
    """
    cache = cache_dir("remote").absolute()
    return str(source.relative_to(cache) if source.is_relative_to(cache) else source)


def tell_rows(config: Config, source: Path, step: int) -> None:
    """Tell which rows veRL's loader has read, and what is not continued."""
    file = source / VERL_DATA
    taskset = config.buffer.explorer_input.taskset
    if not file.is_file() or taskset is None:
        return
    try:
        read = _batches_read(read_state(file, may_have_arrays=True))
        said = (
            f"its loader had read {read} batches of an epoch" if read is not None else "its loader is of a newer form"
        )
    except CheckpointError as error:
        read, said = None, error.args[0]
    order = taskset.data_selector.selector_type
    if order == "sequential" and read == step:
        logger.info("%s: %s, which are the rows of the first %d steps here", file, said, step)
        return
    logger.warning(
        "[W7059] %s: %s, and its order of the rows is not continued; those of the first %d steps in the order of "
        "selector %s count as read",
        file, said, step, order,
    )  # fmt: skip


def _batches_read(state: Any) -> int | None:
    """Return how many batches of its epoch torchdata's loader had given.

    The form of a state depends on whether the loader has workers; None: it is another one.
    """
    if not isinstance(state, dict):
        return None
    if "_num_yielded" in state:
        return int(state["_num_yielded"])
    snapshot = state.get("_snapshot")
    if not isinstance(snapshot, dict) or "_snapshot_step" not in snapshot:
        return None
    return int(snapshot["_snapshot_step"]) + int(state.get("_steps_since_snapshot", 0))


def _explore_step(config: Config, step: int, source: Path) -> int:
    """Return how many explore steps the first training steps have used.

    Raises:
        CheckpointError: the explorer cannot begin after them (E7057).
    """
    if schema_of(config) != "experience":
        return 0  # there is no explorer
    if config.mode != Mode.BOTH:
        raise CheckpointError(
            f"resume_from_path: {source} can begin a run of mode both, got {config.mode}: explorers that run apart "
            "would not know its step; give the result of `trinity convert checkpoint` as model.model_path",
            code="E7057",
        )
    explored, trained = rhythm(config, num_rollouts(config))
    schedule = sync_schedule(config)
    common = math.gcd(explored, trained) or 1
    explored, trained = explored // common, trained // common
    if step % trained or schedule.newest_at(step) != step or schedule.offset:
        raise CheckpointError(
            f"resume_from_path: no weights are published after step {step} of {source} in this run: "
            f"synchronizer.trainer_sync_interval must divide {step}, and sync_offset be 0; change them, or begin from "
            "another checkpoint",
            code="E7057",
        )
    return step // trained * explored


def _check(folder: Path, contents: Sequence[str]) -> None:
    """Check that a part can be continued, before it is copied."""
    weights = RankShards(folder)
    if (folder / LORA_FOLDER).is_dir() or any(".lora_" in name for name in weights.like):
        raise CheckpointError(
            f"{folder} holds an adapter, whose optimizer is not continued here; `trinity convert checkpoint` merges "
            "it, and the result is a model.model_path",
            code="E7057",
        )
    for kind, name in (("model", "model"), ("optim", "optimizer"), ("extra_state", "extra")):
        if name in contents:
            for file in shard_files(folder, kind):
                check_intact(file)
    if "optimizer" in contents:
        _check_optimizer(folder)


def _check_optimizer(folder: Path) -> None:
    files = shard_files(folder, "optim")
    state = read_state(files[0])
    entries: Any = state.get("state") if isinstance(state, dict) else None
    each: dict[str, Any] = next(iter(entries.values()), {}) if isinstance(entries, dict) else {}
    moment = each.get("exp_avg")
    if not each.keys() >= _MOMENTS or not isinstance(moment, Tensor):
        held = ", ".join(sorted(map(str, each))) or "no state"
        raise CheckpointError(
            f"{files[0]} holds {held} of a parameter, and the optimizer here is Adam, with step, exp_avg and "
            "exp_avg_sq; leave `optimizer` out of actor.checkpoint.load_contents to begin with a new one",
            code="E7057",
        )
    if moment.dim() == 1 and len(files) > 1 and not hasattr(moment, "device_mesh"):
        raise CheckpointError(
            f"{files[0]} is of FSDP 1, which keeps the moments of many parameters as one list; which are whose is not "
            "in the file. Leave `optimizer` out of actor.checkpoint.load_contents to begin with a new one",
            code="E7057",
        )


def _copy(source: Path, target: Path, *, has_extra: bool) -> None:
    """Copy a part; its random generators are written in our form."""
    shutil.copytree(source, target)
    for file in shard_files(target, "extra_state") if has_extra else ():
        state = read_state(file, may_have_arrays=True)
        schedule = {key: value for key, value in state["lr_scheduler"].items() if key != "lr_lambdas"}
        own = {"lr_scheduler": schedule, "num_skipped": 0, "skipped_in_a_row": 0, "functions": {}}
        write_tensors_to(file, own | {"rng": random_state_of(state.get("rng") or {})})
