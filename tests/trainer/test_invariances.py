"""What must not change the gradient of a mini-batch, for every policy loss that is served, in float32 to 1e-6.

One worker a loss; each variant is one pass over the mini-batch by the real actor, only the padded one is computed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import moved
from tests.trainer.test_losses import LOSSES, _config, _experiences, _mixed, _near
from tests.trainer.test_update import assert_same, gradients, worker
from trinity.algorithm.utils import entropy_from_logits, logprobs_from_logits
from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.trainer.batch import collate
from trinity.trainer.verl.decoder import FastPackedDecoder, HFPackedDecoder
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
TERMS = {"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}, "entropy_loss_fn_args": {"entropy_coef": 0.05}}


def with_terms(make_config: Maker, name: str, **tree: Any) -> Config:
    """Return the configuration of a loss with a KL and an entropy term, so that these are held to it as well."""
    base = _config(make_config, name).algorithm
    algorithm = {"policy_loss_fn": name, "policy_loss_fn_args": base.policy_loss_fn_args, **TERMS}
    return make_config(algorithm=algorithm, **tree)


def apart_from_the_reference(made: ActorWorker) -> ActorWorker:
    """Move the policy a little, as a training does: at the reference itself the KL term has no gradient."""
    return moved(made, share=0.01, seed=3)


def padded_gradients(made: ActorWorker, experiences: list[Experience]) -> dict[str, Tensor]:
    """Return the gradients by Hugging Face's forward over rows that are padded on the right, all at once."""
    batch = made.actor._with_selection(made._with_logprobs(collate(experiences)))
    mask = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    logits = made.model(batch.tokens, attention_mask=mask.long(), use_cache=False).logits
    rows, columns = torch.nonzero(batch.action_mask, as_tuple=True)
    places = batch.prompt_lengths[rows] + columns
    chosen = logits[rows, places - 1]
    spread = torch.zeros(2, *batch.action_mask.shape)
    scores = torch.stack([logprobs_from_logits(chosen, batch.tokens[rows, places]), entropy_from_logits(chosen)])
    logprob, entropy = spread.index_put((torch.arange(2)[:, None], rows[None], columns[None]), scores)
    shares = made.loss_fn.shares(batch, batch, normalizer=made.actor.settings.normalizer)
    tensors = {"action_mask": batch.action_mask} | batch.columns | batch.values
    made.optimizer.zero_grad()
    made.loss_fn(logprob, entropy, tensors, shares)[0].backward()
    return {name: parameter.grad.clone() for name, parameter in made.model.named_parameters()}


@pytest.mark.difference("Loss over micro-batches")
@pytest.mark.parametrize("name", LOSSES)
def test_how_a_mini_batch_is_computed_does_not_change_its_gradient(make_config: Maker, name: str) -> None:
    made = apart_from_the_reference(worker(with_terms(make_config, name), max_rows=4, max_tokens=None))
    experiences = _mixed(name, _near(made, _experiences()))
    expected = gradients(made, experiences)
    actor = made.actor

    def again(rows: list[Experience], **settings: Any) -> dict[str, Tensor]:
        actor.settings = actor.scorer.settings = dataclasses.replace(actor.settings, **settings)
        return gradients(made, rows)

    shuffled = [experiences[i] for i in torch.randperm(12, generator=torch.Generator().manual_seed(3)).tolist()]
    assert_same(expected, again(shuffled), 1e-6)  # order
    assert_same(expected, again(experiences, max_rows=1), 1e-6)  # split by rows
    assert_same(expected, again(experiences, max_rows=None, max_tokens=40), 1e-6)  # split by tokens
    assert_same(expected, again(experiences, max_tokens=None), 1e-6)  # no split
    assert isinstance(actor.decoder, FastPackedDecoder)
    actor.decoder.recompute = True
    assert_same(expected, again(experiences), 1e-6)  # gradient checkpointing
    assert_same(expected, padded_gradients(made, experiences), 1e-6)  # padding in place of packing
    actor.decoder = actor.scorer.decoder = HFPackedDecoder(made.model, dtype=torch.float32, recompute=False)
    assert_same(expected, again(experiences, max_rows=3), 1e-6)  # Hugging Face's layers
