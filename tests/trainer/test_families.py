"""Every causal language-model family that the installed transformers knows: trained right, or refused by name.

Right means: log-probabilities of rows that are trained together, and the gradient of a loss over them, are those of
each row alone through the model's own eager forward in evaluation mode.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from tests.families import CASES, FAMILIES, VOCABULARY, case_config, tiny_model
from trinity.common.errors import EnvironmentProblem
from trinity.common.experience import EID, Experience
from trinity.common.models.families import REFUSED, families
from trinity.common.models.model_config import silence
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.verl.decoder import HFPackedDecoder, PackedDecoder, make_decoder
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.logprob import logprob_and_entropy
from trinity.trainer.verl.packing import pack

# Prompt and response tokens of each row: two rows share a prompt, all are longer than the window.
ROWS = ((8, 5), (8, 9), (3, 12))
TOLERANCE = 1e-5
# Their gradients differ by this much between two orders of sums on processors without AVX-512: 1e-5 and 6e-5.
ROUGH = {"zamba": 3e-5, "zaya": 1e-4}
UNPACKED = ("alibi",)  # variants that are padded in a family that is packed otherwise


def rows_of_text() -> TrainBatch:
    """Return rows of which the first two share a prompt."""
    generator = torch.Generator().manual_seed(3)
    prompts = {size: torch.randint(5, VOCABULARY, (size,), generator=generator) for size, _ in ROWS}
    experiences = []
    for number, (prompt, response) in enumerate(ROWS):
        answer = torch.randint(5, VOCABULARY, (response,), generator=generator)
        tokens = torch.cat([prompts[prompt], answer])
        experiences.append(Experience(EID(task=f"t{prompt}", run=number), tokens, prompt_length=prompt))
    return collate(experiences)


BATCH = rows_of_text()


def mixture(size: int) -> Tensor:
    """Return the weights of the tokens in the loss: some up, some down, as advantages are."""
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


def of_rows_alone(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    """Return log-probabilities and gradient by the model's own eager forward of one row after another."""
    model.zero_grad()
    found = []
    for row, length in enumerate(BATCH.lengths.tolist()):
        tokens, start = BATCH.tokens[row, :length], int(BATCH.prompt_lengths[row])
        logits = model(tokens[None], attention_mask=torch.ones(1, length, dtype=torch.long), use_cache=False).logits[0]
        chosen = logits[start - 1 : -1].log_softmax(-1)
        found.append(chosen.gather(1, tokens[start:, None])[:, 0])
    logprob = torch.cat(found)
    (logprob * mixture(len(logprob))).sum().backward()
    return logprob.detach(), gradients(model)


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def of_decoder(model: PreTrainedModel, decoder: PackedDecoder) -> tuple[Tensor, dict[str, Tensor]]:
    """Return log-probabilities and gradient of all rows together."""
    model.zero_grad()
    packed = pack(BATCH, share_prompts=decoder.can_share_prompts)
    with computing(packed):
        logprob, _ = logprob_and_entropy(decoder.hidden(packed), decoder.head(), packed.labels)
        (logprob * mixture(len(logprob))).sum().backward()
    return logprob.detach(), gradients(model)


def of_scores(decoder: PackedDecoder) -> Tensor:
    """Return log-probabilities of all rows together."""
    packed = pack(BATCH, share_prompts=decoder.can_share_prompts)
    with computing(packed):
        return logprob_and_entropy(decoder.hidden(packed), decoder.head(), packed.labels)[0]


def largest_difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the largest difference of two gradients, relative to the largest entry."""
    scale = max(float(tensor.abs().max()) for tensor in wanted.values())
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted) / scale


@pytest.fixture(autouse=True)
def quiet() -> object:
    """Transformers tells much about tiny models."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers_logging.set_verbosity(level)


@pytest.mark.difference("Model families in training")
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_a_family_is_trained_as_each_row_alone_or_refused(family: str, variant: str) -> None:
    calm = tiny_model(case_config(family, variant))
    config = case_config(family, variant, dropout=0.2)
    silence(config)
    model = tiny_model(config)
    model.load_state_dict(calm.state_dict())
    try:
        decoder = make_decoder(model, dtype=torch.float32, recompute=False)
    except EnvironmentProblem as problem:
        assert problem.code in ("E3130", "E3131")
        assert model.config.model_type in str(problem)
        assert families()[family].trainer == REFUSED
        return
    kind = decoder.layout.kind if isinstance(decoder, HFPackedDecoder) else "own"
    assert variant or kind == families()[family].trainer
    assert variant in UNPACKED or kind != "padded" or families()[family].trainer == "padded"
    wanted, of_wanted = of_rows_alone(calm)
    for recompute in (False, True):
        if recompute:
            if not model.supports_gradient_checkpointing:
                continue
            decoder = make_decoder(model, dtype=torch.float32, recompute=True)
        found, of_found = of_decoder(model, decoder)
        assert float((found - wanted).abs().max()) < TOLERANCE * max(1.0, float(wanted.abs().max()))
        assert largest_difference(of_found, of_wanted) < ROUGH.get(family, TOLERANCE)
    with torch.no_grad():
        assert torch.equal(of_scores(decoder), of_scores(decoder))


def test_the_table_has_every_family() -> None:
    assert families().keys() >= set(FAMILIES)
