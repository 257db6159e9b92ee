"""Which configurations the vLLM engine takes, and what it says of the others; needs no vLLM."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.engines import run
from tests.tiny import tiny_model
from trinity.common.config import Config
from trinity.common.errors import ConfigError, EnvironmentProblem, NotAvailableError
from trinity.common.models import create_auxiliary_models, create_inference_model
from trinity.engine.vllm.engine import VLLMEngine
from trinity.engine.vllm.requests import RequestProgress
from trinity.engine.vllm.settings import (
    VLLMSettings,
    check_device,
    check_version,
    engine_arguments,
    process_environment,
    version_range,
    vllm_settings,
)
from trinity.engine.vllm.weights import read_facts

ROOT = Path(__file__).resolve().parents[3]
SIZES = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=32)


def config(rollout: dict[str, Any] | None = None, **sections: Any) -> Config:
    """Return a configuration with the vLLM engine."""
    model = {"model_path": "m", "max_model_len": 100, "max_response_tokens": 7, "temperature": 0.9}
    explorer = {"rollout_model": {"engine_type": "vllm"} | (rollout or {}), "runner_per_model": 4}
    return Config.model_validate({"model": model, "explorer": explorer} | sections)


def arguments(settings: VLLMSettings, *, is_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine for a model of `SIZES`."""
    return engine_arguments(settings, SIZES, folder=Path("m"), dtype=torch.float32, is_cpu=is_cpu, own={})


def test_the_model_s_changed_entries_reach_vllm_as_a_whole_and_over_its_own(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama")
    model = {"override_config": {"rope_parameters": {"rope_theta": 3.0}}, "external_lib": "json"}
    trainer = {"trainer_config": {"actor_rollout_ref": {"model": model}}}
    own = {"extra_engine_args": {"hf_overrides": {"rope_parameters": {}, "max_position_embeddings": 99}}}
    settings = vllm_settings(config(own | {"model_path": str(tmp_path)}, trainer=trainer))
    facts = read_facts(settings.model, settings.model_overrides)
    made = engine_arguments(
        settings, SIZES, folder=tmp_path, dtype=torch.float32, is_cpu=False, own={}, changed=facts.changed
    )
    changed = {"rope_parameters": {"rope_theta": 3.0, "rope_type": "default"}}
    assert made["hf_overrides"] == changed | {"max_position_embeddings": 99}
    assert settings.external_lib == "json" and arguments(vllm_settings(config({})), is_cpu=False)["hf_overrides"] == {}


def test_a_model_without_attention_has_a_cache_of_the_least_size_on_a_cpu() -> None:
    sizes = SimpleNamespace(num_hidden_layers=2, hidden_size=64)
    settings = vllm_settings(config({}))
    made = engine_arguments(settings, sizes, folder=Path("m"), dtype=torch.float32, is_cpu=True, own={})
    assert made["kv_cache_memory_bytes"] == 64 << 20


def test_every_key_reaches_vllm() -> None:
    keys: dict[str, Any] = {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 3, "enforce_eager": True, "enable_prefix_caching": False,
        "enable_chunked_prefill": False, "gpu_memory_utilization": 0.5, "enable_expert_parallel": True, "seed": 9,
    }  # fmt: skip
    settings = vllm_settings(config(keys | {"enable_log_requests": True, "extra_engine_args": {"block_size": 64}}))
    made = arguments(settings, is_cpu=False)
    assert {name: made[name] for name in keys} == keys
    assert (made["block_size"], made["enable_log_requests"], made["max_model_len"]) == (64, True, 100)
    assert made["dtype"] == "float32", "vLLM's own choice would round float32 weights"
    assert (settings.params.temperature, settings.params.max_tokens) == (0.9, 7)


def test_a_part_for_images_does_not_start_unless_it_is_asked_for() -> None:
    assert arguments(vllm_settings(config()), is_cpu=False)["language_model_only"] is True
    asked = vllm_settings(config({"extra_engine_args": {"language_model_only": False}}))
    assert arguments(asked, is_cpu=False)["language_model_only"] is False


def test_a_cpu_gets_what_it_needs_unless_it_is_written() -> None:
    made = arguments(vllm_settings(config()), is_cpu=True)
    tokens = 128 * (4 + 1)  # four rollouts and one, of 100 tokens in blocks of 32
    assert (made["enforce_eager"], made["block_size"]) == (True, 32)
    assert made["kv_cache_memory_bytes"] == max(64 << 20, tokens * 2 * 2 * 2 * 32 * 4)
    own = vllm_settings(config({"extra_engine_args": {"kv_cache_memory_bytes": 1 << 30, "max_num_seqs": 3}}))
    made = arguments(own, is_cpu=True)
    assert (made["kv_cache_memory_bytes"], made["max_num_seqs"]) == (1 << 30, 3)


def test_images_are_kept_by_this_engine_and_not_by_vllm() -> None:
    switch = {"enable_multimodal": True, "extra_engine_args": {"disable_mm_preprocessor_cache": True}}
    assert vllm_settings(config({"enable_multimodal": True})).image_cache_bytes == 256 * 2**20
    own = vllm_settings(config(switch))
    made = engine_arguments(
        own, SIZES, folder=Path("m"), dtype=torch.float32, is_cpu=True, own={}, has_images=own.is_multimodal
    )
    assert own.image_cache_bytes == 0 and made["mm_processor_cache_gb"] == 0
    assert "disable_mm_preprocessor_cache" not in made and "language_model_only" not in made
    assert made["mm_device_do_normalize"] is False, "pixels come as the model takes them"


def test_the_environment_is_the_users_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = process_environment(True)
    assert (made["OMP_NUM_THREADS"], made["TORCHDYNAMO_DISABLE"], made["VLLM_CPU_OMP_THREADS_BIND"]) == (
        *("1", "1", "nobind"),
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert process_environment(True)["OMP_NUM_THREADS"] == "6"
    assert "TORCHDYNAMO_DISABLE" not in process_environment(False)


@pytest.mark.parametrize(
    ("rollout", "sections", "code", "words"),
    [
        ({}, {"deterministic": True}, "E3220", "engine_type=torch"),
        ({"data_parallel_size": 2}, {}, "E3223", "started again on its own; use `explorer.rollout_model.engine_num`"),
        ({"use_v1": False}, {}, "E1900", "remove `use_v1`"),
        ({"extra_engine_args": {"mm_processor_kwargs": {}}}, {}, "E3224", "mm_processor_kwargs` is set by the engine"),
        ({"extra_engine_args": {"mm_processor_cache_gb": -1}}, {}, "E1926", "a number of GiB"),
        ({"enable_return_routed_experts": True}, {}, "E1900", "enable_return_routed_experts"),
        ({"nnodes": 2}, {}, "E1900", "remove `nnodes`"),
        ({"extra_engine_args": {"dtype": "float16"}}, {}, "E3224", "write `explorer.rollout_model.dtype`"),
        ({"extra_engine_args": {"logprobs_mode": "raw_logits"}}, {}, "E3224", "logprobs_mode` is set by the engine"),
    ],
)
def test_what_the_engine_does_not_serve_is_refused_by_name(
    rollout: dict[str, Any], sections: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        create_inference_model(config(rollout, **sections))
    assert caught.value.code == code


def test_what_no_engine_here_serves_is_refused_as_by_the_torch_engine() -> None:
    for rollout in ({"lora_configs": [{}]}, {"rope_theta": 1e6}, {"logprobs": 4}):
        with pytest.raises(NotAvailableError):
            create_inference_model(config(rollout))


def test_an_auxiliary_model_may_have_this_engine() -> None:
    auxiliary = {"model_path": "judge", "engine_type": "vllm_async", "max_model_len": 77}
    whole = config({"engine_type": "torch"}, explorer={"auxiliary_models": [auxiliary]})
    (made,) = create_auxiliary_models(whole)
    assert isinstance(made, VLLMEngine)
    assert (made.settings.model.model_path, made.settings.model.max_model_len) == ("judge", 77)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0rc1", "0.33.2"])
def test_versions_in_the_range_are_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.0", "0.34.0", "1.0.0", "dev"])
def test_other_versions_are_refused_with_the_range(version: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r">=0\.32,<0\.34, got " + version) as caught:
        check_version(version)
    assert caught.value.code == "E3221" and "engine_type=torch" in str(caught.value)


def test_the_range_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm{version_range()}"]


def test_a_cuda_build_needs_a_gpu() -> None:
    with pytest.raises(EnvironmentProblem, match="--set explorer.rollout_model.engine_type=torch") as caught:
        check_device(False, has_cuda=False)
    assert caught.value.code == "E3201"
    check_device(True, has_cuda=False)
    check_device(False, has_cuda=True)


def test_without_vllm_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert importlib.util.find_spec("vllm") is None
    made = create_inference_model(config())
    with pytest.raises(EnvironmentProblem, match=r'pip install "trinity-rft\[vllm\]"') as caught:
        run(made.prepare())
    assert caught.value.code == "E3301"


def test_each_token_has_the_version_that_made_it() -> None:
    progress = RequestProgress(3)
    assert progress.versions(2) == [3, 3]
    progress.change(2, 4)
    progress.change(2, 5)
    progress.change(1, 6)
    assert progress.versions(4) == [3, 3, 6, 6]
    fresh = RequestProgress(0)
    fresh.change(0, 1)
    assert fresh.versions(2) == [1, 1]
