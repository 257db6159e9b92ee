"""Ranks that can share a model, from its `config.json`; loads no tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.models.families import OWN, families
from trinity.preflight.model_files import UnreadableFile, read_mapping

if TYPE_CHECKING:
    from trinity.common.config import Config

SEQUENCE = str(KEYS.trainer.ulysses_sequence_parallel_size)
TENSOR = str(KEYS.trainer.megatron.tensor_model_parallel_size)
PIPELINE = str(KEYS.trainer.megatron.pipeline_model_parallel_size)
STRATEGY = str(KEYS.trainer.trainer_strategy)


def sequence_problem(config: Mapping[str, Any], size: int) -> str | None:
    """Return why `size` ranks cannot share a model's sequences, or None.

    Args:
        config: contents of its `config.json`.
        size: number of ranks.
    """
    heads, keys = _heads(config)
    fine = [n for n in range(1, heads + 1) if heads % n == 0 and (keys % n == 0 or n % keys == 0)]
    if size in fine:
        return None
    return (
        f"{SEQUENCE} {size} does not fit a model of {heads} attention heads and {keys} key-value heads: the ranks of a "
        f"sequence share its heads; choose one of {', '.join(map(str, fine))}"
    )


def row_problem(kind: str, size: int) -> str:
    """Return why `size` ranks cannot share a row's tokens for type `kind`."""
    return (
        f"{SEQUENCE} {size}: models of type {kind} are computed row by row, so that ranks cannot share a row's tokens; "
        "write 1"
    )


def tensor_problem(config: Mapping[str, Any], size: int) -> str | None:
    """Return why `size` ranks cannot share a model's matrices, or None.

    Args:
        config: contents of its `config.json`.
        size: number of ranks.
    """
    heads, keys = _heads(config)
    inner = int(config.get("intermediate_size") or 1)
    fine = [n for n in range(1, keys + 1) if heads % n == 0 and keys % n == 0 and inner % n == 0]
    if size in fine:
        return None
    return (
        f"{TENSOR} {size} does not fit a model of {heads} attention heads, {keys} key-value heads and feed-forward "
        f"size {inner}: each rank has an equal part of all three; choose one of {', '.join(map(str, fine))}"
    )


def pipeline_problem(config: Mapping[str, Any], size: int) -> str | None:
    """Return why `size` stages cannot share a model's layers, or None.

    Args:
        config: contents of its `config.json`.
        size: number of stages.
    """
    layers = int(config.get("num_hidden_layers") or config.get("n_layer") or 1)
    if size <= layers:
        return None
    return (
        f"{PIPELINE} {size} does not fit a model of {layers} layers: each stage has at least one; use {layers} or less"
    )


def family_problem(kind: str) -> str:
    """Return why the matrices of a model of type `kind` are not divided."""
    return (
        f"{STRATEGY} megatron divides the matrices of plain {', '.join(OWN)} models, and this one "
        f"is computed otherwise (model_type {kind}); write trainer_strategy: fsdp2, which fits any model"
    )


def check_division(config: Config) -> Iterator[Finding]:
    """Yield why the trainer's processes cannot divide model or critic.

    The configuration says how to divide them. `check_model_dir` reports a folder without a readable
    `config.json`.
    """
    trainer, model, critic = config.trainer, config.model, config.trainer.trainer_config.critic
    if config.mode not in ("both", "train"):
        return
    megatron = trainer.megatron if trainer.trainer_strategy == "megatron" else None
    paths = [model.model_path, model.critic_model_path if critic.enable else None]
    for path in dict.fromkeys(path for path in paths if path):
        file = Path(path).expanduser() / "config.json"
        if not file.is_file():
            continue
        try:
            problems = list(
                _problems(
                    read_mapping(file),
                    sequence_size=trainer.ulysses_sequence_parallel_size,
                    tensor_size=1 if megatron is None else megatron.tensor_model_parallel_size,
                    num_stages=1 if megatron is None else megatron.pipeline_model_parallel_size,
                )
            )
        except (UnreadableFile, TypeError, ValueError):
            continue
        yield from (Finding(code, key, f"{path}: {problem}") for code, key, problem in problems)


def _problems(
    config: Mapping[str, Any], *, sequence_size: int, tensor_size: int, num_stages: int
) -> Iterator[tuple[str, str, str]]:
    """Yield code, key and reason of each number that does not fit a model.

    Args:
        config: contents of its `config.json`.
        sequence_size: ranks that share a sequence.
        tensor_size: ranks that share the matrices of a layer.
        num_stages: stages that share the layers.
    """
    problem = sequence_problem(config, sequence_size)
    if problem is not None:
        yield "E1836", SEQUENCE, problem
    kind = str(config.get("model_type"))
    family = families().get(kind)
    if sequence_size > 1 and family is not None and family.trainer == "padded":
        yield "E1836", SEQUENCE, row_problem(kind, sequence_size)
    if max(tensor_size, num_stages) > 1 and kind not in OWN:
        yield "E1856", STRATEGY, family_problem(kind)
        return
    problem = tensor_problem(config, tensor_size)
    if problem is not None:
        yield "E1855", TENSOR, problem
    problem = pipeline_problem(config, num_stages)
    if problem is not None:
        yield "E1849", PIPELINE, problem


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the attention and key-value heads, under the family's names."""
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    return heads, int(config.get("num_key_value_heads") or heads)
