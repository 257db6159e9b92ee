"""One step of every way in which the trainer computes, against the plainest one: float32, all rows at once, the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cuda_refusals import refusing
from tests.gpu.parts import config_of, family_model, worker_on
from tests.trainer.conftest import make_branches, make_episodes, make_experiences
from trinity.trainer.batch import collate
from trinity.trainer.verl.worker import ActorWorker

CPU = torch.device("cpu")
SGD = {"optimizer": {"optimizer_type": "sgd", "lr": 0.05}}
KL = {"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}, "entropy_loss_fn_args": {"entropy_coef": 0.05}}
FULL = {"kl_loss_fn": "full", "kl_loss_fn_args": {"kl_coef": 0.1}}
PPO = {"algorithm_type": "ppo", "advantage_fn": "ppo"}
LORA = {"lora_configs": [{"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}]}
OFFLOAD = {"param_offload": True, "optimizer_offload": True}
WHOLE = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 8}

# What is trained, and what else may change only the order in which its numbers are added up.
TRAINED: dict[str, dict[str, Any]] = {
    "policy": {"algorithm": KL},
    "divergence": {"algorithm": FULL},
    "adapter": {"algorithm": KL, "model": LORA},
    "critic": {"algorithm": PPO},
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "row by row": {"actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 1}},
    "by tokens": {"actor": {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 40}},
    "recomputed": {"tree": {"model": {"enable_gradient_checkpointing": True}}},
    "offloaded": {
        "actor": {**WHOLE, "fsdp_config": OFFLOAD},
        "tree": {"ref": {"fsdp_config": {"param_offload": True}}},
    },
}
COMPARED = ("actor/final_loss", "actor/grad_norm", "critic/grad_norm", "critic/vf_loss")
FAMILIES = ("qwen3", "gpt2")
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
EVERY = [(f, t, w, d) for f in FAMILIES for t in TRAINED for w in WAYS for d in TOLERANCE]
FEW = [("qwen3", t, w, "float32") for t in TRAINED for w in ("row by row", "recomputed")]
FEW += [("qwen3", "policy", "plain", "bfloat16"), ("gpt2", "adapter", "recomputed", "bfloat16")]
CASES = [("cpu", *case) for case in FEW] + [pytest.param("cuda", *case, marks=pytest.mark.gpu) for case in EVERY]

Step = tuple[dict[str, float], dict[str, Tensor]]


def worker_of(path: Path, device: torch.device, trained: str, way: str, dtype: str) -> ActorWorker:
    """Return a worker that trains one of `TRAINED` in one of `WAYS`."""
    sections = copy.deepcopy({**TRAINED[trained], **WAYS[way]})
    actor = {**WHOLE, **sections.pop("actor", {})}
    written = {"dtype": dtype} | actor.pop("fsdp_config", {})
    algorithm = {**SGD, **sections.pop("algorithm")}
    return worker_on(device, config_of(path, actor={**actor, "fsdp_config": written}, algorithm=algorithm, **sections))


def change_of(worker: ActorWorker) -> Step:
    """Return the metrics of a step, and by how much it moved each weight."""
    before = {name: tensor.cpu().clone() for name, tensor in worker.weights().items()}
    metrics = worker.train_step(make_experiences(1), 1)
    return metrics, {name: tensor.cpu() - before[name] for name, tensor in worker.weights().items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each family."""
    made = {family: tmp_path_factory.mktemp(family) / "model" for family in FAMILIES}
    for family, path in made.items():
        family_model(path, family)
    return made


@pytest.fixture(scope="module")
def plain(models: dict[str, Path]) -> dict[tuple[str, str], Step]:
    """The steps that have been computed in the plainest way."""
    return {}


@pytest.mark.parametrize(("device", "family", "trained", "way", "dtype"), CASES, indirect=["device"])
def test_a_step_is_that_of_float32_with_all_rows_at_once(
    models: dict[str, Path],
    plain: dict[tuple[str, str], Step],
    device: torch.device,
    family: str,
    trained: str,
    way: str,
    dtype: str,
) -> None:
    path = models[family]
    if (family, trained) not in plain:
        plain[family, trained] = change_of(worker_of(path, CPU, trained, "plain", "float32"))
    wanted, moved = plain[family, trained]
    metrics, change = change_of(worker_of(path, device, trained, way, dtype))
    tolerance = TOLERANCE[dtype]
    keys = [key for key in COMPARED if key in wanted]
    assert {key: metrics[key] for key in keys} == pytest.approx(
        {key: wanted[key] for key in keys}, rel=tolerance, abs=tolerance
    )
    size = torch.cat([each.flatten() for each in moved.values()]).norm()
    error = torch.cat([(change[name] - each).flatten() for name, each in moved.items()]).norm()
    assert size > 1e-4 and float(error / size) <= 3 * tolerance


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_share_prefixes_have_the_logprobs_of_rows_apart(
    models: dict[str, Path], device: torch.device, family: str, dtype: str
) -> None:
    batch = collate(make_episodes(episodes=3, turns=3, samples=2) + make_branches(rollouts=3))
    found = []
    for shares in (True, False):
        scorer = worker_of(models[family], device, "policy", "plain", dtype).actor.scorer
        scorer.decoder.can_share_prompts = scorer.decoder.can_share_prefixes = shares
        assert (scorer.pack(batch).forest is not None) == shares, "flex attention works on every device with sharing"
        found.append(scorer.compute_statistics(batch, [])["logprob"])
    assert float((found[0] - found[1]).abs().max()) <= 3 * TOLERANCE[dtype]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("trained", TRAINED)
def test_a_deterministic_step_needs_no_operation_that_cuda_refuses(
    models: dict[str, Path], device: torch.device, family: str, trained: str
) -> None:
    worker = worker_of(models[family], device, trained, "plain", "bfloat16")
    with refusing():
        metrics = worker.train_step(make_experiences(1), 1)
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ["plain", "offloaded"])
def test_a_checkpoint_continues_to_the_bit(tmp_path: Path, device: torch.device, way: str, dtype: str) -> None:
    path = tmp_path / "model"
    family_model(path, "qwen3")
    first, again = (worker_of(path, device, "critic", way, dtype) for _ in range(2))
    torch.use_deterministic_algorithms(True)
    try:
        first.train_step(make_experiences(1), 1)
        first.save(tmp_path / "saved", hf=True)
        again.load(tmp_path / "saved")
        losses = [worker.train_step(make_experiences(2), 2)["actor/final_loss"] for worker in (first, again)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses[0] == losses[1]
    weights = again.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in first.weights().items())
    where = {tensor.device.type for tensor in weights.values()}
    assert where == {"cpu" if way == "offloaded" else device.type}
