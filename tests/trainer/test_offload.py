"""Parameters and optimizer state that wait in host memory: the same numbers, and where the tensors are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import FLOAT32, make_experiences
from tests.trainer.test_lora import LORA
from tests.trainer.test_update import TERMS
from trinity.common.config import Config
from trinity.trainer.verl.decoder import FastDecoder
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
REF = "trainer.trainer_config.actor_rollout_ref.ref.fsdp_config.param_offload"
ALL = {"param_offload": True, "optimizer_offload": True}


def tree(is_on: bool) -> dict[str, Any]:
    """Return the trainer's section with every offload switch on or off."""
    actor = FLOAT32["fsdp_config"] | (ALL if is_on else {})
    ref = {"fsdp_config": {"param_offload": is_on}}
    return {"trainer_config": {"actor_rollout_ref": {"actor": {"fsdp_config": actor}, "ref": ref}}}


def trained(config: Config, device: str) -> tuple[ActorWorker, list[float]]:
    """Return a worker after two steps, and the losses of these."""
    made = ActorWorker(config, tokenizer=None, total_steps=6, device=device)
    return made, [made.train_step(make_experiences(step), step)["actor/final_loss"] for step in (1, 2)]


def held(made: ActorWorker) -> Iterator[Tensor]:
    """Yield all tensors that the switches are about."""
    assert made.reference is not None and made.reference.model is not None
    yield from made.model.parameters()
    yield from made.reference.model.parameters()
    for values in made.optimizer.state.values():
        yield from (value for value in values.values() if isinstance(value, Tensor))


def test_on_a_cpu_the_switches_change_nothing_and_say_so(make_config: Maker, caplog: pytest.LogCaptureFixture) -> None:
    plain, losses = trained(make_config(algorithm=TERMS, trainer=tree(False)), "cpu")
    assert "has no effect" not in caplog.text
    made, same = trained(make_config(algorithm=TERMS, trainer=tree(True)), "cpu")
    for key in ("trainer.param_offload", "trainer.optimizer_offload", REF):
        assert f"{key} has no effect: the trainer computes on the CPU" in caplog.text
    assert same == losses
    assert all(torch.equal(a, b) for a, b in zip(held(plain), held(made), strict=True))


def test_moves_between_the_steps_leave_the_numbers_and_drop_the_copies(make_config: Maker) -> None:
    plain, _ = trained(make_config(algorithm=TERMS, trainer=tree(False)), "cpu")
    made = ActorWorker(make_config(algorithm=TERMS, trainer=tree(True)), tokenizer=None, total_steps=6, device="cpu")
    assert made.reference is not None
    made.offload.is_active = made.reference.offload.is_active = True  # the moves of a GPU, from the CPU to the CPU
    for step in (1, 2):
        made.train_step(make_experiences(step), step)
        for decoder in (made.actor.decoder, made.reference.scorer.decoder):
            assert isinstance(decoder, FastDecoder)
            assert decoder._head is None and decoder.layers[0].maps.qkv._weight is None
    assert all(torch.equal(a, b) for a, b in zip(held(plain), held(made), strict=True))
    owned = {id(parameter) for group in made.optimizer.param_groups for parameter in group["params"]}
    assert owned == {id(parameter) for parameter in made.model.parameters()}


def test_a_reference_without_parameters_of_its_own_says_that_it_holds_none(
    make_config: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    trained(make_config(algorithm=TERMS, model=LORA, trainer=tree(True)), "cpu")
    assert f"{REF} has no effect: the reference is the policy's model without its adapter" in caplog.text


@pytest.mark.gpu
def test_tensors_wait_in_host_memory_and_the_numbers_are_the_same(make_config: Maker, tmp_path: Path) -> None:
    plain, losses = trained(make_config(algorithm=TERMS, trainer=tree(False)), "cuda")
    made, same = trained(make_config(algorithm=TERMS, trainer=tree(True)), "cuda")
    made.save(tmp_path, hf=False)
    again = ActorWorker(made.config, tokenizer=None, total_steps=6, device="cuda")
    again.load(tmp_path)
    third = [worker.train_step(make_experiences(3), 3)["actor/final_loss"] for worker in (plain, made, again)]
    assert same == pytest.approx(losses, rel=1e-3)  # some sums on a GPU have no fixed order
    assert third[1:] == pytest.approx([third[0], third[0]], rel=1e-3)
    assert {tensor.device.type for tensor in held(plain)} == {"cuda"}
    assert {tensor.device.type for tensor in held(made)} == {tensor.device.type for tensor in held(again)} == {"cpu"}
