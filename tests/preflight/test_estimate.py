"""`trinity estimate`: parameters from `config.json` alone, the parts of a run's memory, and what to change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, MistralConfig, MixtralConfig, PreTrainedConfig
from typer.testing import CliRunner

from tests.tiny import tiny_config, tiny_model
from trinity.cli.app import app
from trinity.common.errors import EnvironmentProblem
from trinity.engine import create
from trinity.engine import settings as engine_settings
from trinity.engine.torch import engine, fast_decoder, kv_cache, prefill, prefix_cache
from trinity.engine.vllm import settings as vllm_settings
from trinity.preflight.estimate import limits
from trinity.preflight.estimate.sizes import FORMULA, HEADERS, LIBRARY, sizes_of
from trinity.trainer import prefixes
from trinity.trainer.verl import attention, logprob
from trinity.utils.fused import choice

GIB = 2**30
LARGE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
"""The published sizes of Llama 3 with 70 G parameters."""
RUNNER = CliRunner()
PLAIN = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}


def test_limits_are_those_of_trainer_and_engine() -> None:
    assert limits.LOGIT_CHUNK == logprob.CHUNK_BYTES
    assert limits.PROMPTS_UP_TO == attention.BLOCKWISE_MAX_LENGTH
    assert limits.MOST_LEFT == prefixes.MAX_LEFT
    assert limits.MOST_SLOTS == engine_settings.MAX_DEFAULT_SLOTS
    assert limits.CPU_CACHE_FRAC == engine._CPU_CACHE_FRAC == vllm_settings._CPU_CACHE_FRAC
    assert limits.LEAST_VLLM_CACHE == vllm_settings._MIN_CACHE_BYTES
    assert limits.BLOCK_TOKENS == prefix_cache.BLOCK_TOKENS
    assert limits.WIDTH_STEP == kv_cache._WIDTH_STEP
    assert (limits.PREFILL_TOKENS, limits.MLP_ROWS) == (prefill._MAX_TOKENS, fast_decoder._MLP_ROWS)
    assert limits.LEAST_COMPILED == choice.LEAST_ELEMENTS
    assert limits.ENGINE_SHARE == create.SHARE_OF_ENGINES


def _config(family: str, **dims: Any) -> PreTrainedConfig:
    sizes = {"vocab_size": 70, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    if family == "mistral":
        return MistralConfig(**sizes, **PLAIN | dims)
    if family == "mixtral":
        return MixtralConfig(num_local_experts=3, **sizes, **PLAIN | dims)
    return tiny_config(family, vocab_size=70, **dims)


@pytest.mark.parametrize(
    ("family", "dims", "how"),
    [
        ("llama", {}, FORMULA),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, FORMULA),
        ("llama", {"num_key_value_heads": None, "head_dim": None}, FORMULA),
        ("qwen2", {}, FORMULA),
        ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 4}, FORMULA),
        ("qwen3", {"attention_bias": True}, FORMULA),
        ("mistral", {}, FORMULA),
        ("mixtral", {}, LIBRARY),
        ("gpt2", {}, LIBRARY),
    ],
)
def test_parameters_are_counted_from_config_json_alone(
    tmp_path: Path, family: str, dims: dict[str, Any], how: str
) -> None:
    config = _config(family, **dims)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = sizes_of(tmp_path)
    assert (found.num_parameters, found.counted_by) == (sum(p.numel() for p in model.parameters()), how)
    if how == FORMULA:
        layer = model.model.layers[0]
        assert found.matrices["qkv"] == sum(getattr(layer.self_attn, f"{name}_proj").weight.numel() for name in "qkv")
        assert found.matrices["gate_up"] == 2 * layer.mlp.up_proj.weight.numel()
    assert found.is_tied == bool(config.tie_word_embeddings)


def test_a_family_that_nobody_knows_is_counted_by_the_headers_of_its_files(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama")
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": "of_tomorrow"}))
    found = sizes_of(tmp_path)
    assert found.counted_by == HEADERS and found.num_parameters > 50_000 and found.layers == 2
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(EnvironmentProblem, match="of type of_tomorrow, cannot be counted") as error:
        sizes_of(tmp_path)
    assert error.value.code == "E3101"
    with pytest.raises(EnvironmentProblem, match="nothing is known of the model"):
        sizes_of(tmp_path / "nowhere")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file for a model of 70 G parameters, of which there is only `config.json`."""
    model = tmp_path / "large"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LARGE))
    tree = {
        "project": "p", "name": "n", "checkpoint_root_dir": str(tmp_path / "jobs"),
        "model": {"model_path": str(model), "max_prompt_tokens": 1024, "max_response_tokens": 3072},
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
        "buffer": {"batch_size": 32, "total_steps": 10, "train_batch_size": 256,
                   "explorer_input": {"taskset": {"path": str(tmp_path)}, "default_workflow_type": "math_workflow"}},
        "cluster": {"node_num": 1, "gpu_per_node": 16},
        "explorer": {"rollout_model": {"engine_type": "vllm", "engine_num": 1, "tensor_parallel_size": 8}},
        "trainer": {"max_token_len_per_gpu": 16384},
    }  # fmt: skip
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def said(file: Path, *words: str) -> dict[str, Any]:
    """Return what is said of the first stage of a file."""
    result = RUNNER.invoke(app, ["estimate", "--config", str(file), "--json", *words])
    assert result.exit_code == 0, result.output
    stage: dict[str, Any] = json.loads(result.output)["stages"][0]
    return stage


def parts(stage: dict[str, Any], process: str, place: str) -> dict[str, int]:
    """Return the bytes of each part of a process by its name."""
    found = next(each for each in stage["processes"] if (each["process"], each["place"]) == (process, place))
    return {part["part"]: part["bytes"] for part in found["parts"]}


def test_ranks_divide_weights_and_vllm_takes_its_share(large: Path) -> None:
    stage = said(large, "--gpu-memory", "80")
    count = stage["model"]["num_parameters"]
    assert 70.5e9 < count < 70.6e9 and stage["has_reference"]
    of_rank = parts(stage, "trainer", "GPU of the trainer")
    assert of_rank["weights"] == of_rank["gradients"] == of_rank["reference model"] == count * 4 // 8
    assert of_rank["optimizer state"] == count * 8 // 8
    engine = parts(stage, "engine", "GPU of an engine")
    assert engine["engine weights"] == count * 2 // 8
    assert engine["engine weights"] + engine["KV cache and work of vLLM"] == int(80 * GIB * 0.9)
    without = said(large, "--set", "algorithm.kl_loss_fn=none")
    assert not without["has_reference"] and "reference model" not in parts(without, "trainer", "GPU of the trainer")


def test_what_does_not_fit_is_told_with_a_change_after_which_it_does(large: Path) -> None:
    stage = said(large, "--gpu-memory", "180")
    first, *others = stage["recommendations"]
    assert "GPU of the trainer" in first["why"] and first["set"], "it does not fit as it is"
    words = [word for key, value in first["set"].items() for word in ("--set", f"{key}={str(value).lower()}")]
    assert "GPU of the trainer" not in str(said(large, "--gpu-memory", "180", *words)["recommendations"])
    offload = {"trainer.trainer_config.actor_rollout_ref.ref.fsdp_config.param_offload": True}
    assert [each["set"] for each in others if "reference" in each["why"]] == [offload]
    hopeless = said(large, "--gpu-memory", "1")["recommendations"]
    assert any(not each["set"] and "smaller model" in each["why"] for each in hopeless)


def test_the_reference_of_a_small_model_stays_where_it_is(large: Path) -> None:
    small = json.dumps(LARGE | {"num_hidden_layers": 2, "hidden_size": 1024})
    (large.parent / "large" / "config.json").write_text(small)
    assert said(large, "--gpu-memory", "80")["recommendations"] == []


def test_the_pace_is_that_of_an_earlier_run_of_the_same_shape(large: Path, tmp_path: Path) -> None:
    assert said(large)["speed"] is None
    job = tmp_path / "earlier"
    job.mkdir()
    lines = [{"step": step, "time": 100.0 + 90 * step, "actor": "trainer", "time/train_step": 4.0} for step in range(5)]
    (job / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = RUNNER.invoke(app, ["config", "show", "--config", str(large)])
    (job / "config.yaml").write_text(shown.output)
    stage = said(large, "--like", str(job))
    assert (stage["speed"]["per_hour"], stage["speed"]["num_steps"]) == (40.0, 4)
    other = said(large, "--like", str(job), "--set", "algorithm.repeat_times=4", "--set", "buffer.train_batch_size=128")
    assert other["speed"] is None and "algorithm.repeat_times" in other["speed_note"]
    nowhere = RUNNER.invoke(app, ["estimate", "--config", str(large), "--like", str(tmp_path / "nowhere")])
    assert nowhere.exit_code and "E7003" in nowhere.output


def test_an_estimate_imports_no_torch_and_prints_a_table(large: Path) -> None:
    code = (
        "import sys; from trinity.cli.app import app; sys.argv = ['trinity', 'estimate', sys.argv[1]]\n"
        "try: app()\nfinally: print([name for name in ('torch', 'transformers', 'ray', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(large)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.rstrip().endswith("[]"), done.stdout
    assert "8 x trainer, GPU of the trainer" in done.stdout and "(measured)" in done.stdout
    assert "memory of all GPUs together" in done.stdout
