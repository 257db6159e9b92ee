"""The work that both sides of the step benchmark do: model, tokenizer, prompts and reward, made from seeds.

One standard step: 32 prompts, 8 responses each, 48 new tokens a response, a Qwen2 of hidden size 256 with 4 layers, and
one GRPO update over the 256 sequences; `WORKS` has the others. Needs torch and transformers only, so that a peer's
environment can import it.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Work:
    """Sizes of a step.

    Attributes:
        prompts: tasks.
        samples: attempts of a task.
        new_tokens: tokens of a response.
        prompt_tokens: fewest tokens of a task's text; 0: a problem as it is.
        turns: responses of an attempt; between them is `FOLLOW_UP`.
        micro_tokens: most tokens of a micro-batch.
    """

    prompts: int
    samples: int
    new_tokens: int
    prompt_tokens: int = 0
    turns: int = 1
    micro_tokens: int = 64 * 80


WORKS = {
    "standard": Work(prompts=32, samples=8, new_tokens=48),
    "long": Work(prompts=4, samples=8, new_tokens=48, prompt_tokens=1000, micro_tokens=9000),
    "episodes": Work(prompts=8, samples=2, new_tokens=48, prompt_tokens=200, turns=6, micro_tokens=9000),
}
FOLLOW_UP = (
    "How many does Tom have now? Anna has 45 books and buys 12 more, Ben has 31 coins and sells 20. How many does Mia "
    "have left?"
)
SPECIAL_OFFSET = 0.3
VOCABULARY = 512
NUM_ROWS = 4096
NUM_LONG_ROWS = 64
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PEOPLE = ("Tom", "Anna", "Ben", "Lily", "Sam", "Mia", "Max", "Eva")
_THINGS = ("apples", "pens", "books", "coins", "cards", "eggs", "cups", "stamps")


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Return `count` word problems in GSM8K's form, `question` and `answer ... #### N`."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        first, second = draw.randint(10, 99), draw.randint(10, 99)
        person, thing = draw.choice(_PEOPLE), draw.choice(_THINGS)
        if draw.random() < 0.5:
            question = f"{person} has {first} {thing} and buys {second} more. How many {thing} does {person} have now?"
            sign, result = "+", first + second
        else:
            first, second = max(first, second), min(first, second)
            question = f"{person} has {first} {thing} and sells {second}. How many {thing} does {person} have left?"
            sign, result = "-", first - second
        made.append({"question": question, "answer": f"{first} {sign} {second} = {result}\n#### {result}"})
    return made


def long_rows(tokenizer: Any, count: int, num_tokens: int) -> list[dict[str, str]]:
    """Return `count` problems behind as many others as fill `num_tokens` tokens."""
    others, made = iter(rows(NUM_ROWS, seed=2)), []
    for row in rows(count, seed=1):
        text = ""
        while len(tokenizer(text + row["question"])["input_ids"]) < num_tokens:
            text += next(others)["question"] + " "
        made.append(row | {"question": text + row["question"]})
    return made


def score(response: str, answer: str) -> float:
    """Return 1 for the right number after `####`, 0.1 for any number there, 0 otherwise."""
    wanted = re.search(r"#### (-?\d+)", answer)
    found = re.search(r"#### (-?\d+)", response)
    if wanted is None or found is None:
        return 0.0
    return 1.0 if wanted.group(1) == found.group(1) else 0.1


def reward(response: str, answer: str) -> float:
    """Return the score and a tenth of the share of letters in the response.

    A random model scores 0 everywhere. The share differs from response to response, so that no group has equal
    rewards and no update could be left out.
    """
    letters = sum(character.isalpha() for character in response)
    return score(response, answer) + 0.1 * letters / max(len(response), 1)


def write_tokenizer(folder: Path) -> int:
    """Write the tokenizer, trained on the problems, into `folder`; return the id of its end-of-sequence token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (f"{row['question']}\n{row['answer']} user assistant" for row in rows(NUM_ROWS, seed=1))
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2], padding_side="left"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return int(fast.eos_token_id)


def build(folder: Path, *, hidden: int = 256, work: Work = WORKS["standard"]) -> None:
    """Write model, tokenizer and `train.jsonl` into `folder`."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    end = write_tokenizer(folder)
    problems = rows(NUM_ROWS, seed=1)
    if work.prompt_tokens:
        problems = long_rows(AutoTokenizer.from_pretrained(folder), NUM_LONG_ROWS, work.prompt_tokens)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=3 * hidden,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=0,
        )
    )
    if work.turns > 1:  # a special token within a response is not in its text, so that the next turn could not continue
        with torch.no_grad():
            column = model.get_input_embeddings().weight[:, 0]
            column.fill_(SPECIAL_OFFSET)
            column[: len(SPECIAL)] = -SPECIAL_OFFSET
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
