"""Forward passes over packed tokens agree with Hugging Face's own over padded rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.tiny import tiny_model
from tests.trainer.conftest import make_experiences
from trinity.algorithm import utils
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.verl import attention, logprob
from trinity.trainer.verl.decoder import FastPackedDecoder, HFPackedDecoder, is_common, make_decoder
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.logprob import logprob_and_entropy
from trinity.trainer.verl.output_layer import LogitRule, OutputLayer
from trinity.trainer.verl.packing import pack

FAMILIES = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 32},
    "gpt2": {},
}


def padded_scores(model: PreTrainedModel, batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of the counted tokens by the model's own forward over padded rows."""
    mask = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    logits = model(batch.tokens, attention_mask=mask.long(), use_cache=False).logits
    row, column = torch.nonzero(batch.action_mask, as_tuple=True)
    place = batch.prompt_lengths[row] + column
    chosen = logits[row, place - 1]
    return utils.logprobs_from_logits(chosen, batch.tokens[row, place]), utils.entropy_from_logits(chosen)


def backward(model: PreTrainedModel, scores: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a fixed mixture of `scores`."""
    weights = torch.randn(2, len(scores[0]), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (scores[0] * weights[0] + 0.3 * scores[1] * weights[1]).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_forward_equals_padded_forward(tmp_path: Path, family: str, ragged: bool, recompute: bool) -> None:
    model = tiny_model(tmp_path, family, **FAMILIES[family])
    reference = AutoModelForCausalLM.from_pretrained(tmp_path)
    batch = collate(make_experiences(1, tasks=3, ragged=ragged))
    decoder = make_decoder(model, dtype=torch.float32, recompute=recompute)
    assert isinstance(decoder, HFPackedDecoder if family == "gpt2" else FastPackedDecoder)
    reference.load_state_dict(model.state_dict())
    for share in {False, decoder.can_share_prompts}:
        expected = padded_scores(reference, batch)
        wanted = backward(reference, expected)
        packed = pack(batch, share_prompts=share)
        assert (packed.prefix is not None) == share
        with computing(packed):
            hidden = decoder.hidden(packed)
            got = logprob_and_entropy(hidden, decoder.head(), packed.labels, with_entropy=True)
            gradients = backward(model, got)
        assert max((a - b).abs().max().item() for a, b in zip(got, expected, strict=True)) < 3e-6
        scale = max(1.0, *(float(g.abs().max()) for g in wanted.values()))
        assert all(float((gradients[n] - wanted[n]).abs().max()) < 3e-6 * scale for n in wanted)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("factor", [0.0, 100.0])
def test_library_attention_equals_the_manual_one(
    tmp_path: Path, family: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tmp_path, family)
    batch = collate(make_experiences(1, tasks=3))
    packed = pack(batch, share_prompts=False)
    decoder = make_decoder(model, dtype=torch.float32, recompute=False)
    with computing(packed):
        manual = decoder.hidden(packed)
        monkeypatch.setattr(attention, "BLOCKWISE_MAX_LENGTH", 0)
        monkeypatch.setattr(attention, "MAX_PADDING_FACTOR", factor)
        library = decoder.hidden(packed)
    assert (manual - library).abs().max().item() < 3e-6 * manual.abs().max().item()
    assert not torch.equal(manual, library)


def test_rows_do_not_see_each_other(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "gpt2")
    decoder = make_decoder(model, dtype=torch.float32, recompute=False)
    experiences = make_experiences(1, tasks=3)
    alone = pack(collate(experiences[:1]), share_prompts=False)
    together = pack(collate(experiences), share_prompts=False)
    with computing(alone):
        first = decoder.hidden(alone)
    with computing(together):
        packed = decoder.hidden(together)
    assert torch.allclose(packed[: len(first)], first, atol=1e-5)


def test_bf16_products_stay_close(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "qwen2", scale=1.0)
    batch = collate(make_experiences(1, tasks=3))
    packed = pack(batch, share_prompts=True)
    scores = []
    for dtype in (torch.float32, torch.bfloat16):
        decoder = FastPackedDecoder(model, dtype=dtype, recompute=False)
        hidden = decoder.hidden(packed)
        assert hidden.dtype == dtype
        scores.append(logprob_and_entropy(hidden, decoder.head(), packed.labels)[0])
    assert scores[1].dtype == torch.float32
    assert 1e-5 < (scores[0] - scores[1]).abs().max().item() < 0.05
    model.zero_grad()
    scores[1].sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "common"),
    [({}, True), ({"hidden_act": "gelu"}, False), ({"attention_dropout": 0.1}, False), ({"mlp_bias": True}, False)],
)
def test_only_plain_models_take_the_fast_path(tmp_path: Path, changes: dict[str, Any], common: bool) -> None:
    assert is_common(tiny_model(tmp_path, "llama", **changes)) is common


@pytest.mark.difference("`entropy_from_logits_with_chunking`, `entropy_checkpointing`")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows_at_once", [3, 100])
@pytest.mark.parametrize("rule", [LogitRule(), LogitRule(0.4), LogitRule(1.7, 2.0)])
def test_logprobs_in_pieces_equal_those_at_once(
    temperature: float, rows_at_once: int, rule: LogitRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(logprob.CHUNK_BYTES, "cpu", 4 * 30 * rows_at_once)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 8, generator=generator, requires_grad=True)
    weight = torch.randn(30, 8, generator=generator, requires_grad=True)
    bias = torch.randn(30, generator=generator, requires_grad=True)
    labels = torch.randint(0, 30, (11,), generator=generator)
    mixture = torch.randn(2, 11, generator=generator)
    logits = hidden @ weight.t() + bias
    logits = (
        logits * rule.scale if rule.softcap is None else torch.tanh(logits * rule.scale / rule.softcap) * rule.softcap
    )
    scores = (utils.logprobs_from_logits(logits, labels, temperature), utils.entropy_from_logits(logits, temperature))
    wanted = torch.autograd.grad((scores[0] * mixture[0] + scores[1] * mixture[1]).sum(), (hidden, weight, bias))
    layer = OutputLayer(weight.detach(), bias, weight, rule)
    got = logprob_and_entropy(hidden, layer, labels, temperature=temperature, with_entropy=True)
    gradients = torch.autograd.grad((got[0] * mixture[0] + got[1] * mixture[1]).sum(), (hidden, weight, bias))
    for value, expected in zip((*got, *gradients), (*scores, *wanted), strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-5)
