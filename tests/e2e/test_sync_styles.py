"""Who decides when weights are synchronised: whole runs under each style, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import finish, make_run, stored
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

GRPO = {"algorithm_type": "grpo", "kl_loss_fn": "none"}


def make(folder: Path, *, deterministic: bool = False, **changes: Any) -> TinyRun:
    """Return a run of eight rollouts a step with keys changed."""
    return make_run(folder, GRPO).change(deterministic=deterministic, **changes)


def trained(run: TinyRun, steps: int) -> list[str]:
    """Return the ids of all experiences in the order in which the ledger says they were trained."""
    with stored(run) as store:
        held = store.open_consumer("experience_buffer", "trainer", run="tiny/run", cut=steps)
        return [uid for step in range(1, steps + 1) for uid in store.step_uids(held, step) or []]


def column(run: TinyRun, actor: str, name: str) -> list[float]:
    """Return a metric of every line that has it."""
    return [line[name] for line in run.lines(actor) if name in line]


def test_async_with_staleness_zero_is_fixed(tmp_path: Path, plugins: Path) -> None:
    fixed = make(tmp_path / "fixed", deterministic=True)
    bound = make(tmp_path / "async", deterministic=True, synchronizer__sync_style="fully_async")
    bound.change(synchronizer__max_staleness=0)
    for run in (fixed, bound):
        finish(run, plugins, steps=4)
    assert column(bound, "explorer", "rollout/model_version") == [0, 1, 2, 3]
    assert trained(bound, 4) == trained(fixed, 4)
    assert final_weights(bound, 4) == final_weights(fixed, 4)
    assert comparable_metrics(bound.job) == comparable_metrics(fixed.job)


@pytest.mark.parametrize(("limit", "method"), [(1, "memory"), (2, "checkpoint")])
def test_fully_async_keeps_its_bound_and_throws_nothing_away(
    tmp_path: Path, plugins: Path, limit: int, method: str
) -> None:
    run = make(tmp_path, synchronizer__sync_style="fully_async", synchronizer__max_staleness=limit)
    run.change(explorer__max_inflight_batches=3, synchronizer__sync_method=method)
    finish(run, plugins, steps=8)
    assert column(run, "explorer", "step") == list(range(1, 9)), "steps are reported in their order"
    ages = column(run, "trainer", "sample/staleness/max")
    assert len(ages) == 8 and max(ages) <= limit
    assert max(ages) > 0, "explorer and trainer worked at the same time"
    ids = trained(run, 8)
    assert len(ids) == len(set(ids)) == 64
    with stored(run) as store:
        counts = store.counts("experience_buffer", "tiny/run")
    assert (counts["ready"], counts["claimed"], counts["dropped"]) == (0, 0, {})


def test_the_bound_holds_where_a_batch_is_trained_in_two_steps_and_after_a_crash(tmp_path: Path, plugins: Path) -> None:
    run = make(tmp_path, synchronizer__sync_style="fully_async", synchronizer__max_staleness=2)
    run.change(buffer__train_batch_size=4, synchronizer__trainer_sync_interval=3, buffer__total_steps=6)
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(plugin_dirs=(plugins,))
    failpoints.configure("train.after_step=raise@6")
    try:
        with pytest.raises(RuntimeError, match="train.after_step"):
            run_plan(plan_run(run.folder / "run.yaml", options), options)
    finally:
        failpoints.configure("")
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None and result.stages[-1].training_step == 12
    ages = column(run, "trainer", "sample/staleness/max")
    assert len(ages) == 12 and max(ages) <= 2
    ids = trained(run, 12)
    assert len(ids) == len(set(ids)) == 48


def test_the_explorer_asks_every_interval_whatever_the_trainer_has_done(tmp_path: Path, plugins: Path) -> None:
    run = make(tmp_path, synchronizer__sync_style="dynamic_by_explorer", synchronizer__sync_interval=3)
    run.change(synchronizer__sync_offset=1)
    finish(run, plugins, steps=8)
    versions = column(run, "explorer", "rollout/model_version")
    assert versions[:4] == [0, 0, 0, 0], "the first question comes after interval and offset"
    assert versions[4] == versions[5] == versions[6] <= 4 and versions[4] <= versions[7] <= 7
    asked = len({version for version in versions if version})
    published = len(column(run, "trainer", "perf/sync_bytes"))
    assert published <= asked + 1, "the trainer publishes for a question, and at its end"


def test_the_explorer_takes_a_newer_version_at_its_next_step(tmp_path: Path, plugins: Path) -> None:
    run = make(tmp_path, synchronizer__sync_style="dynamic_by_trainer", synchronizer__trainer_sync_interval=2)
    run.change(synchronizer__max_staleness=3)
    finish(run, plugins, steps=8)
    versions = column(run, "explorer", "rollout/model_version")
    assert versions == sorted(versions) and versions[-1] >= 4
    assert max(column(run, "trainer", "sample/staleness/max")) <= 3


@pytest.mark.difference("`fully_async` with `eval_tasksets`")
def test_an_evaluation_pauses_the_rollouts(tmp_path: Path, plugins: Path) -> None:
    run = make(tmp_path, synchronizer__sync_style="fully_async", synchronizer__max_staleness=1)
    held_out = {"name": "held_out", "path": str(tmp_path / "train.jsonl"), "format": {"prompt_key": "question"}}
    run.change(buffer__explorer_input__eval_tasksets=[held_out], explorer__eval_interval=2)
    finish(run, plugins, steps=4)
    steps = [line["step"] for line in run.lines("explorer") if "eval/model_version" in line]
    assert steps == [0, 2, 4]
    lines = [(line["step"], "eval/model_version" in line) for line in run.lines("explorer")]
    assert lines.index((2, True)) == lines.index((2, False)) + 1 < lines.index((3, False))


@pytest.mark.parametrize(
    "transport",
    [
        pytest.param({"sync_method": "nccl"}, id="nccl"),
        pytest.param({"sync_method": "checkpoint", "checkpoint_delta": True}, id="delta", marks=pytest.mark.nightly),
    ],
)
def test_every_transport_brings_two_engines_what_memory_brings_one(
    tmp_path: Path, plugins: Path, in_memory: TinyRun, transport: dict[str, Any]
) -> None:
    run = make(tmp_path, deterministic=True, explorer__rollout_model__engine_num=2)
    run.change(**{f"synchronizer__{name}": value for name, value in transport.items()})
    finish(run, plugins, steps=3)
    assert trained(run, 3) == trained(in_memory, 3)
    assert final_weights(run, 3) == final_weights(in_memory, 3)
    assert min(column(run, "explorer", "perf/sync_gb_per_second")) > 0
    weights = max(column(in_memory, "trainer", "perf/sync_bytes"))
    moved = column(run, "trainer", "perf/sync_bytes")
    assert moved[0] >= weights and all((size < weights) == ("checkpoint_delta" in transport) for size in moved[1:])


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run of one engine that gets its weights in memory."""
    run = make(tmp_path_factory.mktemp("memory"), deterministic=True)
    finish(run, plugins, steps=3)
    return run


def test_samples_go_on_over_an_update_through_processes_and_store(tmp_path: Path, plugins: Path) -> None:
    """The bound is one of numbers: an experience, which is as old as its oldest version, keeps it on the mean."""
    run = make(tmp_path, synchronizer__sync_style="fully_async", synchronizer__max_staleness=3)
    run.change(
        synchronizer__update_in_flight=True,
        explorer__max_inflight_batches=3,
        explorer__runner_isolation="process",
        explorer__runner_per_model=1,
        explorer__rollout_model__ignore_eos=True,
        model__max_response_tokens=192,
        model__max_prompt_tokens=64,
        model__max_model_len=256,
    )
    finish(run, plugins, steps=8)
    assert sum(column(run, "trainer", "sample/mixed_version_count")) > 0
    ages = column(run, "trainer", "sample/staleness/mean")
    assert len(ages) == 8 and 0 < sum(ages) / 8 <= 3
    ids = trained(run, 8)
    assert len(ids) == len(set(ids)) == 64
