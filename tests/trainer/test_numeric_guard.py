"""What is not finite changes no state and reaches no checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import make_experiences
from trinity.common.config import Config
from trinity.common.errors import NumericError
from trinity.trainer.batch import collate
from trinity.trainer.quarantine import Quarantine
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
ADAPTIVE = {"adaptive": True, "kl_coef": 0.1, "target_kl": 0.01, "horizon": 100}


@pytest.mark.difference("Adaptive KL coefficient")
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_the_adaptive_coefficient_follows_nats_a_token_whatever_the_aggregation(make_config: Maker, mode: str) -> None:
    algorithm = {"kl_loss_fn": "k2", "kl_loss_fn_args": ADAPTIVE, "loss_agg_mode": mode}
    made = ActorWorker(make_config(algorithm=algorithm), tokenizer=None, total_steps=6)
    batch = collate(make_experiences(1))
    before = made.actor.compute_log_prob(batch)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(1.05)
    made.actor.decoder.refresh()
    moved = made.actor.compute_log_prob(batch) - before
    per_token = float((0.5 * moved.square())[batch.action_mask].mean())
    made.loss_fn.kl.target_kl = per_token / 1.1  # within the bounds of the controller, where it tells values apart
    made.train_step(make_experiences(1), 1)
    assert made.loss_fn.kl.kl_coef == pytest.approx(0.1 * (1.0 + 0.1 * 8 / 100), rel=1e-6)


def test_a_divergence_that_is_not_finite_leaves_the_adaptive_coefficient_alone(make_config: Maker) -> None:
    made = ActorWorker(
        make_config(algorithm={"kl_loss_fn": "k2", "kl_loss_fn_args": ADAPTIVE}), tokenizer=None, total_steps=6
    )
    made.train_step(make_experiences(1), 1)
    coefficient = made.loss_fn.kl.kl_coef
    reference = next(made.reference.model.parameters())
    kept = reference.detach().clone()
    with torch.no_grad():
        reference.fill_(float("nan"))
    assert made.train_step(make_experiences(1), 2)["actor/skipped_steps"] == 1.0
    assert made.loss_fn.kl.kl_coef == coefficient
    with torch.no_grad():
        reference.copy_(kept)
    metrics = made.train_step(make_experiences(1), 3)
    assert metrics["actor/skipped_steps"] == 1.0 and metrics["actor/grad_norm"] > 0.0
    assert made.loss_fn.kl.kl_coef != coefficient


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(make_config: Maker, tmp_path: Path, value: float) -> None:
    made = ActorWorker(make_config(), tokenizer=None, total_steps=6)
    made.save(tmp_path / "good", hf=False)
    with torch.no_grad():
        made.model.lm_head.weight[3, 3] = value
    with pytest.raises(NumericError, match=r"E6002.*1 tensors are not finite \(first model.embed_tokens.weight"):
        made.save(tmp_path / "bad", hf=False)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_the_batch_of_a_skipped_step_is_written_and_holds_what_is_needed(
    make_config: Maker, tmp_path: Path, value: str
) -> None:
    made = ActorWorker(make_config(), tokenizer=None, total_steps=6)
    experiences = make_experiences(1)
    made.model.model.norm.weight.register_hook(lambda grad: grad * float(value))
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    made.train_step(experiences, 4)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.weights().items())
    folder = tmp_path / "job" / "quarantine"
    assert sorted(file.name for file in folder.iterdir()) == ["step_4_1.json", "step_4_1.safetensors"]
    document = json.loads((folder / "step_4_1.json").read_text())
    assert (document["step"], document["mini_batch"], document["num_bad_parameters"]) == (4, 1, 1)
    assert document["bad_parameters"] == ["model.norm.weight"]
    tensors = load_file(folder / document["tensors"])
    batch = collate(experiences)
    assert [row["uid"] for row in document["rows"]] == list(batch.uids)
    assert [row["reward"] for row in document["rows"]] == batch.rewards.tolist()
    for name in ("advantages", "rollout_logprob"):
        assert torch.equal(tensors[name], batch.columns[name])
    assert torch.equal(tensors["tokens"], batch.tokens) and torch.equal(tensors["action_mask"], batch.action_mask)
    assert torch.equal(tensors["logprob"], made.actor.compute_log_prob(batch))
    assert document["rows"][1]["advantages_range"] == [1.0, 1.0] and document["rows"][1]["not_finite"] == []


def test_the_quarantine_names_rows_that_are_not_finite_and_keeps_the_newest(tmp_path: Path) -> None:
    batch = collate(make_experiences(1))
    logprob = torch.zeros(batch.action_mask.shape)
    logprob[2, 0] = float("-inf")
    quarantine = Quarantine(tmp_path / "quarantine", max_batches=3)
    for step in (9, 10, 11, 12):
        file = quarantine.write(
            batch, step=step, mini_batch=1, norm=float("inf"), parameters=[], computed={"logprob": logprob}
        )
    assert file is not None
    document = json.loads(file.read_text())
    assert document["gradient_norm"] == "inf"
    assert [row["uid"] for row in document["rows"] if row["not_finite"] == ["logprob"]] == [batch.uids[2]]
    assert document["rows"][2]["logprob_range"] == ["-inf", 0.0]
    names = {name.stem for name in (tmp_path / "quarantine").iterdir()}
    assert names == {"step_10_1", "step_11_1", "step_12_1"}, "9 is the oldest, although not as text"


def test_a_quarantine_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "quarantine").write_text("a file in the way")
    batch = collate(make_experiences(1))
    quarantine = Quarantine(tmp_path / "quarantine")
    logprob = torch.zeros(batch.action_mask.shape)
    assert quarantine.write(batch, step=1, mini_batch=1, norm=1.0, parameters=[], computed={"logprob": logprob}) is None
    assert "the batch of training step 1 cannot be written to" in caplog.text


def test_the_error_after_three_names_the_file(make_config: Maker, tmp_path: Path) -> None:
    made = ActorWorker(make_config(), tokenizer=None, total_steps=6)
    made.model.lm_head.weight.register_hook(lambda grad: grad * float("nan"))
    assert made.is_healthy
    made.train_step(make_experiences(1), 1)
    assert not made.is_healthy
    made.train_step(make_experiences(1), 2)
    with pytest.raises(NumericError, match=r"E6001.*the batch is in .*quarantine/step_3_1\.json"):
        made.train_step(make_experiences(1), 3)
    assert len(list((tmp_path / "job" / "quarantine").glob("*.json"))) == 3
