"""Tiny models of many families, and a trainer over one of them on any device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.resolved import resolved
from tests.tiny import tiny_model, tiny_tokenizer
from trinity.common.config import Config
from trinity.common.models.families import OWN
from trinity.trainer.verl.worker import ActorWorker

OTHERS = ("gpt2", "gemma", "gpt_neox", "mistral", "mixtral", "olmo2", "phi")
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "bos_token_id": None,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
WINDOWED = ("mistral", "mixtral")


def family_model(path: Path, family: str) -> PreTrainedModel:
    """Write a tiny model of any family with float32 weights and its tokenizer to `path`; return the model."""
    if family in (*OWN, "gpt2"):
        return tiny_model(path, family, seed=1, scale=3.0)
    tokenizer = tiny_tokenizer(path)
    windows = {"sliding_window": None} if family in WINDOWED else {}
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **SIZES, **windows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.06)
    model.eval().save_pretrained(path)
    return model


def config_of(path: Path, *, dtype: str = "float32", actor: dict[str, Any] | None = None, **sections: Any) -> Config:
    """Return the configuration of a trainer over the model in `path` whose products are of `dtype`."""
    written = {"fsdp_config": {"dtype": dtype}} | (actor or {})
    tree = {"actor_rollout_ref": {"actor": written} | sections.pop("tree", {})} | sections.pop("critic", {})
    values: dict[str, Any] = {
        "mode": "train",
        "checkpoint_job_dir": str(path.parent / "job"),
        "model": {"model_path": str(path), "max_model_len": 64, "max_response_tokens": 16} | sections.pop("model", {}),
        "algorithm": {"algorithm_type": "grpo", "kl_loss_fn": "none"} | sections.pop("algorithm", {}),
        "buffer": {"batch_size": 2, "train_batch_size": 8, "total_steps": 6},
        "trainer": {"trainer_config": tree} | sections.pop("trainer", {}),
    }
    return resolved(values | sections)


def worker_on(device: torch.device, config: Config) -> ActorWorker:
    """Return the trainer's back end on `device`."""
    return ActorWorker(config, tokenizer=None, total_steps=6, device=device.type)
