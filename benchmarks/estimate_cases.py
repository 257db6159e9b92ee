"""The runs of `estimate.py`: shapes of models, work and algorithms, and the folders that they need.

Every prompt has the same number of tokens, every response as many as the configuration allows, so that what the
estimate takes as the most is what is computed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import work
import yaml

REWARD = """\
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("share_of_letters")
class ShareOfLetters(RewardFn):
    def __call__(self, response=None, prompt=None, truth=None, return_dict=None, **_):
        return {"accuracy": sum(each.isalpha() for each in response) / max(len(response), 1)}
"""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
STEPS = 3
NUM_ROWS = 64
FLOAT32 = {
    "explorer.rollout_model.dtype": "float32",
    "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.dtype": "float32",
}
KL = {"algorithm.kl_loss_fn": "k2", "algorithm.kl_loss_fn_args": {"kl_coef": 0.01}}
RECOMPUTE = {"trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing": True}


@dataclass(frozen=True)
class EstimateCase:
    """A run.

    Attributes:
        family: llama, qwen2, qwen3 or gpt2.
        hidden: hidden size; a head has 64 numbers, and the feed-forward part is three times as wide.
        layers: number of layers.
        vocabulary: rows of the embedding; the tokenizer uses the first 512.
        algorithm: its type.
        prompt: tokens of a prompt.
        response: tokens of a response.
        tasks: of an explore step, or rows of a training step.
        samples: rollouts of a task.
        micro_tokens: most tokens of a micro-batch.
        is_tied: the output layer is the embedding.
        settings: further keys and values.
    """

    family: str
    hidden: int
    layers: int
    vocabulary: int
    algorithm: str = "grpo"
    prompt: int = 64
    response: int = 64
    tasks: int = 8
    samples: int = 4
    micro_tokens: int = 4096
    is_tied: bool = True
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "grpo, tiny": EstimateCase("qwen2", 256, 4, 512, response=48, tasks=16, samples=8, micro_tokens=8192),
    "grpo, large vocabulary": EstimateCase("llama", 512, 8, 64000),
    "grpo with reference": EstimateCase("qwen3", 768, 12, 32000, tasks=4, is_tied=False, settings=KL),
    "ppo with critic": EstimateCase("qwen2", 512, 8, 16000, "ppo", samples=4),
    "sft": EstimateCase("llama", 1024, 12, 32000, "sft", tasks=16, micro_tokens=1024),
    "dpo with reference": EstimateCase("qwen2", 640, 8, 32000, "dpo", tasks=8, micro_tokens=2048),
    "grpo, adapter": EstimateCase(
        "llama", 1024, 12, 32000, tasks=4,
        settings={"model.lora_configs": [{"lora_rank": 16, "lora_alpha": 16}]},
    ),
    "grpo, 1,500 tokens": EstimateCase("qwen2", 384, 6, 8000, prompt=1000, response=500, tasks=2, micro_tokens=12000),
    "grpo, float32, recomputed layers": EstimateCase(
        "qwen3", 512, 16, 16000, response=128, micro_tokens=8192, settings={**FLOAT32, **RECOMPUTE}
    ),
    "grpo, deterministic": EstimateCase(
        "llama", 384, 8, 32000, is_tied=False, settings={"deterministic": True, "explorer.runner_per_model": 4}
    ),
    "grpo, GPT-2 by transformers": EstimateCase("gpt2", 512, 6, 32000),
    "sft, two ranks": EstimateCase(
        "llama", 512, 8, 32000, "sft", tasks=16, micro_tokens=1024, is_tied=False,
        settings={"trainer.num_workers": 2},
    ),
}  # fmt: skip


def write_case(folder: Path, case: EstimateCase) -> Path:
    """Write model, data, plugin and configuration of a run; return the configuration's file."""
    model = folder / "model"
    _write_model(model, case)
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "share_of_letters.py").write_text(REWARD)
    draw = random.Random(0)
    rows = [{name: _digits(draw, size) for name, size in _columns(case)} for _ in range(NUM_ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(_tree(folder, case), sort_keys=False))
    return file


def _columns(case: EstimateCase) -> tuple[tuple[str, int], ...]:
    answer = case.response - 1  # and the token that ends it
    return ("question", case.prompt), ("answer", answer), ("chosen", answer), ("rejected", answer)


def _digits(draw: random.Random, size: int) -> str:
    return "".join(str(draw.randrange(10)) for _ in range(size))


def _write_model(folder: Path, case: EstimateCase) -> None:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GPT2Config,
        LlamaConfig,
        PreTrainedConfig,
        Qwen2Config,
        Qwen3Config,
    )

    end = work.write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    heads = max(4, case.hidden // 64)
    common: dict[str, Any] = {"vocab_size": case.vocabulary, "bos_token_id": None, "eos_token_id": end}
    common |= {"pad_token_id": 0, "tie_word_embeddings": case.is_tied}
    config: PreTrainedConfig
    if case.family == "gpt2":
        sizes = {"n_embd": case.hidden, "n_layer": case.layers, "n_head": heads, "n_positions": 2048}
        config = GPT2Config(**sizes, **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0), **common)
    else:
        kinds = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
        config = kinds[case.family](
            hidden_size=case.hidden,
            num_hidden_layers=case.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=case.hidden // heads,
            intermediate_size=3 * case.hidden,
            max_position_embeddings=2048,
            **common,
        )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)


def _tree(folder: Path, case: EstimateCase) -> dict[str, Any]:
    is_dataset = case.algorithm in ("sft", "dpo")
    tree: dict[str, Any] = {
        "project": "estimate",
        "name": "run",
        "checkpoint_root_dir": str(folder / "jobs"),
        "mode": "train" if is_dataset else "both",
        "algorithm": {"algorithm_type": case.algorithm, "optimizer": {"lr": 1e-5}},
        "model": {
            "model_path": str(folder / "model"),
            "max_prompt_tokens": case.prompt,
            "max_response_tokens": case.response,
        },
        "trainer": {"save_interval": 0, "save_hf_checkpoint": "never", "max_token_len_per_gpu": case.micro_tokens},
        "monitor": {"monitor_type": ""},
        "plugin_dirs": [str(folder / "plugins")],
    }
    if is_dataset:
        answers = {"prompt_key": "question", "response_key": "answer"}
        pairs = {"prompt_key": "question", "chosen_key": "chosen", "rejected_key": "rejected"}
        own = answers if case.algorithm == "sft" else pairs
        buffer = {"name": "rows", "storage_type": "file", "path": str(folder / "rows.jsonl")}
        buffer |= {"format": {"prompt_type": "plaintext", **own}}
        tree["buffer"] = {"train_batch_size": case.tasks, "trainer_input": {"experience_buffer": buffer}}
        tree["trainer"]["total_steps"] = STEPS
    else:
        _put_explorer(tree, folder, case)
    for key, value in case.settings.items():
        _put(tree, key, value)
    return tree


def _put_explorer(tree: dict[str, Any], folder: Path, case: EstimateCase) -> None:
    tree["algorithm"] |= {"repeat_times": case.samples, "kl_loss_fn": "none"}
    tree["model"]["min_response_tokens"] = case.response
    taskset = {
        "name": "rows",
        "storage_type": "file",
        "path": str(folder / "rows.jsonl"),
        "format": {"prompt_key": "question", "response_key": "answer"},
        "rollout_args": {"temperature": 1.0},
    }
    tree["buffer"] = {
        "batch_size": case.tasks,
        "train_batch_size": case.tasks * case.samples,
        "total_steps": STEPS,
        "explorer_input": {
            "default_workflow_type": "simple_workflow",
            "default_reward_fn_type": "share_of_letters",
            "taskset": taskset,
        },
    }
    tree["explorer"] = {"runner_per_model": case.tasks}
    tree["synchronizer"] = {"sync_style": "fixed", "sync_interval": 1}


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value
