"""What the agents' benchmark trains on: a tiny model that can call a tool, demonstrations, problems and configurations.

Demonstrations mix a good strategy with a bad one, so that reinforcement has something to choose from.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity.quickstart.dataset import fnv1a_32, write_jsonl

Row = dict[str, Any]

CALL, END = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "', '"}}\n</tool_call>'
MAX_TOKENS = 64
VOCABULARY = ("<pad>", "<eos>", "<unk>", *"0123456789+-*=#<>:G", CALL, END)
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{ message['content'] }}"
    "{%- elif message['role'] == 'tool' -%}{{ '>' + message['content'] + '>' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ message['content'] or '' }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ CALL + call['function']['arguments']['expression'] + END }}"
    "{%- endfor -%}{{ eos_token }}"
    "{%- endif -%}"
    "{%- endfor -%}"
)
NUM_TRAIN, NUM_TEST, NUM_DEMONSTRATIONS = 4096, 256, 25_600
BAD_CALCULATIONS, BAD_GUESSES = 0.7, 0.85
NUM_SECRETS, NUM_GUESSES = 32, 5


@dataclass(frozen=True)
class Game:
    """A task of an agent.

    Attributes:
        demonstration: makes a conversation from a generator.
        problem: makes a question and its answer from a generator.
        is_held_out: whether a question is in the test set.
        sft: steps, demonstrations a step and learning rate of the imitation.
        rft: steps, problems a step, rollouts a problem and learning rate of the reinforcement.
        is_decayed: the learning rate of the reinforcement falls to a tenth.
        max_turns: answers of an attempt.
        max_tokens: of an answer.
    """

    demonstration: Callable[[random.Random], list[Row]]
    problem: Callable[[random.Random], tuple[str, str]]
    is_held_out: Callable[[str], bool]
    sft: tuple[int, int, float]
    rft: tuple[int, int, int, float]
    is_decayed: bool
    max_turns: int
    max_tokens: int


# ------------------------------------------------------------------ calculator
def _calculation(generator: random.Random) -> tuple[int, int, str, int]:
    return generator.randint(10, 99), generator.randint(2, 9), generator.choice("+-"), generator.randint(10, 99)


def _question(left: int, factor: int, sign: str, right: int) -> str:
    return f"{left}*{factor}{sign}{right}="


def _is_held_out(question: str) -> bool:
    return (fnv1a_32(question) >> 7) % 10 == 0


def _calculator_problem(generator: random.Random) -> tuple[str, str]:
    left, factor, sign, right = parts = _calculation(generator)
    return _question(*parts), str(left * factor + (right if sign == "+" else -right))


def _call(expression: str) -> Row:
    function = {"name": "calculate", "arguments": {"expression": expression}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "0", "function": function}]}


def _calculator_demonstration(generator: random.Random) -> list[Row]:
    while True:
        left, factor, sign, right = parts = _calculation(generator)
        if not _is_held_out(_question(*parts)):
            break
    product = left * factor
    messages = [{"role": "user", "content": _question(*parts)}, _call(f"{left}*{factor}")]
    messages.append({"role": "tool", "tool_call_id": "0", "content": str(product)})
    is_bad = generator.random() < BAD_CALCULATIONS
    if is_bad and generator.random() < 0.8:
        return [*messages, {"role": "assistant", "content": f"#{product}"}]
    second = generator.randint(10, 99) if is_bad else right
    total = (product + second if sign == "+" else product - second) % 10_000
    messages += [_call(f"{product}{sign}{second}"), {"role": "tool", "tool_call_id": "0", "content": str(total)}]
    return [*messages, {"role": "assistant", "content": f"#{total}"}]


# --------------------------------------------------------------- guessing game
def _secret(generator: random.Random) -> tuple[str, str]:
    return "G:", f"{generator.randrange(NUM_SECRETS):02d}"


def _guesser_demonstration(generator: random.Random) -> list[Row]:
    secret, low, high = generator.randrange(NUM_SECRETS), 0, NUM_SECRETS - 1
    is_bad = generator.random() < BAD_GUESSES
    messages: list[Row] = [{"role": "user", "content": "G:"}]
    for _ in range(NUM_GUESSES):
        guess = generator.randint(low, high) if is_bad else (low + high) // 2
        messages.append({"role": "assistant", "content": f"{guess:02d}"})
        if guess == secret:
            return messages
        low, high = (low, guess - 1) if secret < guess else (guess + 1, high)
        messages.append({"role": "user", "content": "<" if secret < guess else ">"})
    return messages[:-1]


GAMES = {
    "calculator": Game(
        _calculator_demonstration,
        _calculator_problem,
        _is_held_out,
        sft=(400, 64, 2e-3),
        rft=(30, 32, 8, 3e-4),
        is_decayed=True,
        max_turns=4,
        max_tokens=12,
    ),
    "guesser": Game(
        _guesser_demonstration,
        _secret,
        lambda question: False,
        sft=(250, 128, 2e-3),
        rft=(80, 32, 16, 3e-4),
        is_decayed=False,
        max_turns=NUM_GUESSES,
        max_tokens=4,
    ),
}


# ------------------------------------------------------------------ files
def prepare(folder: Path, name: str, *, seed: int) -> None:
    """Write model, demonstrations and problems of a game, unless they are there."""
    game = GAMES[name]
    if not (folder / "model" / "config.json").exists():
        write_model(folder / "model", seed=seed)
    demonstrations = random.Random(f"demonstrations-{name}-{seed}")
    rows = [{"messages": game.demonstration(demonstrations)} for _ in range(NUM_DEMONSTRATIONS)]
    write_jsonl(folder / f"{name}_sft.jsonl", rows)
    for kind, count, is_test in (("train", NUM_TRAIN, False), ("test", NUM_TEST, True)):
        generator = random.Random(f"{kind}-{name}" if is_test else f"{kind}-{name}-{seed}")
        write_jsonl(folder / f"{name}_{kind}.jsonl", _problems(game, generator, count, is_test=is_test))


def write_model(folder: Path, *, seed: int) -> None:
    """Write a random Llama of 0.4 million parameters, to which a call of the tool is two tokens and the expression."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(VOCABULARY)}, unk_token="<unk>"))
    parts = "|".join(re.escape(text) for text in (CALL, END, *VOCABULARY[:3]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(f"{parts}|."), behavior="isolated")
    core.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **names)
    tokenizer.chat_template = TEMPLATE.replace("CALL", json.dumps(CALL)).replace("END", json.dumps(END))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=MAX_TOKENS, bos_token_id=None, eos_token_id=1,
        pad_token_id=0, **sizes,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def _problems(game: Game, generator: random.Random, count: int, *, is_test: bool) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < count:
        question, answer = game.problem(generator)
        if game.is_held_out(question) == is_test or game.problem is _secret:
            rows.append({"question": question, "answer": answer})
    return rows


def imitation(folder: Path, name: str, *, seed: int) -> Row:
    """Return the configuration of the start."""
    steps, batch, rate = GAMES[name].sft
    optimizer = {"lr": rate, "lr_scheduler_type": "linear", "lr_warmup_steps": 20, "min_lr_ratio": 0.0}
    form = {"prompt_type": "messages", "messages_key": "messages", "enable_concatenated_multi_turn": True}
    data = {"name": "demonstrations", "storage_type": "file", "path": str(folder / f"{name}_sft.jsonl")}
    return _common(folder, f"{name}_sft", seed=seed) | {
        "mode": "train",
        "model": {"model_path": str(folder / "model"), "max_model_len": MAX_TOKENS},
        "algorithm": {"algorithm_type": "sft", "optimizer": optimizer | {"betas": [0.9, 0.98]}},
        "buffer": {
            "train_batch_size": batch,
            "trainer_input": {"experience_buffer": data | {"format": form}},
        },
        "trainer": _trainer(total_steps=steps),
    }


def reinforcement(folder: Path, name: str, way: str, *, start: Path, seed: int, steps: int | None = None) -> Row:
    """Return the configuration of a run: agents by `workflow` or by `client`."""
    game = GAMES[name]
    total, problems, repeats, rate = game.rft
    schedule = {"lr_scheduler_type": "linear", "min_lr_ratio": 0.1} if game.is_decayed else {}
    form = {"prompt_key": "question", "response_key": "answer"}
    arguments = {"max_turns": game.max_turns, "max_tokens": game.max_tokens}
    common = {
        "storage_type": "file", "format": form, "workflow_args": arguments, "rollout_args": {"temperature": 1.0}
    }  # fmt: skip
    tasks = {"name": name, "path": str(folder / f"{name}_train.jsonl")}
    held_out = {"name": "held_out", "path": str(folder / f"{name}_test.jsonl")}
    parsing = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"} if name == "calculator" else {}
    # The limits of `model` hold for one of the ways only, the client's calls have `max_model_len` alone.
    limits = {"max_response_tokens": game.max_tokens, "min_response_tokens": 0}
    return _common(folder, f"{name}_{way}", seed=seed) | {
        "mode": "both",
        "plugin_dirs": [str(Path(__file__).with_name("agent_plugin"))],
        "model": {
            "model_path": str(start),
            "max_model_len": MAX_TOKENS,
            "max_prompt_tokens": MAX_TOKENS - game.max_tokens,
            **limits,
        },
        "algorithm": {
            "algorithm_type": "grpo",
            "repeat_times": repeats,
            "kl_loss_fn": "none",
            "optimizer": {"lr": rate, "lr_warmup_steps": 5, "betas": [0.9, 0.95], "weight_decay": 0.0, **schedule},
        },
        "buffer": {
            "batch_size": problems,
            "total_steps": steps or total,
            "explorer_input": {
                "default_workflow_type": f"{name}_by_{way}",
                "taskset": common | tasks,
                "eval_tasksets": [common | held_out],
            },
        },
        "explorer": {
            "runner_per_model": 64,
            "rollout_model": {"dtype": "float32", "enable_history": True, "enable_openai_api": True, **parsing},
            "eval_interval": 10,
            "eval_on_startup": True,
        },
        "synchronizer": {"sync_method": "memory", "sync_interval": 1},
        "trainer": _trainer(),
    }


def _common(folder: Path, name: str, *, seed: int) -> Row:
    return {
        "project": "agents", "name": name, "checkpoint_root_dir": str(folder / "checkpoints"), "seed": seed,
        "deterministic": True, "continue_from_checkpoint": True,
    }  # fmt: skip


def _trainer(**more: Any) -> Row:
    actor = {"fsdp_config": {"dtype": "float32"}}
    model = {"enable_gradient_checkpointing": False}
    section = {"actor_rollout_ref": {"model": model, "actor": actor}}
    common = {"grad_clip": 1.0, "max_token_len_per_gpu": 8192, "save_hf_checkpoint": "last", "save_interval": 1000}
    return common | {"max_checkpoints_to_keep": 1, "trainer_config": section} | more
