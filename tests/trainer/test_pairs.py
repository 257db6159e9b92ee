"""Pairs of a chosen and a rejected response: never parted, one loss a pair, whatever the split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_model
from tests.trainer.conftest import VOCABULARY, make_experiences, moved
from tests.trainer.test_against_plain_torch import (
    assert_same_step,
    make_worker,
    optimizer_args,
    plain_copy,
    plain_optimizer,
    plain_step,
)
from tests.trainer.test_update import assert_same, gradients, worker
from trinity.common.config import Config
from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience
from trinity.trainer.batch import collate, micro_batches, mini_batches
from trinity.trainer.verl.loss import Metrics
from trinity.trainer.verl.settings import actor_settings

Maker = Callable[..., Config]
BETA, SMOOTHING, SFT = 0.3, 0.1, 0.7
ARGS = {"beta": BETA, "label_smoothing": SMOOTHING, "sft_coef": SFT}
ALGORITHM = {"algorithm_type": "dpo", "kl_loss_fn": None, "policy_loss_fn_args": ARGS}


def make_pairs(number: int, *, seed: int = 0) -> list[Experience]:
    """Return random pairs; every third shares its prompt with the one before."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> Tensor:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(3, VOCABULARY, (length,), generator=generator)

    pairs: list[Experience] = []
    for index in range(number):
        prompt = pairs[-1].tokens if index % 3 == 2 else draw(2, 8)
        chosen, rejected = draw(1, 9), draw(1, 9)
        pairs.append(Experience(EID("d/1", index), prompt, len(prompt), chosen=chosen, rejected=rejected))
    return pairs


@pytest.mark.difference("DPO")
@settings(max_examples=60)
@given(
    number=st.integers(1, 13),
    mini=st.none() | st.integers(1, 14),
    max_tokens=st.none() | st.integers(1, 120),
    max_rows=st.none() | st.integers(1, 9),
    seed=st.none() | st.integers(0, 5),
)
def test_no_split_parts_a_pair(
    number: int, mini: int | None, max_tokens: int | None, max_rows: int | None, seed: int | None
) -> None:
    batch = collate(make_pairs(number))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    parts = mini_batches(batch.num_experiences, size=mini, generator=generator, rows_per_experience=2)
    assert sorted(sum(parts, [])) == list(range(2 * number))
    for part in parts:
        assert len(part) <= 2 * (mini or number)
        rows = batch.select(part)
        groups = micro_batches(rows, range(len(part)), max_tokens=max_tokens, max_rows=max_rows)
        assert sorted(sum(groups, [])) == list(range(len(part)))
        for group in groups:
            uids = [rows.uids[row] for row in group]
            assert uids[0::2] == uids[1::2] and all(row % 2 == place % 2 for place, row in enumerate(group))
            is_one = len(group) == 2
            assert is_one or max_rows is None or len(group) <= max_rows
            assert is_one or max_tokens is None or int(rows.lengths[group].sum()) <= max_tokens


def test_the_rows_of_a_pair_are_the_chosen_and_then_the_rejected_response() -> None:
    pair = Experience(EID("d/1", 0), [5, 6], 2, chosen=[7, 8, 9], rejected=[4], info={"model_version": 3})
    batch = collate([pair])
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 9], [5, 6, 4, 0, 0]]
    assert batch.action_mask.tolist() == [[True, True, True], [True, False, False]]
    assert (len(batch), batch.num_experiences, batch.num_action_tokens) == (2, 1, 4)
    with pytest.raises(DataError, match=r"E4609.*1 of the 9 experiences of a training batch are pairs"):
        collate([*make_experiences(1), pair])


def test_sizes_count_pairs(make_config: Maker) -> None:
    actor = {"ppo_micro_batch_size_per_gpu": 3, "ppo_mini_batch_size": 5}
    trainer = {"use_dynamic_bsz": False, "trainer_config": {"actor_rollout_ref": {"actor": actor}}}
    made = actor_settings(make_config(algorithm=ALGORITHM, trainer=trainer))
    assert (made.max_rows, made.mini_batch_size, made.temperature) == (6, 5, 1.0)


def preferring(make_config: Maker, seed: int = 5, **split: Any) -> Any:
    """Return a worker whose policy is not the reference."""
    return moved(worker(make_config(algorithm=ALGORITHM), **split), share=0.02, seed=seed)


def metrics_of(made: Any, pairs: list[Experience]) -> dict[str, float]:
    metrics = Metrics()
    made.actor._accumulate(made._with_logprobs(collate(pairs)), metrics, None)
    return metrics.means()


SPLITS = (
    {"max_rows": 2, "max_tokens": None},
    {"max_rows": 6, "max_tokens": None},
    {"max_tokens": 40},
    {"max_tokens": 1},
)


@pytest.mark.difference("DPO")
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_the_split_changes_neither_gradient_nor_metrics(make_config: Maker, split: dict[str, Any]) -> None:
    pairs = make_pairs(7)
    whole, parts = preferring(make_config, max_tokens=None, max_rows=None), preferring(make_config, **split)
    assert_same(gradients(whole, pairs), gradients(parts, pairs))
    expected, found = metrics_of(whole, pairs), metrics_of(parts, pairs)
    assert set(expected) == {
        "final_loss", "dpo_loss", "sft_loss", "chosen_reward", "rejected_reward", "margin", "accuracy_mean",
        "chosen_logprob", "rejected_logprob",
    }  # fmt: skip
    assert found == {name: pytest.approx(value, abs=1e-5) for name, value in expected.items()}
    assert 0.0 < expected["accuracy_mean"] < 1.0


def response_logprob(model: nn.Module, prompt: Tensor, response: Tensor) -> tuple[Tensor, int]:
    """Return the log-probability of a response and its length."""
    tokens = torch.cat([prompt, response])
    logp = torch.log_softmax(model(tokens[None]).logits[0, len(prompt) - 1 : -1], -1)
    return logp.gather(1, response[:, None]).sum(), len(response)


def plain_dpo(model: nn.Module, reference: nn.Module, pairs: list[Experience]) -> tuple[Tensor, dict[str, float]]:
    """Return the mean loss of the pairs, one after another, and some of its metrics."""
    losses, margins, chosen = [], [], []
    for pair in pairs:
        good, length = response_logprob(model, pair.tokens, pair.chosen)
        bad, _ = response_logprob(model, pair.tokens, pair.rejected)
        with torch.no_grad():
            good_before, _ = response_logprob(reference, pair.tokens, pair.chosen)
            bad_before, _ = response_logprob(reference, pair.tokens, pair.rejected)
        margin = BETA * ((good - good_before) - (bad - bad_before))
        preferred, other = torch.log(torch.sigmoid(margin)), torch.log(torch.sigmoid(-margin))
        losses.append(-(1 - SMOOTHING) * preferred - SMOOTHING * other - SFT * good / length)
        margins.append(margin.item())
        chosen.append(good.item())
    count = len(pairs)
    return torch.stack(losses).mean(), {"margin": sum(margins) / count, "chosen_logprob": sum(chosen) / count}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_dpo_step_is_that_of_plain_torch(make_config: Maker, tmp_path: Path, family: str, optimizer: str) -> None:
    tiny_model(tmp_path / "model", family, seed=3, scale=3.0)
    made = make_worker(make_config, tmp_path / "model", ALGORITHM | {"optimizer": optimizer_args(optimizer)})
    pairs = make_pairs(7)
    plain = plain_copy(made, tmp_path / "model").double()
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "model").double()
    loss, expected = plain_dpo(plain, reference, pairs)
    clipped = plain_step(plain, loss, plain_optimizer(plain, optimizer))
    metrics = made.train_step(pairs, 1)
    assert metrics["actor/final_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert {name: metrics[f"actor/{name}"] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert abs(expected["margin"]) > 1e-2
    assert_same_step(made, plain, clipped, optimizer)
