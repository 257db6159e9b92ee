"""Parameters and optimizer state that wait in host memory: the same numbers, and where the tensors are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.conftest import FLOAT32, make_experiences
from tests.trainer.test_critic import PPO
from tests.trainer.test_lora import LORA
from tests.trainer.test_update import TERMS
from trinity.common.config import Config
from trinity.runtime.local import LocalRuntime
from trinity.trainer.batch import collate
from trinity.trainer.rank_group import RankGroup, gpus_of_rank, has_ranks
from trinity.trainer.verl.decoder import FastPackedDecoder
from trinity.trainer.verl.shard_settings import needs_group
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


@pytest.mark.difference("Reference model with `param_offload: false`")
def test_moves_between_the_steps_leave_the_numbers_and_drop_the_copies(make_config: Maker) -> None:
    plain, _ = trained(make_config(algorithm=TERMS, trainer=tree(False)), "cpu")
    made = ActorWorker(make_config(algorithm=TERMS, trainer=tree(True)), tokenizer=None, total_steps=6, device="cpu")
    assert made.reference is not None
    made.offload.is_active = made.reference.offload.is_active = True  # the moves of a GPU, from the CPU to the CPU
    for step in (1, 2):
        made.train_step(make_experiences(step), step)
        for decoder in (made.actor.decoder, made.reference.scorer.decoder):
            assert isinstance(decoder, FastPackedDecoder)
            assert decoder._head is None and decoder.layers[0].maps.qkv._weight is None
    assert all(torch.equal(a, b) for a, b in zip(held(plain), held(made), strict=True))
    owned = {id(parameter) for group in made.optimizer.param_groups for parameter in group["params"]}
    assert owned == {id(parameter) for parameter in made.model.parameters()}


def test_a_reference_without_parameters_of_its_own_says_that_it_holds_none(
    make_config: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    trained(make_config(algorithm=TERMS, model=LORA, trainer=tree(True)), "cpu")
    assert f"{REF} has no effect: the reference is the policy's model without its adapter" in caplog.text


@pytest.mark.difference("Critic offload")
def test_the_critic_waits_in_host_memory_as_its_own_section_says(
    make_config: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    def held(critic: dict[str, Any], is_on: bool = False) -> tuple[list[nn.Module], list[Any], Any]:
        detailed = tree(is_on)["trainer_config"] | {"critic": {"model": {"fsdp_config": critic}}}
        config = make_config(algorithm=PPO, trainer={"trainer_config": detailed})
        made = ActorWorker(config, tokenizer=None, total_steps=6, device="cpu")
        assert made.critic is not None
        return list(made.offload._models), list(made.offload._optimizers), made

    models, optimizers, made = held({"param_offload": True, "optimizer_offload": True})
    assert models == [made.critic.model] and optimizers == [made.critic.optimizer]
    for key in ("param_offload", "optimizer_offload"):
        assert f"critic.model.fsdp_config.{key} has no effect: the trainer computes on the CPU" in caplog.text
    models, optimizers, made = held({"optimizer_offload": True}, is_on=True)
    assert models == [made.model, made.critic.model] and optimizers == [made.optimizer, made.critic.optimizer]
    models, optimizers, made = held({"param_offload": False}, is_on=True)
    assert models == [made.model] and optimizers == [made.optimizer, made.critic.optimizer]
    made.offload.is_active = True  # the moves of a GPU, from the CPU to the CPU
    first = made.train_step(make_experiences(1), 1)
    assert first["critic/grad_norm"] == held({})[2].train_step(make_experiences(1), 1)["critic/grad_norm"] > 0


def test_the_reference_scores_in_micro_batches_of_its_own(make_config: Maker) -> None:
    def passes(**ref: Any) -> tuple[list[int], Tensor]:
        section = {"actor": FLOAT32 | {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 8}, "ref": ref}
        config = make_config(algorithm=TERMS, trainer={"trainer_config": {"actor_rollout_ref": section}})
        made = ActorWorker(config, tokenizer=None, total_steps=6, device="cpu")
        assert made.reference is not None and isinstance(made.reference.scorer.decoder, FastPackedDecoder)
        rows: list[int] = []
        made.reference.scorer.decoder.register_forward_hook(lambda _, args, __: rows.append(args[0].num_rows))
        return rows, made.reference.compute_log_prob(collate(make_experiences(1)))

    alike, expected = passes()
    assert alike == [8]
    for ref, split in (
        ({"log_prob_micro_batch_size_per_gpu": 3}, lambda rows: rows == [3, 3, 2]),
        ({"log_prob_use_dynamic_bsz": True}, lambda rows: rows == [8]),
        ({"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": 64}, lambda rows: len(rows) == 2),
    ):
        rows, found = passes(**ref)
        assert split(rows) and sum(rows) == 8 and float((found - expected).abs().max()) < 1e-5


def test_one_worker_whose_weights_stay_in_host_memory_is_a_rank_with_its_gpu(make_config: Maker) -> None:
    def asked(*, policy: bool, mode: str, **cluster: int) -> tuple[bool, float]:
        config = make_config(mode=mode, trainer={"offload_policy": policy}, cluster=cluster)
        return has_ranks(config), gpus_of_rank(config, 1)

    shared, own = {"trainer_gpu_num": 1, "total_gpu_num": 1}, {"trainer_gpu_num": 1, "total_gpu_num": 4}
    assert asked(policy=True, mode="both", **shared) == (True, 0.5)
    assert asked(policy=True, mode="train", **shared) == asked(policy=True, mode="both", **own) == (True, 1.0)
    assert asked(policy=False, mode="both", **own) == (False, 1.0)
    assert asked(policy=True, mode="both") == (torch.cuda.is_available(), 0.0)


@pytest.mark.gpu
def test_a_policy_in_host_memory_is_computed_layer_by_layer_on_the_gpu(make_config: Maker) -> None:
    steps = [make_experiences(step) for step in (1, 2)]
    plain = trained(make_config(algorithm=TERMS, trainer=tree(False)), "cuda")[1]
    config = make_config(algorithm=TERMS, trainer={"offload_policy": True} | tree(False))

    async def run() -> list[float]:
        runtime = LocalRuntime()
        group = RankGroup(config, runtime=runtime, world=1)
        try:
            await group.prepare(total_steps=6)
            losses = [(await group.train_step(rows, n))["actor/final_loss"] for n, rows in enumerate(steps, 1)]
            return losses
        finally:
            await group.close()
            await runtime.close()

    assert needs_group(config) and asyncio.run(run()) == pytest.approx(plain, rel=1e-3)


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
