"""Maps of the frozen lake, 4 x 4 tiles; every move of a demonstration is a random one as often as not.

The chat template shows the model the tiles alone, a token each, and a move is one token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from _tiny.imitation import CONVERSATIONS, Lesson
from _tiny.words import write_model
from trinity.common.workflows.envs.frozen_lake.utils import generate_random_map, render
from trinity.quickstart.dataset import write_jsonl

SEED = 42
SIZE, MOST_MOVES, RANDOM_FRAC = 4, 6, 0.5
NUM_TRAIN, NUM_TEST, NUM_DEMONSTRATIONS = 2048, 64, 12_800
MAX_TOKENS = 128
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
WORDS = (*"_OGPX√|", *(f"```{name}```" for name in MOVES))
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}"
    "{{ message['content'].split(':\\n')[-1].split('\\nYour')[0].replace(' ', '').replace('\\n', '') + '|' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ message['content'] + eos_token }}{%- endif -%}"
    "{%- endfor -%}"
)
Place = tuple[int, int]


def prepare(folder: Path) -> Lesson:
    """Write seeds of maps; return what the model imitates."""
    for name, count, first in (("train", NUM_TRAIN, 100_000), ("test", NUM_TEST, 200_000)):
        rows = [{"size": SIZE, "p": 0.8, "seed": first + number} for number in range(count)]
        write_jsonl(folder / "tasks" / f"{name}.jsonl", rows)
    draws = random.Random(SEED)
    made = [{"messages": demonstration(number, draws)} for number in range(NUM_DEMONSTRATIONS)]
    demonstrations, start = folder / "work" / "demonstrations.jsonl", folder / "work" / "random"
    write_jsonl(demonstrations, made)
    write_model(start, WORDS, TEMPLATE, max_tokens=MAX_TOKENS, seed=SEED)
    return Lesson(start, demonstrations, CONVERSATIONS, steps=200, max_tokens=MAX_TOKENS)


def demonstration(seed: int, draws: random.Random) -> list[dict[str, str]]:
    """Return a walk on the map of `seed` as a conversation."""
    rows, goal = generate_random_map(SIZE, 0.8, seed, MOST_MOVES)
    far = distances(rows, goal)
    place = next((row, line.index("S")) for row, line in enumerate(rows) if "S" in line)
    messages: list[dict[str, str]] = []
    for number in range(MOST_MOVES):
        shown = f"Map after {number} moves, {MOST_MOVES - number} left:\n{render(rows, place)}\nYour next move?"
        ways = {name: moved(place, step) for name, step in MOVES.items()}
        best = min(ways, key=lambda name: far.get(ways[name], 99))
        name = draws.choice(list(MOVES)) if draws.random() < RANDOM_FRAC else best
        messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": f"```{name}```"}]
        place = ways[name]
        if rows[place[0]][place[1]] in "HG":
            break
    return messages


def moved(place: Place, step: Place) -> Place:
    """Return where a step leads; the edge of the map holds."""
    row, column = (min(max(here + by, 0), SIZE - 1) for here, by in zip(place, step, strict=True))
    return row, column


def distances(rows: Sequence[str], goal: Place) -> dict[Place, int]:
    """Return the moves from every tile that leads to the goal."""
    far, edge = {goal: 0}, [goal]
    for place in edge:
        for step in MOVES.values():
            near = moved(place, step)
            if near not in far and rows[near[0]][near[1]] != "H":
                far[near] = far[place] + 1
                edge.append(near)
    return far
