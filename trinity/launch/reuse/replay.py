"""`trinity replay`: a training step once more, and with other settings.

    weights before the step <- the newest checkpoint before it, and the steps since then trained again
    rows of the step        <- the ledger or the dataset, in the order of its batch
    loss, gradient          <- the trainer's own worker, which trains and is thrown away

Nothing of the run is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from trinity.common.config import Config
from trinity.common.config.resolved import num_workers
from trinity.common.errors import ConfigError, DataError
from trinity.common.experience import Experience
from trinity.explorer.assembly import build_advantage_fn
from trinity.launch.process import prepare_process, use_deterministic_algorithms
from trinity.launch.reuse.batches import PastBatches, trains_on_dataset
from trinity.launch.reuse.past_run import PastRun, is_compared, refuse_other_keys, stored_experiences
from trinity.trainer.verl.observation import Observer, RowContribution
from trinity.trainer.verl.worker import ActorWorker
from trinity.utils.log import get_logger
from trinity.utils.plugin_loader import load_plugins

logger = get_logger("launch")

EFFECTIVE = ("algorithm", "trainer.trainer_config.actor_rollout_ref", "trainer.trainer_config.critic")
WITHOUT_EFFECT = tuple(
    f"algorithm.{name}" for name in ("algorithm_type", "repeat_times", "sample_strategy", "sample_strategy_args")
)
OF_ADVANTAGE = ("algorithm.advantage_fn", "algorithm.advantage_fn_args")


@dataclass(frozen=True)
class Computed:
    """A training step as it was computed.

    Attributes:
        metrics: of the trainer, without times.
        rows: what each row contributed.
        num_left_out: experiences of the step that its advantage function does not train.
    """

    metrics: dict[str, float]
    rows: list[RowContribution]
    num_left_out: int = 0


@dataclass(frozen=True)
class Replayed:
    """A training step as logged, computed again, and with other settings.

    Attributes:
        step: its number.
        weights: where the weights before it come from.
        trained_again: the steps that were computed on the way from there.
        experiences: of the step, in the order of its batch.
        logged: metrics of the run; empty where it logged none.
        own: with the run's own settings.
        other: with other settings; None if none were given.
        overrides: these settings.
        reason: why the bits may differ from those of the run; empty where they must not.
    """

    step: int
    weights: str
    trained_again: list[int]
    experiences: list[Experience]
    logged: dict[str, float]
    own: Computed
    other: Computed | None = None
    overrides: Sequence[str] = ()
    reason: str = ""

    def differing(self) -> dict[str, tuple[float, float]]:
        """Return the metrics that differ from the run's: logged and computed."""
        found = {
            name: (value, self.own.metrics[name]) for name, value in self.logged.items() if name in self.own.metrics
        }
        return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class _Bench:
    """What a replay computes on."""

    run: PastRun
    batches: PastBatches
    folder: Path


def replayed(run: PastRun, step: int, *, overrides: Sequence[str] = ()) -> Replayed:
    """Compute a training step of a run again.

    Args:
        run: the run.
        step: number of the step.
        overrides: `a.b=c`, other settings of the algorithm or of the trainer's models.

    Raises:
        ConfigError: a setting that has no effect here (E1923).
        DataError: the step is not among those of the run (E4070), a payload was pruned (E4071), or the rows of its
            dataset are others now (E4073).
        CheckpointError: a checkpoint cannot be read.
    """
    own = _alone(run.config())
    without = (*WITHOUT_EFFECT, *(OF_ADVANTAGE if trains_on_dataset(own) else ()))
    refuse_other_keys(overrides, known=EFFECTIVE, without=without, what="a replayed step")
    other = _alone(run.config(overrides)) if overrides else None
    prepare_process(own.model.model_path, deterministic=own.deterministic)
    load_plugins(run.all_plugin_dirs())
    if own.deterministic:
        use_deterministic_algorithms()
    with (
        tempfile.TemporaryDirectory(prefix="trinity-replay-") as folder,
        closing(PastBatches(run, own, folder=Path(folder))) as batches,
    ):
        return _replayed(_Bench(run, batches, Path(folder)), step, own, other, overrides)


def _replayed(bench: _Bench, step: int, own: Config, other: Config | None, overrides: Sequence[str]) -> Replayed:
    start = bench.run.checkpoint_before(step)
    first = 1 + (0 if start is None else int(start.name.rsplit("_", 1)[1]))
    bench.batches.begin(start, step)  # before anything is computed
    again = list(range(first, step))
    worker = _worker(bench, own, start)
    for number in again:
        logger.info("training step %d again, on the way to step %d", number, step)
        worker.train_step(bench.batches.of(number), number)
    if again and other is not None:
        start = bench.folder / "before"
        worker.save(start, hf=False)
    experiences = bench.batches.of(step)
    computed = _computed(worker, experiences, step)
    del worker
    changed = None
    if other is not None:
        rows, left_out = _with_advantages(bench, (own, other), experiences, step, overrides)
        changed = _computed(_worker(bench, other, start), rows, step, num_left_out=left_out)
    return Replayed(
        step=step,
        weights="the model that the run began with" if first == 1 else f"global_step_{first - 1}",
        trained_again=again,
        experiences=experiences,
        logged=bench.run.metrics(own, step),
        own=computed,
        other=changed,
        overrides=overrides,
        reason=_why_bits_differ(own, bench.run),
    )


def _worker(bench: _Bench, config: Config, start: Path | None) -> ActorWorker:
    # Batches of skipped steps are written beside the checkpoints of the run otherwise.
    config = config.model_copy(update={"checkpoint_job_dir": str(bench.folder)})
    worker = ActorWorker(config, tokenizer=None, total_steps=bench.batches.planned_steps())
    if start is not None:
        worker.load(start)
    return worker


def _computed(worker: ActorWorker, experiences: Sequence[Experience], step: int, *, num_left_out: int = 0) -> Computed:
    if not experiences:
        raise DataError("with these settings the step has no experience left to train on", code="E4072")
    observer = worker.actor.observer = Observer(worker.loss_fn, normalizer=worker.actor.settings.normalizer)
    metrics = worker.train_step(experiences, step)
    return Computed({k: v for k, v in metrics.items() if is_compared(k, v)}, observer.rows, num_left_out)


def _with_advantages(
    bench: _Bench, configs: tuple[Config, Config], experiences: list[Experience], step: int, overrides: Sequence[str]
) -> tuple[list[Experience], int]:
    """Return the experiences with other advantages, and how many drop out.

    The groups are those of the store. Advantages that the trainer computes are left to it.

    Args:
        bench: where the groups are.
        configs: of the run, and with other settings.
        experiences: the batch of the step.
        step: its number.
        overrides: the other settings.
    """
    own, other = configs
    keys = [override.partition("=")[0].strip() for override in overrides]
    if not any(key == each or key.startswith(f"{each}.") for key in keys for each in OF_ADVANTAGE):
        return experiences, 0
    function = build_advantage_fn(other)
    records = bench.batches.records
    if function is None or records is None:
        return experiences, 0
    if (own.algorithm.advantage_fn_args or {}).get("duplicate_experiences"):
        raise ConfigError(
            "--set algorithm.advantage_fn: the run repeated groups (advantage_fn_args.duplicate_experiences), so that "
            "the groups of the store are not those that it compared; set keys of the loss alone",
            code="E1924",
        )
    rollouts = bench.batches.rollouts  # without demonstrations
    made: dict[str, Experience] = {}
    buffer, wanted = bench.run.buffer_of(own), {each.eid.uid for each in rollouts}
    used = records.of_step(bench.run.name, step, buffer=buffer)
    # Not from their ids: tasks that begin one by one end in any step, and explorers apart have equal steps.
    places = sorted({(row.producer, row.explore_step) for row in used if row.uid in wanted})
    for producer, explore_step in places:
        rows = records.explored(bench.run.name, explore_step, buffer=buffer, producer=producer)
        group = stored_experiences(rows, what=f"the advantages of explore step {explore_step}")
        kept, _ = function.process(group)
        made |= {each.eid.uid: each for each in kept}
    found = [made[each.eid.uid] for each in rollouts if each.eid.uid in made]
    return bench.batches.again(step, found), len(rollouts) - len(found)


def _alone(config: Config) -> Config:
    """Return the configuration for one worker in this process."""
    update = {"runtime": "local", "node_num": 1, "gpu_per_node": 0, "trainer_gpu_num": 0}
    cluster = config.cluster.model_copy(update=update)
    trainer = config.trainer.model_copy(update={"num_workers": 1})
    return config.model_copy(update={"cluster": cluster, "trainer": trainer})


def _why_bits_differ(config: Config, run: PastRun) -> str:
    workers = num_workers(run.config())
    if workers > 1:
        return f"the run had {workers} trainer workers, and here is one: sums have another order"
    return "" if config.deterministic else "the run was not deterministic: threads may add in another order"
