"""The generated task of the quickstart: two-digit addition.

The solutions write out columns and carries. Rows have GSM8K's form: `question` is `47+58`; `answer` is the
working, a newline, `#### ` and the result. A pair of numbers and its mirror (47+58 and 58+47) always fall on
the same side of the split, so training never sees a problem of the test set. Most demonstrations of the warm-up
set forget every carry. A model that imitates them knows both ways, so reinforcement has something to choose
from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

DIGITS = 2
ANSWER_MARK = "\n#### "
HELD_OUT_OF = 10
FORGETFUL_FRAC = 0.75
TEST_SEED = 20_251_101
NUM_TRAIN = 4096
NUM_TEST = 512
NUM_SFT = 35_200

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


def fnv1a_32(text: str) -> int:
    """Return the 32-bit FNV-1a hash of the UTF-8 bytes of `text`."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def is_held_out(left: int, right: int) -> bool:
    """Return whether this pair, in any order, is in the test set (a tenth)."""
    first, second = sorted(f"{number:0{DIGITS}d}" for number in (left, right))
    return (fnv1a_32(f"{first}|{second}=") >> 7) % HELD_OUT_OF == 0


def question(left: int, right: int) -> str:
    """Return the problem as text, both numbers padded with zeros: `07+58`."""
    return f"{left:0{DIGITS}d}+{right:0{DIGITS}d}"


def solution(left: int, right: int, *, is_carrying: bool = True) -> str:
    """Return the working, from the lowest digit, and the result.

    For 47 + 58: `7+8+0=15,4+5+1=10`, and `#### 105` on the next line.

    Args:
        left: first number, below 100.
        right: second number, below 100.
        is_carrying: False forgets every carry, the last one too, as most demonstrations of the warm-up set do.
    """
    columns, result, carry = [], "", 0
    for place in range(DIGITS):
        upper, lower = left // 10**place % 10, right // 10**place % 10
        total = upper + lower + carry
        columns.append(f"{upper}+{lower}+{carry}={total:02d}")
        result = str(total % 10) + result
        carry = total // 10 if is_carrying else 0
    return ",".join(columns) + ANSWER_MARK + str(carry) + result


def _row(pair: tuple[int, int], *, is_carrying: bool = True) -> dict[str, str]:
    return {"question": question(*pair), "answer": solution(*pair, is_carrying=is_carrying)}


def _training_pairs(generator: random.Random) -> Iterator[tuple[int, int]]:
    while True:
        pair = (generator.randrange(10**DIGITS), generator.randrange(10**DIGITS))
        if not is_held_out(*pair):
            yield pair


def test_rows() -> list[dict[str, str]]:
    """Return the held-out problems, all different and the same for every seed."""
    numbers = range(10**DIGITS)
    pairs = [(left, right) for left in numbers for right in numbers if is_held_out(left, right)]
    return [_row(pair) for pair in random.Random(TEST_SEED).sample(pairs, NUM_TEST)]


def train_rows(seed: int) -> list[dict[str, str]]:
    """Return problems for reinforcement from `seed`; only results are used."""
    pairs = _training_pairs(random.Random(f"train-{seed}"))
    return [_row(next(pairs)) for _ in range(NUM_TRAIN)]


def sft_rows(seed: int) -> list[dict[str, str]]:
    """Return warm-up demonstrations from `seed`; most forget every carry."""
    generator = random.Random(f"sft-{seed}")
    pairs = _training_pairs(generator)
    rows = []
    for _ in range(NUM_SFT):
        is_carrying = generator.random() >= FORGETFUL_FRAC
        rows.append(_row(next(pairs), is_carrying=is_carrying))
    return rows


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    """Write one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_dataset(directory: Path, *, seed: int) -> None:
    """Write `train.jsonl`, `test.jsonl` and `sft.jsonl` into `directory`."""
    write_jsonl(directory / "train.jsonl", train_rows(seed))
    write_jsonl(directory / "test.jsonl", test_rows())
    write_jsonl(directory / "sft.jsonl", sft_rows(seed))
