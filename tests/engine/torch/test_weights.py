"""New weights: copied between samples, verified, never shared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from tests.tiny import tiny_model
from trinity.common.errors import SyncError
from trinity.common.experience import Experience
from trinity.engine.torch.engine import TorchEngine

Made = tuple[Path, PreTrainedModel]


def other(tmp_path: Path, family: str, **dims: int) -> PreTrainedModel:
    return tiny_model(tmp_path / "other", family, seed=1, **dims)


def sampled(made: TorchEngine, **arguments: object) -> object:
    return made.generate("12+34=", sample_ids=["x"], max_tokens=16, ignore_eos=True, **arguments)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("how", ["parameters", "state dict"])
def test_new_weights_give_their_logprobs(request: pytest.FixtureRequest, tmp_path: Path, family: str, how: str) -> None:
    path, old = request.getfixturevalue(family)
    new = other(tmp_path, family)
    weights: dict[str, Tensor] = dict(new.named_parameters()) if how == "parameters" else new.state_dict()

    async def call() -> tuple[Experience, Experience, int]:
        async with engine(path) as made:
            before = await sampled(made)
            await made.update_weights(weights, version=7)
            return before[0], (await sampled(made))[0], made.model_version

    before, after, version = run(call())
    assert version == 7
    assert (before.info["model_version"], after.info["model_version"]) == (0, 7)
    assert (before.logprobs - recomputed(old, before)).abs().max() <= 1e-5
    assert (after.logprobs - recomputed(new, after)).abs().max() <= 1e-5
    assert response(before) != response(after)


@pytest.mark.difference("Engine's weights")
def test_the_engine_shares_nothing_with_the_trainer(llama: Made, tmp_path: Path) -> None:
    new = other(tmp_path, "llama")

    async def call() -> tuple[Experience, Experience]:
        async with engine(llama[0]) as made:
            await made.update_weights(dict(new.named_parameters()), version=1)
            first = await sampled(made)
            with torch.no_grad():
                for parameter in new.parameters():
                    parameter.zero_()
            return first[0], (await sampled(made))[0]

    first, second = run(call())
    assert response(first) == response(second) and torch.equal(first.logprobs, second.logprobs)


@pytest.mark.difference("Engine's weights")
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_one_version_makes_all_of_a_sample(llama: Made, tmp_path: Path, is_deterministic: bool) -> None:
    """Samples under way are finished with the old weights; those that wait get the new ones."""
    models = {0: llama[1], 1: other(tmp_path, "llama")}

    async def call() -> list[list[Experience]]:
        async with engine(llama[0], max_num_seqs=2, is_deterministic=is_deterministic) as made:
            early = [asyncio.ensure_future(sampled(made)) for _ in range(2)]
            while not (await made.stats())["prefix_groups"]:
                await asyncio.sleep(0)
            update = asyncio.ensure_future(made.update_weights(dict(models[1].named_parameters()), version=1))
            await asyncio.sleep(0)
            late = [sampled(made) for _ in range(3)]
            samples = await asyncio.gather(*early, *late)
            await update
            return samples

    samples = [exp for group in run(call()) for exp in group]
    assert samples[0].info["model_version"] == 0
    for exp in samples:
        assert (exp.logprobs - recomputed(models[exp.info["model_version"]], exp)).abs().max() <= 1e-5
    assert samples[-1].info["model_version"] == 1


def test_weights_that_do_not_fit_are_refused_and_nothing_changes(llama: Made) -> None:
    path, model = llama
    good = {name: tensor + 1 for name, tensor in model.named_parameters()}
    name = "model.layers.1.mlp.up_proj.weight"
    bad = {
        "1 missing .model.layers.1.mlp.up_proj.weight": {key: value for key, value in good.items() if key != name},
        "1 unexpected .model.extra": good | {"model.extra": torch.zeros(1)},
        r"up_proj.weight must have the shape \[128, 64\], got \[2, 2\]": good | {name: torch.zeros(2, 2)},
    }

    async def call() -> tuple[Experience, Experience, int]:
        async with engine(path) as made:
            before = await sampled(made)
            for message, weights in bad.items():
                with pytest.raises(SyncError, match=message):
                    await made.update_weights(weights, version=3)
            return before[0], (await sampled(made))[0], made.model_version

    before, after, version = run(call())
    assert version == 0 and torch.equal(before.logprobs, after.logprobs)


def test_weights_are_converted_to_the_engine_number_type(llama: Made, tmp_path: Path) -> None:
    new = other(tmp_path, "llama")

    async def call() -> list[Experience]:
        async with engine(llama[0]) as made:
            await made.update_weights({k: v.bfloat16() for k, v in new.named_parameters()}, version=1)
            return await sampled(made)

    (made,) = run(call())
    rounded = other(tmp_path, "llama")
    rounded.load_state_dict({k: v.bfloat16().float() for k, v in new.state_dict().items()})
    assert (made.logprobs - recomputed(rounded, made)).abs().max() <= 1e-5


def test_samples_under_way_may_go_on_with_newer_weights_and_say_so(llama: Made, tmp_path: Path) -> None:
    newer = other(tmp_path, "llama")

    async def call() -> tuple[list[Experience], Experience]:
        async with engine(llama[0], updates_in_flight=True) as made:
            early = asyncio.ensure_future(made.generate("12+34=", n=2, max_tokens=60, min_tokens=60, temperature=1.0))
            while made._ready()[1].batch.counts.steps < 5:
                await asyncio.sleep(0.001)
            await made.update_weights(dict(newer.named_parameters()), version=1)
            assert not early.done(), "nobody waited for the samples under way"
            (late,) = await made.generate("12+34=", n=1, max_tokens=4)
            return await early, late

    early, late = run(call())
    for exp in early:
        versions = exp.info["model_versions"]
        assert len(versions) == exp.response_length > 20
        assert versions == sorted(versions) and set(versions) == {0, 1} and exp.info["model_version"] == 0
        first = versions.index(1)
        old, new = recomputed(llama[1], exp), recomputed(newer, exp)
        assert (exp.logprobs[:first] - old[:first]).abs().max() <= 1e-5
        assert (exp.logprobs[first:] - new[first:]).abs().mean() < (exp.logprobs[first:] - old[first:]).abs().mean()
        assert Experience.deserialize(exp.serialize()).info["model_versions"] == versions
    assert "model_versions" not in late.info and late.info["model_version"] == 1
    assert (late.logprobs - recomputed(newer, late)).abs().max() <= 1e-5
