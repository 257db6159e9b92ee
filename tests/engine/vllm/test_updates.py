"""New weights in a running vLLM: agreement afterwards, nothing of the old ones, one version a sample or a token."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import recomputed, response, run
from tests.engine.vllm.conftest import Served
from tests.tiny import tiny_model
from trinity.common.errors import SyncError
from trinity.common.experience import Experience

pytestmark = pytest.mark.slow

# Longer than a block of the cache (32 tokens), so that a second request finds it there.
PROMPT = "12+34=" * 12


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A model of the same shape with other weights."""
    return tiny_model(tmp_path_factory.mktemp("other"), "llama", seed=9, head_dim=32)


def difference(experience: Experience, model: PreTrainedModel) -> float:
    """Return the largest difference between an experience's logprobs and those of `model`."""
    return float((experience.logprobs - recomputed(model, experience)).abs().max())


def test_samples_agree_with_the_new_weights_head_and_cache_included(vllm: Served, other: PreTrainedModel) -> None:
    made, model = vllm

    async def turn() -> list[tuple[Experience, torch.Tensor]]:
        found = []
        for version, source in ((3, other), (4, model), (5, other)):
            await made.generate(PROMPT, max_tokens=2)  # fills the cache of the prompt with the old weights
            await made.update_weights(dict(source.named_parameters()), version=version)
            experience = (await made.generate(PROMPT, max_tokens=8))[0]
            found.append((experience, await made.logprobs(experience.tokens.tolist())))
        return found

    found = run(turn())
    assert made.model_version == 5
    assert [exp.info["model_version"] for exp, _ in found] == [3, 4, 5]
    for (experience, scores), source in zip(found, (other, model, other), strict=True):
        assert difference(experience, source) < 1e-5
        assert torch.allclose(scores[experience.prompt_length - 1 :], experience.logprobs, atol=1e-5)
    assert difference(found[1][0], other) > 0.1, "the models differ, so that old weights would be seen"


def test_weights_of_another_number_type_and_a_tied_head_are_taken(vllm: Served, other: PreTrainedModel) -> None:
    made, _ = vllm
    weights = {name: tensor.double() for name, tensor in other.named_parameters()}
    run(made.update_weights(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, version=2))
    assert difference(run(made.generate(PROMPT, max_tokens=8))[0], other) < 1e-5


def test_weights_that_do_not_fit_change_nothing(vllm: Served, other: PreTrainedModel) -> None:
    made, model = vllm
    weights = dict(other.named_parameters())
    missing = {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"}
    for wrong in (missing, weights | {"more": torch.zeros(2)}, weights | {"model.norm.weight": torch.zeros(3)}):
        with pytest.raises(SyncError, match="weights of version 8") as caught:
            run(made.update_weights(wrong, version=8))
        assert caught.value.code == "E5501"
    assert made.model_version == 0
    assert difference(run(made.generate(PROMPT, max_tokens=8))[0], model) < 1e-5


def test_an_update_waits_for_samples_under_way_and_passes_waiting_ones(vllm: Served, other: PreTrainedModel) -> None:
    made, model = vllm

    async def beside() -> list[Experience]:
        # 24 requests on 16 places: eight wait and get the new weights.
        calls = [made.generate("1+1=", max_tokens=110, ignore_eos=True, seed=i) for i in range(24)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        while len(made._ready().active) < 16:
            await asyncio.sleep(0.005)
        await made.update_weights(dict(other.named_parameters()), version=1)
        return [group[0] for group in await asyncio.gather(*tasks)]

    experiences = run(beside())
    assert [exp.info["model_version"] for exp in experiences] == [0] * 16 + [1] * 8
    assert not any("model_versions" in exp.info for exp in experiences)
    for experience in experiences:
        source = other if experience.info["model_version"] else model
        assert difference(experience, source) < 1e-5


@pytest.mark.parametrize("asked_by", ["argument", "setting"])
def test_samples_under_way_go_on_with_new_weights_and_say_which_made_a_token(
    vllm: Served, other: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, asked_by: str
) -> None:
    made, model = vllm
    if asked_by == "setting":
        monkeypatch.setattr(made, "settings", dataclasses.replace(made.settings, updates_in_flight=True))
    asked = {"in_flight": True} if asked_by == "argument" else {}

    async def across(pause_s: float) -> list[Experience]:
        await made.update_weights(dict(model.named_parameters()), version=0)
        tasks = [asyncio.ensure_future(made.generate(PROMPT, max_tokens=50, ignore_eos=True)) for _ in range(4)]
        await asyncio.sleep(pause_s)
        await made.update_weights(dict(other.named_parameters()), version=6, **asked)
        return [group[0] for group in await asyncio.gather(*tasks)]

    # On a busy machine the update may come before the first token or after the last one.
    tries = (run(across(pause_s)) for pause_s in (0.1, 0.05, 0.2, 0.1, 0.4, 0.8))
    experiences = next((all_four for all_four in tries if all("model_versions" in exp.info for exp in all_four)), [])
    assert len(experiences) == 4, "no update came while the samples were under way"
    for experience in experiences:
        versions = experience.info["model_versions"]
        assert len(versions) == len(response(experience)) == 50
        assert set(versions) == {0, 6} and versions == sorted(versions)
        assert experience.info["model_version"] == 0, "the oldest, from which staleness counts"
        start = versions.index(6)
        assert torch.allclose(experience.logprobs[:start], recomputed(model, experience)[:start], atol=1e-5)
        assert torch.allclose(experience.logprobs[start:], recomputed(other, experience)[start:], atol=1e-5)
