"""Sample strategies over a real store and a real dataset: who is trained, who is dropped, exactly once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_tokenizer
from tests.trainer.conftest import make_experiences
from tests.trainer.test_trainer import Run, assert_equal_bits, final_state
from trinity.algorithm.planning import planned_steps
from trinity.algorithm.sample_strategy.mix import MixSampleStrategy
from trinity.algorithm.sample_strategy.staleness_control import StalenessControlStrategy
from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.mixture import batch_size_for, num_expert_rows
from trinity.common.errors import CheckpointError, ConfigError, DataError, StarvedError
from trinity.common.experience import EID, CustomField, Experience
from trinity.trainer.source import BufferSource
from trinity.utils import failpoints

Maker = Callable[..., Config]
SCOPE = {"run": "p/n", "stage": ""}
BUFFER = "experience_buffer"
FORM = {"prompt_type": "plaintext", "prompt_key": "question", "response_key": "answer"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperienceStore]:
    with ExperienceStore(f"sqlite:///{tmp_path / 'rows.db'}") as opened:
        opened.open_producer(BUFFER, "explorer", **SCOPE)
        yield opened


def _source(store: ExperienceStore, *, cut: int = 0, timeout_s: float = 5.0) -> BufferSource:
    return BufferSource(store, store.open_consumer(BUFFER, "trainer", cut=cut, **SCOPE), timeout_s=timeout_s)


def _append(store: ExperienceStore, step: int, versions: list[int | None]) -> list[str]:
    """Append a row for each version as explore step `step`; return their ids in the order of the log."""
    rows = make_experiences(step, tasks=1, repeats=len(versions))
    for row, version in zip(rows, versions, strict=True):
        row.info = {} if version is None else {"model_version": version}
    store.append(BUFFER, rows, producer="explorer", explore_step=step, **SCOPE)
    return [row.eid.uid for row in rows]


def _sample(strategy: Any, step: int) -> tuple[list[Experience], dict[str, float]]:
    exps, metrics, _ = asyncio.run(strategy.sample(step))
    return exps, metrics


def _reader(folder: Path, num_rows: int = 5) -> DatasetReader:
    file = folder / f"expert_{num_rows}.jsonl"
    file.write_text("".join(json.dumps({"question": f"{a}+1=", "answer": str(a + 1)}) + "\n" for a in range(num_rows)))
    config = ExperienceBufferConfig(name="sft_dataset", storage_type="file", path=str(file), format=FORM)
    return DatasetReader(config, tokenizer=tiny_tokenizer(folder / "tokenizer"), seed=3, total_epochs=0)


def _mix(source: Any, reader: DatasetReader, *, batch_size: int = 6, ratio: float = 0.5) -> MixSampleStrategy:
    made = MixSampleStrategy(source, batch_size=batch_size, expert_data_ratio=ratio)
    made.auxiliary = {"sft_dataset": reader}
    return made


# ------------------------------------------------------------------------------ staleness_control
def test_rows_that_are_too_old_are_dropped_and_the_batch_is_filled_up(store: ExperienceStore) -> None:
    first, second = _append(store, 1, [0, 3, 4, 1, None, 3]), _append(store, 2, [2, 4, 3, 4])
    strategy = StalenessControlStrategy(_source(store), batch_size=4, max_staleness=1)
    exps, metrics = _sample(strategy, 5)  # trains with version 4: 3 is the oldest
    assert [exp.eid.uid for exp in exps] == [first[1], first[2], first[4], first[5]]
    assert metrics["sample/stale_count"] == 2.0 and metrics["sample/staleness/max"] == 1.0
    asyncio.run(strategy.source.commit(5, [exp.eid.uid for exp in exps]))
    store.close_producer(BUFFER, "explorer", **SCOPE)
    exps, metrics = _sample(strategy, 6)  # version 5: 4 is the oldest
    assert [exp.eid.uid for exp in exps] == [second[1], second[3]] and metrics["sample/stale_count"] == 2.0
    assert strategy.source.metrics()["sample/incomplete_batch_count"] == 1.0
    assert store.counts(BUFFER, "p/n") == {"ready": 0, "claimed": 2, "trained": 4, "dropped": {"stale": 4}}


def test_a_rollout_of_which_one_turn_is_too_old_is_dropped_as_a_whole(store: ExperienceStore) -> None:
    rows = make_experiences(1, tasks=1, repeats=4)
    for place, row in enumerate(rows):
        row.eid = EID(1, 0, run=place // 2, step=place % 2)
        row.info = {"model_version": 3 if place else 0}
    store.append(BUFFER, rows, producer="explorer", explore_step=1, **SCOPE)
    store.close_producer(BUFFER, "explorer", **SCOPE)
    exps, metrics = _sample(StalenessControlStrategy(_source(store), batch_size=4, max_staleness=1), 5)
    assert [exp.eid.uid for exp in exps] == ["1/0/1/0/", "1/0/1/1/"] and metrics["sample/stale_count"] == 2.0


def test_a_batch_is_filled_up_with_rollouts_however_many_steps_they_have(store: ExperienceStore) -> None:
    rows = [make_experiences(1, tasks=1, repeats=4) for _ in range(3)]
    for step, turn in enumerate(rows):
        for row in turn:
            row.eid.step = step
            row.info = {"model_version": 0 if row.eid.run == 0 else 4}
    store.append(BUFFER, [row for turn in rows for row in turn], producer="explorer", explore_step=1, **SCOPE)
    exps, metrics = _sample(StalenessControlStrategy(_source(store), batch_size=2, max_staleness=0), 5)
    assert [exp.eid.rid for exp in exps] == ["1/0/1"] * 3 + ["1/0/2"] * 3, "three steps each, and two rollouts"
    assert metrics["sample/stale_count"] == 3.0 and metrics["sample/rollout_count"] == 2.0


@pytest.mark.difference("`staleness_control`")
def test_dropped_rows_stay_dropped_after_a_resume_and_come_again_before_it(store: ExperienceStore) -> None:
    uids = _append(store, 1, [0, 2, 0, 2])
    source = _source(store)
    exps, _ = _sample(StalenessControlStrategy(source, batch_size=2, max_staleness=0), 3)
    asyncio.run(source.commit(1, [exp.eid.uid for exp in exps]))
    assert store.counts(BUFFER, "p/n")["dropped"] == {"stale": 2}
    _source(store, cut=1)
    assert store.counts(BUFFER, "p/n")["dropped"] == {"stale": 2}
    again, metrics = _sample(StalenessControlStrategy(_source(store, cut=0), batch_size=2, max_staleness=0), 3)
    assert [exp.eid.uid for exp in again] == [uids[1], uids[3]] and metrics["sample/stale_count"] == 2.0


def test_a_step_whose_rows_were_all_dropped_is_recorded_before_the_end(
    store: ExperienceStore, caplog: pytest.LogCaptureFixture
) -> None:
    _append(store, 1, [0, 0, 0])
    store.close_producer(BUFFER, "explorer", **SCOPE)
    strategy = StalenessControlStrategy(_source(store), batch_size=2, max_staleness=2)
    with caplog.at_level(logging.WARNING):
        assert _sample(strategy, 9)[0] == [] and not strategy.source.is_closed
    assert "all 3 experiences that came are more than 2 training steps old" in caplog.text
    asyncio.run(strategy.source.commit(9, []))
    assert _sample(strategy, 10)[0] == [] and strategy.source.is_closed


def test_the_deadline_gives_the_incomplete_batch_and_nothing_at_all_is_starvation(store: ExperienceStore) -> None:
    _append(store, 1, [0, 1, 0])
    strategy = StalenessControlStrategy(_source(store, timeout_s=0.2), batch_size=3, max_staleness=0)
    exps, metrics = _sample(strategy, 2)
    assert len(exps) == 1 and metrics["sample/stale_count"] == 2.0
    with pytest.raises(StarvedError):
        _sample(strategy, 3)


def test_without_a_bound_nothing_is_dropped_and_a_negative_one_is_refused(store: ExperienceStore) -> None:
    _append(store, 1, [0, 0])
    exps, metrics = _sample(StalenessControlStrategy(_source(store), batch_size=2), 100)
    assert len(exps) == 2 and metrics["sample/stale_count"] == 0.0
    with pytest.raises(ValueError, match="max_staleness must be >= 0, got -1"):
        StalenessControlStrategy(_source(store), batch_size=2, max_staleness=-1)


def _explore_old_and_new(run: Run) -> None:
    run.store.open_producer(BUFFER, "explorer", **SCOPE)
    for step in range(1, 7):
        rows = make_experiences(step, version=0)
        for place, row in enumerate(rows):
            row.info["model_version"] = step - 1 if place % 3 else max(step - 4, 0)
        run.store.append(BUFFER, rows, producer="explorer", explore_step=step, **SCOPE)
    run.store.close_producer(BUFFER, "explorer", **SCOPE)


def test_a_resumed_run_drops_the_same_rows_and_ends_the_same(make_config: Maker, tmp_path: Path) -> None:
    def config(folder: str, **trainer: Any) -> Config:
        control = {"sample_strategy": "staleness_control", "sample_strategy_args": {"max_staleness": 1}}
        job = {"checkpoint_job_dir": str(tmp_path / folder)}
        return make_config(algorithm=control, trainer={"total_steps": 6, **trainer}, **job)

    whole = Run(config("whole"))
    whole.train(_explore_old_and_new)
    failpoints.configure("train.after_step=raise@5")
    first = Run(config("halves", save_interval=3))
    with pytest.raises(RuntimeError, match=r"failpoint train.after_step"):
        first.train(_explore_old_and_new)
    failpoints.configure("")
    second = Run(config("halves", save_interval=3), resume=True)
    assert second.train().step == 6
    assert_equal_bits(final_state(whole), final_state(second))
    assert whole.lines() == second.lines()
    dropped = [line["sample/stale_count"] for line in whole.lines()]
    assert sum(dropped) > 5
    for run in (whole, second):
        with run.store.open():
            assert run.store.counts(BUFFER, "p/n")["dropped"] == {"stale": sum(dropped)}


# --------------------------------------------------------------------------------------------- mix
def test_a_batch_is_rollouts_and_marked_expert_rows(store: ExperienceStore, tmp_path: Path) -> None:
    uids = _append(store, 1, [0, 0, 0, 0])
    strategy = _mix(_source(store), _reader(tmp_path), batch_size=7, ratio=0.4)  # ceil(2.8) = 3 expert rows
    exps, metrics = _sample(strategy, 1)
    usual, expert = exps[:4], exps[4:]
    assert [exp.eid.uid for exp in usual] == uids and len({exp.eid.uid for exp in exps}) == 7
    assert [exp.info["is_expert"] for exp in exps] == [False] * 4 + [True] * 3
    assert all(exp.info["train_step"] == 1 for exp in exps)
    for exp in expert:
        assert exp.reward is None and exp.eid.batch == "sft_dataset/1"
        assert not exp.logprobs.any() and not exp.advantages.any() and len(exp.logprobs) == exp.response_length
    assert all(exp.advantages.any() for exp in usual)
    assert metrics["sample/expert_count"] == 3.0 and metrics["sample/expert_epoch"] == 1.0
    assert metrics["sample/task_count"] == 1.0 and metrics["sample/expert_overlong_count"] == 0.0
    asyncio.run(strategy.source.commit(1, [exp.eid.uid for exp in exps]))
    assert store.step_uids(strategy.source.token, 1) == uids


def test_a_small_dataset_comes_again_and_continues_where_it_was(store: ExperienceStore, tmp_path: Path) -> None:
    for step in range(1, 5):
        _append(store, step, [0, 0])
    strategy = _mix(_source(store), _reader(tmp_path, 3), batch_size=6, ratio=0.6)
    seen = []
    for step in range(1, 4):
        exps, metrics = _sample(strategy, step)
        seen += [(exp.info["epoch"], exp.info["index"]) for exp in exps[2:]]
        assert metrics["sample/expert_epoch"] == -(-4 * step // 3)
    assert len(set(seen)) == 12 and {index for _, index in seen[:3]} == {0, 1, 2}
    other = _mix(strategy.source, _reader(tmp_path, 3), batch_size=6, ratio=0.6)
    other.load_state_dict(json.loads(json.dumps(strategy.state_dict())))
    following = [exp.eid.uid for exp in strategy.auxiliary["sft_dataset"].read(5)]
    assert [exp.eid.uid for exp in other.auxiliary["sft_dataset"].read(5)] == following


def test_a_checkpoint_of_other_data_is_refused(store: ExperienceStore, tmp_path: Path) -> None:
    strategy = _mix(_source(store), _reader(tmp_path))
    with pytest.raises(CheckpointError, match=r"no auxiliary buffer, and .* mix reads sft_dataset") as caught:
        strategy.load_state_dict({})
    assert caught.value.code == "E7012"
    with pytest.raises(CheckpointError, match="changed since the checkpoint") as caught:
        strategy.load_state_dict(_mix(strategy.source, _reader(tmp_path, 4)).state_dict())
    assert caught.value.code == "E7005"


def test_the_end_of_the_buffer_reads_no_expert_and_a_step_without_rollouts_does(
    store: ExperienceStore, tmp_path: Path
) -> None:
    strategy = _mix(_source(store), _reader(tmp_path))
    store.announce_wait(BUFFER, "explorer", 3)
    exps, _ = _sample(strategy, 2)
    assert len(exps) == 3 and all(exp.info["is_expert"] and not exp.advantages.any() for exp in exps)
    before = strategy.state_dict()
    store.close_producer(BUFFER, "explorer", **SCOPE)
    assert _sample(strategy, 3)[0] == [] and strategy.source.is_closed and strategy.state_dict() == before


def test_ratio_zero_needs_no_dataset_and_custom_fields_of_rollouts_are_kept(store: ExperienceStore) -> None:
    rows = make_experiences(1, tasks=1)
    for row in rows:
        row.info, row.custom_fields = row.info | {"turn": 7}, [CustomField("turn", "turn")]
    store.append(BUFFER, rows, producer="explorer", explore_step=1, **SCOPE)
    strategy = MixSampleStrategy(_source(store), batch_size=4, expert_data_ratio=0)
    assert strategy.auxiliary_buffers() == () and strategy.state_dict() == {}
    exps, metrics = _sample(strategy, 1)
    assert len(exps) == 4 and metrics["sample/expert_count"] == 0.0
    assert [field.destination_field for field in exps[0].custom_fields] == ["turn", "expert_mask", "step"]


def test_the_number_of_expert_rows_is_that_of_the_decimal_ratio() -> None:
    assert [num_expert_rows(ratio, 100) for ratio in (0, 0.07, 0.29, 0.5, 0.985)] == [0, 7, 29, 50, 99]
    for ratio in (0.0, 0.07, 0.2, 0.25, 1 / 3, 0.5, 0.9):
        for usual in range(1, 60):
            size = batch_size_for(usual, ratio)
            assert size - num_expert_rows(ratio, size) == usual
    for ratio in (-0.1, 1, 1.5, float("nan"), True):
        with pytest.raises(ValueError, match=r"expert_data_ratio must be in \[0, 1\)"):
            num_expert_rows(ratio, 8)
        with pytest.raises(ValueError, match=r"expert_data_ratio must be in \[0, 1\)"):
            batch_size_for(8, ratio)
    with pytest.raises(ValueError, match="0.9 makes all 4 rows of a batch the expert's"):
        num_expert_rows(0.9, 4)


def _mixed_config(make_config: Maker, demonstrations: Path, **args: Any) -> Config:
    buffers = {"sft_dataset": {"name": "sft_dataset", "storage_type": "file", "path": str(demonstrations),
                               "format": FORM}}  # fmt: skip
    algorithm = {"algorithm_type": "mix", "policy_loss_fn": "mix", "entropy_loss_fn": "mix", "sample_strategy": "mix",
                 "sample_strategy_args": args}  # fmt: skip
    return make_config(algorithm=algorithm, buffer={"trainer_input": {"auxiliary_buffers": buffers}})


def test_a_checkpoint_holds_what_the_last_step_left_though_the_next_batch_was_read(
    make_config: Maker, demonstrations: Path
) -> None:
    run = Run(_mixed_config(make_config, demonstrations))
    run.explore(range(1, 3))

    async def work() -> None:
        await run.trainer.prepare()
        strategy = run.trainer._strategy
        await run.trainer._train_step(*await strategy.sample(1))
        left = strategy.state_dict()
        await strategy.sample(2)
        assert left != strategy.state_dict() and run.trainer._state(()).sampler == left
        await run.trainer.close()

    asyncio.run(work())
    run.monitor.close()
    run.store.close()


def test_a_crash_goes_on_at_the_row_of_the_checkpoint(make_config: Maker, demonstrations: Path, tmp_path: Path) -> None:
    def config(folder: str, **trainer: Any) -> Config:
        plain = _mixed_config(make_config, demonstrations, expert_data_ratio=0.5).model_dump()
        plain |= {"checkpoint_job_dir": str(tmp_path / folder)}
        plain["trainer"] |= {"total_steps": 5, **trainer}
        return Config.model_validate(plain)

    whole = Run(config("whole"))
    whole.train(lambda run: run.explore(range(1, 4)))
    failpoints.configure("train.after_step=raise@4")
    first = Run(config("halves", save_interval=2))
    with pytest.raises(RuntimeError, match=r"failpoint train.after_step"):
        first.train(lambda run: run.explore(range(1, 4)))
    failpoints.configure("")
    second = Run(config("halves", save_interval=2), resume=True)
    assert second.train().step == 5
    assert_equal_bits(final_state(whole), final_state(second))
    assert whole.lines() == second.lines()
    assert [line["sample/experience_count"] for line in whole.lines()] == [8.0] * 5
    with second.store.open():
        assert second.store.counts(BUFFER, "p/n") == {"ready": 4, "claimed": 0, "trained": 20, "dropped": {}}


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ({"sft_dataset_name": "sft"}, ConfigError, r"'sft', which .* does not have; it has sft_dataset"),
        ({"expert_data_ratio": 1.0}, ConfigError, r"sample_strategy_args of mix: expert_data_ratio must be in"),
        ({"ratio": 0.5}, ConfigError, r"sample_strategy_args of mix: .*unexpected keyword argument 'ratio'"),
        ({}, DataError, r"no rows|no data"),
    ],
)
def test_what_cannot_be_read_ends_before_the_first_step(
    make_config: Maker, demonstrations: Path, args: dict[str, Any], error: type[Exception], message: str
) -> None:
    if error is DataError:
        demonstrations.write_text("")
    with pytest.raises(error, match=message):
        Run(_mixed_config(make_config, demonstrations, **args)).train(lambda run: run.explore(range(1, 2)))


def test_planned_steps_count_the_rollouts(make_config: Maker, demonstrations: Path) -> None:
    config = _mixed_config(make_config, demonstrations, expert_data_ratio=0.25)
    values = config.model_dump()
    values["mode"], values["algorithm"]["repeat_times"] = "both", 3
    values["buffer"]["total_steps"] = values["trainer"]["total_steps"] = None
    # Five explore steps make 2 x 3 experiences each, and a training step takes 6 of its 8 from them.
    assert planned_steps(Config.model_validate(values), 5) == 5
    assert planned_steps(config, 5) == config.buffer.total_steps
