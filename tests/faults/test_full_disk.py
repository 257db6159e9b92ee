"""A disk that is really full: every writer names it, leaves nothing of its attempt, and goes on when there is room."""

from __future__ import annotations

import json

import pytest

from tests.small_disk import run_on_small_disk

SCRIPT = """
import asyncio, json, sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.buffer.store.oracle import BUFFER, PRODUCER, RUN, experience, generated
from trinity.buffer.store import ExperienceStore
from trinity.common.checkpoint import CheckpointStore, verify_checkpoint
from trinity.synchronizer.folder import FolderSynchronizer, TrainerNews
from trinity.synchronizer.transport import CheckpointTransport
from trinity.trainer.state import write_explorer_part
from trinity.trainer.verl.checkpoint import save_trained

disk, found = Path(sys.argv[1]), {}


def told(name, work):
    try:
        found[name] = ["", str(work())]
    except Exception as error:
        found[name] = [getattr(error, "code", type(error).__name__), str(error)]


sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=20000, **sizes))  # 10 MiB
optimizer = torch.optim.SGD(model.parameters())
small, big = {"w": torch.ones(16)}, {"w": torch.ones(2**20)}


def save(contents, hf):
    return lambda folder: save_trained(
        folder / "actor", model, optimizer, {}, tokenizer=None, hf=hf, contents=contents
    )


def write(step, fill):
    return checkpoints.write(step, fill, meta={"run": "r"}, keep=0)


job = disk / "job"
checkpoints = CheckpointStore(job)
write(1, save(("extra",), False))
told("torch", lambda: write(2, save(("model",), False)))
told("safetensors", lambda: write(2, save((), True)))
told("served", lambda: write(2, lambda folder: write_explorer_part(folder, None, {1: big})))
told("older", lambda: (verify_checkpoint(job / "global_step_1"), write(2, save(("extra",), False)))[1].name)

for name, is_delta in (("whole", False), ("delta", True)):
    transport = CheckpointTransport(disk / name, is_delta=is_delta)
    transport.put(1, small, copy=True)
    told(f"publish {name}", lambda: transport.put(2, big, copy=True))
    told(f"publish {name} again", lambda: transport.put(3, small, copy=True).version)

store = ExperienceStore(f"sqlite:///{disk}/e.db")
meeting = FolderSynchronizer(
    job, store, buffer=BUFFER, scope={"run": RUN, "stage": ""}, timeout_s=1.0, news=TrainerNews("trainer", 5)
)
try:
    (disk / "filler").write_bytes(bytes(2**22))
except OSError:
    pass
told("announce", lambda: asyncio.run(meeting.finish_trainer()))
(disk / "filler").unlink()
told("announce again", lambda: asyncio.run(meeting.finish_trainer()))
store.open()
steps = []


def fill_up():
    for step in range(1, 200):
        rows = [experience(step, task) for task in range(50)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)
        steps.append(step)


told("store", fill_up)
told("store whole", lambda: generated(store.counts(BUFFER, RUN)) - 50 * len(steps))
store.close()
found["left"] = sorted(str(path.relative_to(disk)) for path in disk.rglob(".*"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], bool]:
    """What each writer says on a disk of 2 MiB, and whether it is one or each file ends there."""
    printed, is_disk = run_on_small_disk(SCRIPT, tmp_path_factory.mktemp("disk"), mib=2)
    return json.loads(printed), is_disk


@pytest.mark.parametrize("writer", ["torch", "safetensors", "served"])
def test_a_checkpoint_that_does_not_fit_is_named_whoever_writes_it(full: tuple[dict, bool], writer: str) -> None:
    code, message = full[0][writer]
    assert code == ("E7022" if full[1] else "E7021"), message
    words = "no space left to write the checkpoint of step 2" if full[1] else "File too large"
    assert words in message and "inline_container" not in message


@pytest.mark.parametrize("kind", ["whole", "delta"])
def test_weights_that_do_not_fit_are_named_and_the_next_ones_are_published(full: tuple[dict, bool], kind: str) -> None:
    code, message = full[0][f"publish {kind}"]
    assert code == ("E5511" if full[1] else "E5512"), message
    assert ("no space left to publish the weights of version 2" if full[1] else "File too large") in message
    assert full[0][f"publish {kind} again"] == ["", "3"]


def test_a_version_that_cannot_be_announced_is_named(full: tuple[dict, bool]) -> None:
    code, message = full[0]["announce"]
    assert code == ("E5511" if full[1] else ""), message  # where only files are bounded, this one is small enough
    assert not full[1] or "no space left to publish the weights of version 5" in message
    assert full[0]["announce again"] == ["", "None"]


def test_a_store_that_is_full_does_not_say_that_it_waited_and_keeps_what_it_acknowledged(full: tuple[dict, bool]):
    code, message = full[0]["store"]
    assert code == ("E5210" if full[1] else "E5200"), message
    assert "other processes" not in message
    assert full[0]["store whole"] == ["", "0"]


def test_attempts_leave_nothing_and_older_checkpoints_stay(full: tuple[dict, bool]) -> None:
    assert full[0]["older"] == ["", "global_step_2"]
    assert full[0]["left"] == []
