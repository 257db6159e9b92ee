"""Demonstrations from databases in training: once each from a queue, waits that end, resume to the bit."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.buffer.test_sql_tables import recorded, store_experiences, texts, write_conversations
from tests.tiny import tiny_tokenizer
from tests.trainer.test_trainer import Run, assert_equal_bits, final_state
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.errors import CheckpointError, DataError, StarvedError, StoreError
from trinity.common.experience import Experience
from trinity.trainer import auxiliary
from trinity.trainer.auxiliary import QueueReader
from trinity.utils import failpoints

Maker = Callable[..., Config]
EXPERT = "p/expert"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def queue_of(url: str, tokenizer: PreTrainedTokenizerFast, **options: Any) -> QueueReader:
    timeout_s = options.pop("timeout_s", 5.0)
    config = ExperienceBufferConfig(name="experts", storage_type="queue", path=url, max_read_timeout=timeout_s)
    given = {"key": "sft_dataset", "job": "p/n", "max_length": 64} | options
    return QueueReader(config, tokenizer=tokenizer, **given)


def runs_of(experiences: list[Experience]) -> list[int]:
    return [exp.eid.run for exp in experiences]


# --------------------------------------------------------------------------------------- the reader
@pytest.mark.difference("An auxiliary buffer with `storage_type: sql`")
def test_a_queue_gives_each_rollout_once_in_the_order_of_the_log_until_its_end(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    rows = [recorded(tokenizer, 1, run) for run in range(5)]
    second = recorded(tokenizer, 1, 1)
    second.eid.step = 1  # the rollout's second turn
    url = store_experiences(tmp_path / "q.db", [*rows, second])
    reader = queue_of(url, tokenizer)
    first = reader.read(3)
    assert runs_of(first) == [0, 1, 1, 2] and all(exp.eid.batch == "experts/1" for exp in first)
    assert all(exp.reward is None and exp.info["dataset"] == "experts" for exp in first)
    reader.commit(1, [exp.eid.uid for exp in first])
    assert runs_of(reader.read(3)) == [3, 4], "the last ones"
    with pytest.raises(StarvedError, match=r"all experiences of buffer 'experts' of sqlite.* were used") as caught:
        reader.read(3)
    assert caught.value.code == "E5402"
    reader.close()


def test_what_was_not_committed_before_the_cut_comes_again_and_other_jobs_get_the_rest(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    url = store_experiences(tmp_path / "q.db", [recorded(tokenizer, 1, run) for run in range(8)])
    reader = queue_of(url, tokenizer)
    for step in (1, 2):
        reader.commit(step, [exp.eid.uid for exp in reader.read(2)])
    state = json.loads(json.dumps(reader.state_dict()))
    reader.read(1)
    other = queue_of(url, tokenizer, job="p/other" * 30)
    assert runs_of(other.read(1)) == [5]
    reader.close()
    for cut, expected in ((2, [4, 6]), (1, [2, 3]), (0, [0, 1])):
        again = queue_of(url, tokenizer, cut=cut)
        again.load_state_dict(state)
        assert runs_of(again.read(2)) == expected
        again.close()
    other.close()


def test_a_read_waits_for_a_run_that_comes_later_and_says_for_what(
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(auxiliary, "TOLD_EVERY_S", 0.05)
    reader = queue_of(f"sqlite:///{tmp_path / 'q.db'}", tokenizer, timeout_s=60.0)
    found: list[Experience] = []
    with caplog.at_level(logging.WARNING):
        waiting = threading.Thread(target=lambda: found.extend(reader.read(2)))
        waiting.start()
        while "waiting for demonstrations in buffer 'experts'" not in caplog.text:
            time.sleep(0.01)
        store_experiences(tmp_path / "q.db", [recorded(tokenizer, 1, 0)], close=False)
        store_experiences(tmp_path / "q.db", [recorded(tokenizer, 2, 1)], close=False)
        waiting.join()
    assert texts(found) == ["1+0=1", "2+1=3"]
    assert "(at most 60 s, buffer.trainer_input.auxiliary_buffers.sft_dataset.max_read_timeout)" in caplog.text
    reader.close()


def test_the_deadline_and_a_close_end_a_wait(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'q.db'}"
    reader = queue_of(url, tokenizer, timeout_s=0.3)
    with pytest.raises(StarvedError, match=r"within 0.3 s: no run has opened it; .*sft_dataset.max_read_timeout") as e:
        reader.read(2)
    assert e.value.code == "E5400"
    store_experiences(tmp_path / "q.db", [recorded(tokenizer, 1, 0)], close=False)
    assert texts(reader.read(2)) == ["1+0=1"], "the incomplete batch at the deadline"
    with pytest.raises(StarvedError, match=r"explorer of run p/expert did not finish"):
        reader.read(2)
    reader.close()
    for name in ("q.db", "later.db"):  # waiting for experiences, and for a run
        waiting, errors = queue_of(f"sqlite:///{tmp_path / name}", tokenizer, timeout_s=600.0), list[StoreError]()

        def read(waiting: QueueReader = waiting, errors: list[StoreError] = errors) -> None:
            with pytest.raises(StoreError) as caught:
                waiting.read(2)
            errors.append(caught.value)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.3)
        waiting.close()
        thread.join(60)
        assert [error.code for error in errors] == ["E5208"]


def test_a_full_queue_gives_what_it_has(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    url = store_experiences(tmp_path / "q.db", [recorded(tokenizer, 1, run) for run in range(3)], close=False)
    with ExperienceStore(url, capacity=3) as producing:
        assert not producing.wait_for_room("experts", "explorer", run=EXPERT, timeout_s=0.0)
        reader = queue_of(url, tokenizer, timeout_s=600.0)
        found = reader.read(8)  # at once: the other side appends nothing before there is room
        assert runs_of(found) == [0, 1, 2]
        reader.commit(1, [exp.eid.uid for exp in found])
        assert producing.wait_for_room("experts", "explorer", run=EXPERT, timeout_s=0.0)
    reader.close()


def test_what_cannot_be_imitated_is_dropped_and_the_batch_filled_up(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    rows = [recorded(tokenizer, 1, run) for run in range(6)]
    rows[1].action_mask[:] = False
    rows[2] = recorded(tokenizer, 1, 2, tokens=[*rows[2].tokens.tolist(), *[4] * 70])
    url = store_experiences(tmp_path / "q.db", rows)
    reader = queue_of(url, tokenizer)
    found = reader.read(3)
    assert runs_of(found) == [0, 3, 4]
    assert reader.metrics() == {"sample/quarantined_row_count": 1.0, "sample/overlong_count": 1.0}
    reader.commit(1, [exp.eid.uid for exp in found])
    reader.close()
    with ExperienceStore(url) as store:
        assert store.counts("experts", EXPERT)["dropped"] == {"unusable": 1, "overlong": 1}


def test_a_queue_of_two_runs_or_of_another_vocabulary_or_in_place_of_a_dataset_is_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    url = store_experiences(tmp_path / "two.db", [recorded(tokenizer, 1, 0)])
    store_experiences(tmp_path / "two.db", [recorded(tokenizer, 1, 0)], run="p/second")
    reader = queue_of(url, tokenizer)
    with pytest.raises(StoreError, match=r"experiences of 2 runs \(p/expert, p/second\)") as caught:
        reader.read(1)
    assert caught.value.code == "E5211"
    reader.load_state_dict({"run": ["p/second", ""], "num_dropped": {"unusable": 0, "overlong": 0}})
    assert len(reader.read(1)) == 1, "that of the checkpoint"
    with pytest.raises(CheckpointError, match="is a queue, and the checkpoint holds the position in a dataset") as e:
        reader.load_state_dict({"fingerprint": "f", "selector": {}})
    assert e.value.code == "E7005"
    reader.close()
    with sqlite3.connect(tmp_path / "foreign.db") as connection:
        connection.execute("CREATE TABLE experience (id INTEGER)")
    with pytest.raises(StoreError, match=r"did not make; choose another .*auxiliary_buffers.sft_dataset.path") as fault:
        queue_of(f"sqlite:///{tmp_path / 'foreign.db'}", tokenizer)
    assert fault.value.code == "E5202"
    url = store_experiences(tmp_path / "other.db", [recorded(tokenizer, 1, 0, response_text="seven")])
    with pytest.raises(DataError, match="another tokenizer"):
        queue_of(url, tokenizer).read(1)


# -------------------------------------------------------------------------------------- in training
def mixed_config(make_config: Maker, folder: Path, expert: dict[str, Any], **trainer: Any) -> Config:
    """Return a run of five steps in whose batches of 8 rows 4 are an expert's."""
    buffers = {"sft_dataset": {"name": "experts", "max_read_timeout": 20.0} | expert}
    algorithm = {"algorithm_type": "mix", "policy_loss_fn": "mix", "entropy_loss_fn": "mix", "sample_strategy": "mix",
                 "sample_strategy_args": {"expert_data_ratio": 0.5}}  # fmt: skip
    settings = {"total_steps": 5, **trainer}
    sections = {"algorithm": algorithm, "buffer": {"trainer_input": {"auxiliary_buffers": buffers}}}
    return make_config(**sections, checkpoint_job_dir=str(folder), trainer=settings)


def expert_of(kind: str, file: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Write what a buffer of that kind reads; return its configuration."""
    if kind == "sft":
        columns = {"prompt_type": "messages", "messages_key": "message_list"}
        url = write_conversations(file, 7)
        return {"storage_type": "sql", "schema_type": "sft", "path": url, "format": columns}
    url = store_experiences(file, [recorded(tokenizer, step, run) for step in (1, 2, 3) for run in range(7)])
    return {"storage_type": kind, "schema_type": "experience", "path": url}


@pytest.mark.parametrize(
    ("kind", "place", "hit"),
    [
        ("sft", "train.before_step", 4),
        ("sql", "train.after_step", 4),
        ("queue", "train.before_step", 4),
        ("queue", "store.commit_step.after_commit", 7),  # step 4 is in the ledger of the one database only
    ],
)
def test_a_killed_run_continues_with_the_demonstrations_of_its_checkpoint(
    make_config: Maker, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, kind: str, place: str, hit: int
) -> None:
    whole = Run(mixed_config(make_config, tmp_path / "whole", expert_of(kind, tmp_path / "a.db", tokenizer)))
    whole.train(lambda run: run.explore(range(1, 4)))
    expert = expert_of(kind, tmp_path / "b.db", tokenizer)
    failpoints.configure(f"{place}=raise@{hit}")
    first = Run(mixed_config(make_config, tmp_path / "halves", expert, save_interval=2))
    with pytest.raises(RuntimeError, match=f"failpoint {place}"):
        first.train(lambda run: run.explore(range(1, 4)))
    failpoints.configure("")
    second = Run(mixed_config(make_config, tmp_path / "halves", expert, save_interval=2), resume=True)
    assert second.train().step == 5
    assert_equal_bits(final_state(whole), final_state(second))
    assert whole.lines() == second.lines()
    assert [line["sample/expert_count"] for line in whole.lines()] == [4.0] * 5
    if kind == "queue":
        for file in ("a.db", "b.db"):
            with ExperienceStore(f"sqlite:///{tmp_path / file}") as store:
                assert store.counts("experts", EXPERT) == {"ready": 1, "claimed": 0, "trained": 20, "dropped": {}}
                token = store.open_consumer("experts", "p/n", run=EXPERT, cut=5)
                used = [uid for step in range(1, 6) for uid in store.step_uids(token, step) or ()]
            assert used == [f"{step}/0/{run}/0/" for step in (1, 2, 3) for run in range(7)][:20], "in order, once each"
    else:
        assert [line["sample/expert_epoch"] for line in whole.lines()] == (
            [1, 2, 2, 3, 3] if kind == "sft" else [1] * 5
        )


def test_a_run_whose_queue_ends_before_it_ends_with_the_reason(
    make_config: Maker, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    url = store_experiences(tmp_path / "q.db", [recorded(tokenizer, 1, run) for run in range(6)])
    expert = {"storage_type": "queue", "schema_type": "experience", "path": url}
    run = Run(mixed_config(make_config, tmp_path / "job", expert))
    with pytest.raises(StarvedError, match="no demonstration is left for the next step") as caught:
        run.train(lambda run: run.explore(range(1, 4)))
    assert caught.value.code == "E5402" and [line["sample/expert_count"] for line in run.lines()] == [4.0, 2.0]


def test_a_stop_ends_the_wait_for_a_queue(make_config: Maker, tmp_path: Path) -> None:
    expert = {"storage_type": "queue", "schema_type": "experience", "path": f"sqlite:///{tmp_path / 'q.db'}"}
    run = Run(mixed_config(make_config, tmp_path / "job", expert | {"max_read_timeout": 600.0}))

    def stop_later(run: Run) -> None:
        run.explore(range(1, 3))
        asyncio.get_running_loop().call_later(0.5, run.trainer.request_stop)

    summary = run.train(stop_later)
    assert summary.is_stopped and summary.step == 0
