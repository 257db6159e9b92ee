"""Whatever breaks, every caller hears of it, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import engine, run
from tests.tiny import tiny_model
from trinity.common.config.model import ModelConfig
from trinity.common.errors import DeadlineError, EngineError, EnvironmentProblem, OutOfMemoryError
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.engine.torch.loading import load_decoder
from trinity.engine.torch.memory import explained
from trinity.utils.device import total_memory_bytes

Made = tuple[Path, PreTrainedModel]


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_broken_weights_fail_all_calls_and_later_ones(llama: Made, is_deterministic: bool) -> None:
    path, model = llama
    weights = {name: torch.full_like(tensor, float("nan")) for name, tensor in model.named_parameters()}

    async def call() -> list[Any]:
        async with engine(path, max_num_seqs=2, is_deterministic=is_deterministic) as made:
            await made.update_weights(weights, version=1)
            calls = [made.generate("1+1=", n=2, max_tokens=5) for _ in range(4)]
            together = await asyncio.gather(*calls, return_exceptions=True)
            later = [made.generate("1+1="), made.logprobs([4, 5]), made.update_weights(weights, version=2)]
            return [*together, *await asyncio.gather(*later, return_exceptions=True)]

    results = run(call())
    assert len(results) == 7
    for result in results:
        assert isinstance(result, EngineError) and "not finite" in str(result)


def test_a_bad_token_is_refused_and_the_engine_goes_on(llama: Made) -> None:
    async def call() -> None:
        async with engine(llama[0]) as made:
            for tokens in ([10_000], [5, -1], [2**70]):
                with pytest.raises(EngineError, match="tokens of a prompt must be from 0 to") as caught:
                    await made.generate(tokens)
                assert caught.value.code == "E5602"
            assert await made.generate([5, 6], max_tokens=1)

    run(call())


def test_a_failure_in_its_thread_fails_the_engine_with_its_cause(llama: Made) -> None:
    async def call() -> BaseException:
        async with engine(llama[0]) as made:
            with pytest.raises(EngineError, match="IndexError") as caught:
                await made._sample(SeenPrompt([10_000]), GenerateParams(max_tokens=1), keys=[0], ids=("a",))
            return caught.value

    assert isinstance(run(call()).__cause__, IndexError)


def test_shutdown_ends_the_thread_and_the_calls(llama: Made) -> None:
    async def call() -> tuple[Any, Any]:
        async with engine(llama[0], model={"max_model_len": 512}) as made:
            under_way = asyncio.ensure_future(made.generate("1=", max_tokens=500, ignore_eos=True))
            await asyncio.sleep(0.02)
            await made.shutdown()
            later = await asyncio.gather(made.generate("1="), return_exceptions=True)
            return (await asyncio.gather(under_way, return_exceptions=True))[0], later[0]

    before = threading.active_count()
    under_way, later = run(call())
    assert isinstance(under_way, EngineError) and "shut down" in str(under_way)
    assert isinstance(later, EngineError) and "shut down" in str(later)
    assert not [thread for thread in threading.enumerate() if thread.name == "torch-engine"]
    assert threading.active_count() <= before


@pytest.mark.parametrize("cause", [RuntimeError("device lost"), MemoryError(), SystemExit()])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_takes_no_work_has_no_figures(llama: Made, cause: BaseException) -> None:
    """By them it is known whether it serves, so they must not outlive its thread."""

    def fail() -> None:
        raise cause

    async def call() -> None:
        async with engine(llama[0], timeout_s=2.0) as made:
            assert (await made.stats())["num_slots"]
            made._loaded[1].batch.step = fail
            with pytest.raises((EngineError, OutOfMemoryError, DeadlineError)):
                await made.generate("1=", max_tokens=5, ignore_eos=True)
            with pytest.raises((EngineError, OutOfMemoryError), match="failed|memory"):
                await made.stats()
        async with engine(llama[0]) as made:
            await made.shutdown()
            with pytest.raises(EngineError, match="shut down"):
                await made.stats()

    run(call())


def test_a_wait_ends_at_its_deadline(llama: Made) -> None:
    async def call() -> None:
        async with engine(llama[0], is_deterministic=True, timeout_s=0.2) as made:
            await made.join_round("never asks")
            with pytest.raises(DeadlineError, match="explorer.max_timeout"):
                await made.generate("1=")

    run(call())


def test_an_engine_that_is_not_prepared_says_so(llama: Made) -> None:
    made = TorchEngine(EngineSettings(model=ModelConfig(model_path=str(llama[0]), max_model_len=8)))
    with pytest.raises(EngineError, match=r"await prepare\(\)"):
        run(made.generate("1="))


def test_a_sequence_that_cannot_fit_names_the_keys(tmp_path: Path) -> None:
    # 64 KiB a token: 2 layers of keys and values of 256 heads of 16 numbers in float32.
    tiny_model(tmp_path, "llama", hidden_size=256, num_attention_heads=256, num_key_value_heads=256)
    length = total_memory_bytes(torch.device("cpu")) // 65536

    async def call() -> None:
        async with engine(tmp_path, model={"max_model_len": length}):
            raise AssertionError("an engine whose cache of one sequence is all of the memory was made")

    with pytest.raises(OutOfMemoryError) as caught:
        run(call())
    for key in ("tensor_parallel_size", "max_model_len", "gpu_memory_utilization", "runner_per_model"):
        assert key in str(caught.value)


def test_slots_are_lowered_to_what_fits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_model(tmp_path, "llama")
    # Two layers of keys and values of two heads of 16 in float32: 512 bytes a token. Ten tenths do not fit.
    length = total_memory_bytes(torch.device("cpu")) // 10 // 512
    config = ModelConfig(model_path=str(tmp_path), max_model_len=length)
    made = TorchEngine(EngineSettings(model=config, max_num_seqs=10))
    decoder = load_decoder(str(tmp_path), dtype=torch.float32, device=torch.device("cpu"), max_model_len=64)
    with caplog.at_level("WARNING", logger="trinity"):
        assert made._num_slots(decoder) in (3, 4)
    assert "max_num_seqs lowered from 10" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: ..."),
    ],
)
def test_out_of_memory_shows_what_is_held_and_names_the_explorer_keys(llama: Made, error: Exception) -> None:
    decoder = load_decoder(str(llama[0]), dtype=torch.float32, device=torch.device("cpu"), max_model_len=64)
    told = explained(error, decoder, num_slots=4, max_length=128)
    assert isinstance(told, OutOfMemoryError) and told.__cause__ is error
    for key in ("tensor_parallel_size", "max_model_len", "gpu_memory_utilization", "runner_per_model"):
        assert key in str(told)
    # Two layers of keys and values of two heads of 16 in float32: 512 bytes a token, 128 tokens, 4 sequences.
    assert "cache of a sequence            0.1 MiB" in str(told)
    assert "cache of all sequences         0.2 MiB" in str(told)


def test_other_errors_stay_themselves() -> None:
    error = RuntimeError("shape mismatch")
    assert explained(error, None, num_slots=1, max_length=1) is error


def test_a_device_that_is_not_there_is_an_environment_problem(llama: Made) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")

    async def call() -> None:
        async with engine(llama[0], device="cuda"):
            raise AssertionError("an engine on a device that is not there was made")

    with pytest.raises(EnvironmentProblem, match="no CUDA device"):
        run(call())
