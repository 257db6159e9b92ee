"""The log of what comes into the pipeline: taken back, completed, pruned, and still a log."""

from __future__ import annotations

import json
from pathlib import Path

from trinity.buffer.pipelines.pipeline_input import BUFFER, PipelineInput
from trinity.buffer.store import ExperienceStore
from trinity.buffer.store.fates import of_buffer
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.types import Fates
from trinity.common.experience import EID, Experience

SCOPE = {"run": "p/n", "stage": ""}


def step(number: int) -> list[Experience]:
    """Return two rollouts of two turns each."""
    return [
        Experience(EID(number, 0, run, turn), [5, 6, 7, 8], prompt_length=2, reward=float(run), logprobs=[-0.1, -0.2])
        for run in (1, 0)
        for turn in (0, 1)
    ]


def opened(folder: Path, *, finished: int, limit: int | None = None) -> PipelineInput:
    made = PipelineInput(
        f"sqlite:///{folder / 'in.db'}", producer="e", scope=SCOPE, copy=folder / "in.jsonl", limit=limit
    )
    made.open(finished)
    return made


def fates(store: ExperienceStore) -> Fates:
    with store._database.read() as connection:
        return of_buffer(connection, Scope(buffer=BUFFER, **SCOPE))


def uids(folder: Path) -> list[str]:
    return [json.loads(line)["uid"] for line in (folder / "in.jsonl").read_text().splitlines()]


def test_what_the_log_of_the_run_does_not_have_is_taken_back_and_lines_are_completed(tmp_path: Path) -> None:
    first = opened(tmp_path, finished=0)
    for number in (1, 2):
        assert first.append(step(number), explore_step=number)
        first.complete(step(number))
    first.append(step(3), explore_step=3)
    first.close()  # killed before the log of the run had step 3, and 4 was never begun
    second = opened(tmp_path, finished=2)
    assert fates(second.store) == Fates(4, {"trained": 0}, 4)
    assert second.append(step(3), explore_step=3)
    second.close()  # killed after it had step 3, before the lines were written
    third = opened(tmp_path, finished=3)
    assert not third.append(step(3), explore_step=3), "a step that is repeated bit by bit is not new"
    assert third.store.num_produced(BUFFER, **SCOPE) == 6
    expected = [f"{number}/0/{run}/{turn}/" for number in (1, 2, 3) for run in (0, 1) for turn in (0, 1)]
    token = third.store.open_consumer(BUFFER, "trainer", **{"run": "p/n"}, cut=0)
    claimed = third.store.claim(token, 100)
    assert uids(tmp_path) == [each.eid.uid for each in claimed] == expected
    third.close()
    # Somebody trains on it: what is taken stays.
    fourth = opened(tmp_path, finished=1)
    assert fates(fourth.store).issued == 6
    fourth.close()


def test_the_oldest_payloads_go_and_what_became_of_them_is_counted(tmp_path: Path) -> None:
    sizes = [len(each.serialize()) for each in step(1)]
    made = opened(tmp_path, finished=0, limit=2 * sum(sizes) + 10)
    for number in (1, 2, 3, 4):
        made.append(step(number), explore_step=number)
        made.complete(step(number))
    assert fates(made.store) == Fates(8, {"trained": 0, "filtered/pruned": 4}, 4)
    token = made.store.open_consumer(BUFFER, "trainer", run="p/n", cut=0)
    assert [each.eid.batch for each in made.store.claim(token, 100)] == [3] * 4 + [4] * 4
    assert len(uids(tmp_path)) == 16, "the lines stay"
    made.close()


def test_the_newest_step_stays_however_large_and_goes_only_when_it_is_taken_back(tmp_path: Path) -> None:
    made = opened(tmp_path, finished=0, limit=0)
    for number in (1, 2):
        made.append(step(number), explore_step=number)
        made.complete(step(number))
    assert fates(made.store) == Fates(4, {"trained": 0, "filtered/pruned": 2}, 2)
    made.close()
    # The log of the run was lost: nothing of this one is left either, and nothing is counted.
    again = opened(tmp_path, finished=0, limit=0)
    assert fates(again.store) == Fates(0, {"trained": 0}, 0)
    again.close()
