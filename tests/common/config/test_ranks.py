"""Processes that train the model: what divides them, what they save."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from trinity.common.config.resolved import num_workers

ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
SEQUENCE = "trainer.ulysses_sequence_parallel_size"
ROWS = {
    "sequence": (["trainer.num_workers=4", f"{SEQUENCE}=3"], "E1835", SEQUENCE, "use one of 1, 2, 4"),
    "sequence of one worker": ([f"{SEQUENCE}=2"], "E1835", SEQUENCE, "use one of 1, or change `trainer.num_workers`"),
    "reference": (
        ["trainer.num_workers=2", f"{SEQUENCE}=2",
         "trainer.trainer_config.actor_rollout_ref.ref.ulysses_sequence_parallel_size=1"],
        "E1837", "trainer.trainer_config.actor_rollout_ref.ref.ulysses_sequence_parallel_size", "remove it",
    ),
    "shard groups": (
        ["trainer.num_workers=6", f"{ACTOR}.fsdp_config.fsdp_size=4"],
        "E1838", f"{ACTOR}.fsdp_config.fsdp_size", "use one of 1, 2, 3, 6",
    ),
    "contents": (
        [f"{ACTOR}.checkpoint.save_contents=[model]"],
        "E1839", f"{ACTOR}.checkpoint.save_contents", "add extra, optimizer to save_contents",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "code", "key", "way_out"), ROWS.values(), ids=ROWS)
def test_what_does_not_fit_the_processes_is_refused_with_what_does(
    examined: Examine, overrides: list[str], code: str, key: str, way_out: str
) -> None:
    problems = examined(MINIMAL, *overrides)[1]
    found = [p for p in problems if p.code == code and p.key == key]
    assert [p.severity for p in found] == ["error"] and way_out in (found[0].suggestion or ""), problems


def test_each_worker_has_a_gpu_of_the_trainer(examined: Examine) -> None:
    gpus = ("cluster.gpu_per_node=4", "explorer.rollout_model.engine_num=1")
    (found,) = [p for p in examined(MINIMAL, *gpus, "trainer.num_workers=8")[1] if p.is_error]
    assert (found.code, found.key) == ("E1808", "trainer.num_workers") and "use 3" in (found.suggestion or "")
    rows = [line.split() for line in found.message.splitlines()[1:]]
    assert rows == [["engines", "1"], ["trainer.num_workers", "8"], ["asked", "in", "all", "9"], ["have", "4"]]
    (idle,) = examined(MINIMAL, *gpus, "trainer.num_workers=2")[1]
    assert (idle.code, idle.key) == ("W1902", "trainer.num_workers") and "3 GPUs: 1 of them idle" in idle.message
    for fits in ((*gpus, "trainer.num_workers=3"), gpus, ("trainer.num_workers=8",)):
        assert examined(MINIMAL, *fits)[1] == []
    (shared,) = examined(MINIMAL, "cluster.gpu_per_node=1", "trainer.num_workers=2")[1]
    assert shared.code == "E1808" and "the trainer has 1 GPU, one" in shared.message


@pytest.mark.difference("Several workers")
def test_ranks_that_fit_are_taken_and_share_any_number_of_experiences(examined: Examine) -> None:
    overrides = (
        "trainer.num_workers=4", f"{SEQUENCE}=2", f"{ACTOR}.fsdp_config.fsdp_size=2", f"{ACTOR}.use_dynamic_bsz=false",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=5", f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    )  # fmt: skip
    plan, problems = examined(MINIMAL, *overrides)
    assert [p for p in problems if p.severity == "error"] == []
    assert num_workers(plan.stages[0].config) == 4
    assert num_workers(examined(MINIMAL)[0].stages[0].config) == 1
    alone = examined(MINIMAL, *overrides[3:5])[1]
    assert [p.code for p in alone if p.severity == "error"] == ["E1803"]
