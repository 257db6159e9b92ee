"""One running vLLM engine: its samples, errors and new weights, alone and beside one on two workers, and its death."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import engine, recomputed, response, run
from tests.engine.vllm.conftest import MAX_MODEL_LEN, Served, settings
from tests.tiny import tiny_model
from trinity.common.errors import DeadlineError, EngineError, SyncError
from trinity.common.experience import Experience
from trinity.engine.vllm.engine import VLLMEngine

pytestmark = pytest.mark.slow
PROMPTS = ["12+34=", "5*6=", "9-8=", "a+b=", "77+1=", "3-3="]
# Longer than a block of the cache (32 tokens), so that a second request finds it there.
LONG_PROMPT = "12+34=" * 12

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"n": 4, "max_tokens": 12, "sample_ids": ["a", "b", "c", "d"]},
    "greedy": {"temperature": 0.0, "max_tokens": 6},
    "temperature": {"n": 3, "temperature": 0.6, "max_tokens": 12, "seed": 5},
    "top-k and top-p": {"n": 3, "temperature": 1.3, "top_k": 6, "top_p": 0.8, "max_tokens": 12, "seed": 6},
    "minimum length": {"n": 4, "temperature": 2.0, "min_tokens": 8, "max_tokens": 12, "seed": 7},
    "stop strings": {"n": 6, "temperature": 3.0, "stop": ["a", "b", "1", "(", "Z"], "max_tokens": 40, "seed": 8},
    "stop strings after a minimum": {
        "n": 6, "temperature": 3.0, "stop": ["a", "b", "1", "(", "Z"], "min_tokens": 10, "max_tokens": 40, "seed": 9,
    },
    "stop strings after the first token": {
        "n": 12, "temperature": 3.0, "stop": list("ab1(Zcdefgh23"), "min_tokens": 1, "max_tokens": 40, "seed": 8,
    },
    "on after the end": {"n": 3, "temperature": 3.0, "ignore_eos": True, "max_tokens": 60, "seed": 10},
    "to the end of the sequence": {"prompt": "1" * (MAX_MODEL_LEN - 3), "n": 2, "ignore_eos": True, "seed": 11},
}  # fmt: skip


def facts(experience: Experience) -> list[Any]:
    """Return all that must not depend on the engine but the log-probabilities."""
    own = experience.info
    return [experience.tokens.tolist(), experience.truncate_status, experience.prompt_text, experience.response_text,
            own["finish_reason"], own["model_version"]]  # fmt: skip


@pytest.mark.difference("Log-probabilities of vLLM", "Noise of vLLM")
@pytest.mark.parametrize("way", WAYS)
def test_samples_are_those_of_the_torch_engine(vllm: Served, tied: tuple[Path, PreTrainedModel], way: str) -> None:
    made, model = vllm
    arguments = {"prompt": "12+34="} | WAYS[way]

    async def both() -> tuple[list[Experience], list[Experience]]:
        async with engine(tied[0], model={"max_model_len": MAX_MODEL_LEN}) as other:
            return await made.generate(**arguments), await other.generate(**arguments)

    ours, theirs = run(both())
    assert [facts(exp) for exp in ours] == [facts(exp) for exp in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.logprobs, other.logprobs, atol=1e-5)
        temperature = arguments.get("temperature", 1.0) or 1.0
        assert torch.allclose(one.logprobs, recomputed(model, one, temperature=temperature), atol=1e-5)
    if way == "stop strings":
        assert {exp.info["finish_reason"] for exp in ours} == {"stop"}
    if way == "stop strings after the first token":
        assert any(exp.response_text[:1] in WAYS[way]["stop"] for exp in ours), "one that vLLM alone would have ended"
        assert min(len(response(exp)) for exp in ours) >= 2
    if way == "minimum length":
        assert min(len(response(exp)) for exp in ours) >= 8


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_a_forward_pass(vllm: Served, temperature: float) -> None:
    made, model = vllm
    tokens = [4 + i % 50 for i in range(MAX_MODEL_LEN)]
    whole = Experience(tokens=torch.tensor(tokens), prompt_length=1, logprobs=torch.zeros(len(tokens) - 1))
    wanted = recomputed(model, whole, temperature=temperature)
    scored = run(made.logprobs(tokens, temperature=temperature))
    assert scored.dtype == torch.float32 and torch.allclose(scored, wanted, atol=1e-5)
    assert torch.allclose(run(made.logprobs(tokens[:2], temperature=temperature)), wanted[:1], atol=1e-5)


def test_a_conversation_becomes_an_experience(vllm: Served) -> None:
    made, model = vllm
    messages = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    made_of = run(made.convert_messages_to_experience(messages))
    assert made_of.response_text.startswith("2")
    assert torch.allclose(made_of.logprobs, recomputed(model, made_of), atol=1e-5)


def test_no_sample_is_lost_when_many_are_asked_for_at_once(vllm: Served) -> None:
    made, _ = vllm

    async def many() -> list[list[Experience]]:
        return await asyncio.gather(
            *(made.generate(f"{i}+1=", n=8, max_tokens=20, ignore_eos=True, seed=i) for i in range(12))
        )

    groups = run(many())
    assert [len(group) for group in groups] == [8] * 12
    assert {len(response(exp)) for group in groups for exp in group} == {20}
    assert {len(exp.logprobs) for group in groups for exp in group} == {20}


def test_a_call_that_nobody_waits_for_is_given_up(vllm: Served) -> None:
    made, _ = vllm
    before = made.settings

    async def late() -> float:
        made.settings = dataclasses.replace(before, timeout_s=0.05)
        with pytest.raises(DeadlineError, match="explorer.max_timeout"):
            await made.generate("1+1=", n=40, max_tokens=120, ignore_eos=True)
        made.settings = before
        cancelled = asyncio.ensure_future(made.generate("1+1=", n=40, max_tokens=120, ignore_eos=True))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        for _ in range(100):
            busy = await made.stats()
            await asyncio.sleep(0.05)
            if (await made.stats())["busy_s"] == busy["busy_s"]:
                return busy["generated_tokens"]
        raise AssertionError("the engine continues")

    try:
        run(late())
    finally:
        made.settings = before
    assert len(run(made.generate("1+1=", n=2, max_tokens=3))) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"prompt": "1" * MAX_MODEL_LEN}, "E5608"),
        ({"prompt": []}, "E5602"),
        ({"prompt": "1", "n": 0}, "E5602"),
        ({"prompt": "1", "beam": 3}, "E5602"),
    ],
)
def test_bad_requests_are_refused_and_the_engine_goes_on(vllm: Served, arguments: dict[str, Any], code: str) -> None:
    made, _ = vllm
    with pytest.raises(EngineError) as caught:
        run(made.generate(**arguments))
    assert caught.value.code == code
    assert len(run(made.generate("1+1=", max_tokens=2))) == 1


def test_the_processes_run_as_a_CPU_needs_it(served: VLLMEngine) -> None:
    assert [worker["num_threads"] for worker in served.workers] == [1], "threads of OpenMP spin while they wait"
    assert [worker["dynamo"] for worker in served.workers] == ["1"], "the first logprob waits for no compiler"
    assert [worker["dtypes"] for worker in served.workers] == [["torch.float32"]], "float32 stays float32"


# --------------------------------------------------------------------------- new weights
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
            await made.generate(LONG_PROMPT, max_tokens=2)  # fills the cache of the prompt with the old weights
            await made.update_weights(dict(source.named_parameters()), version=version)
            experience = (await made.generate(LONG_PROMPT, max_tokens=8))[0]
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
    assert difference(run(made.generate(LONG_PROMPT, max_tokens=8))[0], other) < 1e-5


def test_weights_that_do_not_fit_change_nothing(vllm: Served, other: PreTrainedModel) -> None:
    made, model = vllm
    weights = dict(other.named_parameters())
    missing = {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"}
    for wrong in (missing, weights | {"more": torch.zeros(2)}, weights | {"model.norm.weight": torch.zeros(3)}):
        with pytest.raises(SyncError, match="weights of version 8") as caught:
            run(made.update_weights(wrong, version=8))
        assert caught.value.code == "E5505"
    assert made.model_version == 0
    assert difference(run(made.generate(LONG_PROMPT, max_tokens=8))[0], model) < 1e-5


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
        tasks = [asyncio.ensure_future(made.generate(LONG_PROMPT, max_tokens=50, ignore_eos=True)) for _ in range(4)]
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


# --------------------------------------------------------------------------- two workers
@pytest.fixture(scope="module", params=["tensor_parallel_size", "pipeline_parallel_size"])
def split(request: pytest.FixtureRequest, forked: None, tied: tuple[Path, PreTrainedModel]) -> Iterator[VLLMEngine]:
    """An engine whose model is on two workers: half of each matrix, or half of the layers."""
    made = VLLMEngine(settings(tied[0], engine_args={request.param: 2}))
    asyncio.run(made.prepare())
    yield made
    assert made._started is not None
    folder, prefix, owned = made._started.scratch.path, made._started.scratch.names.prefix, shared_by(made)
    # vLLM's build for processors without AVX-512 has no such memory: its workers add up over gloo.
    if hasattr(torch.ops._C, "init_shm_manager"):
        assert any(file.name.endswith("-cpushm_0") for file in owned), "through which the workers add up"
    assert any(file.name.startswith(prefix) for file in owned), "their queues"
    assert any(file.is_socket() for file in folder.iterdir())
    asyncio.run(made.shutdown())
    assert not folder.exists() and not [file for file in owned if file.exists()]


def shared_by(made: VLLMEngine) -> list[Path]:
    """Return what the workers of an engine have mapped of shared memory."""
    maps = [Path(f"/proc/{worker['pid']}/maps").read_text().splitlines() for worker in made.workers]
    names = {line.split(maxsplit=5)[-1] for lines in maps for line in lines}
    return [Path(name) for name in names if name.startswith("/dev/shm/") and "(deleted)" not in name]


async def sampled(made: VLLMEngine, seed: int) -> list[Experience]:
    """Return two samples of every prompt, all asked for at once."""
    arguments: dict[str, Any] = {"n": 2, "max_tokens": 12, "ignore_eos": True, "seed": seed}
    answers = await asyncio.gather(*(made.generate(prompt, **arguments) for prompt in PROMPTS))
    return [experience for answer in answers for experience in answer]


def test_two_workers_sample_what_one_does_before_and_after_an_update(
    split: VLLMEngine, vllm: Served, tmp_path: Path
) -> None:
    one, model = vllm
    other = tiny_model(tmp_path, "llama", seed=9, head_dim=32)

    async def both(seed: int) -> tuple[list[Experience], list[Experience]]:
        return await sampled(one, seed), await sampled(split, seed)

    for version, source in ((1, other), (2, model)):
        weights = dict(source.named_parameters())
        for made in (one, split):
            asyncio.run(made.update_weights(weights, version=version))
        expected, found = asyncio.run(both(version))
        assert [response(exp) for exp in found] == [response(exp) for exp in expected]
        for experience in found:
            assert experience.info["model_version"] == version
            assert float((experience.logprobs - recomputed(source, experience)).abs().max()) < 1e-5
        scored = asyncio.run(split.logprobs(found[0].tokens.tolist()))
        assert float((scored[found[0].prompt_length - 1 :] - found[0].logprobs).abs().max()) < 1e-5
    assert split.model_version == 2 and len({worker["pid"] for worker in split.workers}) == 2


# -------------------------------------------------------- its death, which is the last of it
def test_what_is_under_way_fails_at_once_when_the_process_is_killed(served: VLLMEngine) -> None:
    async def killed() -> float:
        tasks = [asyncio.ensure_future(served.generate("1+1=", n=60, max_tokens=120, ignore_eos=True)) for _ in "ab"]
        await asyncio.sleep(0.3)
        os.kill(served.workers[0]["pid"], signal.SIGKILL)
        started = time.monotonic()
        for task in tasks:
            with pytest.raises(EngineError) as caught:
                await task
            assert caught.value.code == "E5660"
        with pytest.raises(EngineError, match="started again"):
            await served.generate("1+1=")
        return time.monotonic() - started

    assert run(killed()) < 10
