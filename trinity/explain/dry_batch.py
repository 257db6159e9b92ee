"""The inputs of the gradient probe: a small model and experiences.

Generated from seeds; a model of the run that is small is used as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.sample_strategy.mix import as_one_batch
from trinity.common.config import Config
from trinity.common.experience import EID, CustomField, Experience
from trinity.common.models.families import OWN
from trinity.trainer.verl.settings import schema_of

SMALL_BYTES = 16 << 20  # a model up to this size is probed as it is
NUM_TASKS = 4
MAX_ROLLOUTS = 4
SEED = 20
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "max_window_layers": 2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
# Log-ratios of all sizes: within every trust region, beyond each bound, and far off.
OFFSETS = (0.0, 2e-4, -2e-4, 0.02, -0.02, 0.15, -0.15, 0.3, -0.3, 0.8, -0.8, 1.6, -1.6)
REWARDS = (0.0, 1.0, 0.25, 0.75, 1.0, 0.0, 0.5)


def probe_model(path: str, folder: Path) -> tuple[str, str]:
    """Return the folder of the probe's model and its description.

    A small model at `path` is used directly. Otherwise the function writes two random layers of the same family
    into `folder`. They are of Llama if the family is unknown or there is no model at `path`.
    """
    weights = list(Path(path).glob("*.safetensors")) if path else []
    if weights and sum(file.stat().st_size for file in weights) <= SMALL_BYTES:
        return path, f"the model at {path}"
    config = _tiny_config(path)
    transformers_logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(4.0)  # the next token is far from uniform, as in a trained model
    model.save_pretrained(folder)
    return str(folder), f"two random layers of {config.model_type}"


def _tiny_config(path: str) -> PreTrainedConfig:
    if not path or not (Path(path) / "config.json").is_file():
        return LlamaConfig(**TINY)
    found = AutoConfig.from_pretrained(path)
    if found.model_type not in OWN:
        return LlamaConfig(**TINY)
    return type(found)(**TINY)


def dry_experiences(config: Config, *, vocab_size: int, extra: Iterable[str] = ()) -> list[Experience]:
    """Return synthetic experiences for an algorithm, without logprobs.

    Every call returns the same experiences. They have what makes settings matter: groups with mixed rewards and
    one with equal rewards, responses of different lengths, and turns separated by tokens that do not count.

    Args:
        config: resolved configuration of a stage.
        vocab_size: token ids are below it.
        extra: per-row values that a plugin asks for by name; they are random numbers in [0, 1).
    """
    generator = torch.Generator().manual_seed(SEED)
    schema = schema_of(config)
    is_rollout = schema == "experience"
    rollouts = min(config.algorithm.repeat_times or 1, MAX_ROLLOUTS) if is_rollout else 2
    advantage = ADVANTAGE_FN.contents.get(config.algorithm.advantage_fn or "")
    turns = 2 if advantage is not None and advantage.compares_steps else 1
    fields = [CustomField(name, name) for name in extra]
    experiences = []
    for task in range(NUM_TASKS if rollouts > 1 else 2 * NUM_TASKS):
        prompt = torch.randint(2, vocab_size, (3 + task % 3,), generator=generator)
        for run in range(rollouts):
            for turn in range(turns):
                made = _experience(EID(1, task, run, turn), prompt, vocab_size=vocab_size, generator=generator)
                made.custom_fields = copy.copy(fields)
                made.info |= {name: _random(name, config, generator) for name in extra}
                experiences.append(made if is_rollout else _demonstration(made))
    if schema == "dpo":
        return [_pair(*both) for both in zip(experiences[0::2], experiences[1::2], strict=True)]
    return experiences


def _random(name: str, config: Config, generator: torch.Generator) -> float | list[float]:
    """Return a random number, or one per named component of the reward."""
    keys = (config.algorithm.advantage_fn_args or {}).get("gdpo_reward_keys")
    shape = (len(keys),) if name == "reward_components" and keys else ()
    values: float | list[float] = torch.rand(shape, generator=generator).tolist()
    return values


def _experience(eid: EID, prompt: torch.Tensor, *, vocab_size: int, generator: torch.Generator) -> Experience:
    task, run = int(eid.task), eid.run
    length = 4 + int(torch.randint(0, 7, (), generator=generator))
    response = torch.randint(2, vocab_size, (length,), generator=generator)
    mask = torch.ones(length, dtype=torch.bool)
    if run % 2:
        mask[2:3] = False  # what an environment said between two turns
    reward = 0.5 if task == NUM_TASKS - 1 else REWARDS[(3 * task + run) % len(REWARDS)]
    info: dict[str, Any] = {
        "model_version": 0,
        "step_reward": reward * (eid.step + 1) / 2,
        "env_state_hash": f"{task}/{eid.step * (run % 2)}",
    }
    return Experience(eid, torch.cat([prompt, response]), len(prompt), reward=reward, action_mask=mask, info=info)


def _demonstration(made: Experience) -> Experience:
    made.reward = None
    return made


def _pair(chosen: Experience, rejected: Experience) -> Experience:
    """Return two responses to one prompt as a pair."""
    sides = (made.tokens[made.prompt_length :] for made in (chosen, rejected))
    return Experience(
        chosen.eid,
        chosen.tokens[: chosen.prompt_length],
        chosen.prompt_length,
        chosen=next(sides),
        rejected=next(sides),
        info=chosen.info,
        custom_fields=chosen.custom_fields,
    )


def add_logprobs(experiences: list[Experience], own: torch.Tensor) -> None:
    """Set the rollout's and a teacher's logprobs near `own` [B, T].

    `own` are the policy's log-probabilities. The distances cover all sizes.
    """
    generator = torch.Generator().manual_seed(SEED + 1)
    of_teacher = torch.Generator().manual_seed(SEED + 2)
    offsets = torch.tensor(OFFSETS)
    for row, exp in enumerate(experiences):
        chosen = torch.randint(0, len(offsets), (exp.response_length,), generator=generator)
        # Every third row keeps within a narrow band, so that whole responses stay within their trust region.
        scale = 0.01 if row % 3 == 0 else 1.0
        exp.logprobs = own[row, : exp.response_length].float() - offsets[chosen] * scale
        chosen = torch.randint(0, len(offsets), (exp.response_length,), generator=of_teacher)
        exp.teacher_logprobs = own[row, : exp.response_length].float() - offsets[chosen]


def with_experts(experiences: list[Experience], *, step: int) -> list[Experience]:
    """Return the experiences and one expert row per task.

    The rows are joined as the sample strategy `mix` does.

    Args:
        experiences: rollouts of the synthetic batch.
        step: the training step.
    """
    first_runs = {exp.eid.task: exp for exp in reversed(experiences)}
    experts = [
        Experience(EID("expert", task), exp.tokens.flip(0), exp.prompt_length) for task, exp in first_runs.items()
    ]
    return as_one_batch(experiences, experts, step=step)
