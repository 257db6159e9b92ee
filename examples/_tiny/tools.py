"""A calculator as a tool: problems such as `37*4+25=`, which take two calls and an answer.

Seven in ten demonstrations stop after the first call, or calculate with a wrong number.
"""

from __future__ import annotations

from pathlib import Path

import agent_tasks

from _tiny.imitation import CONVERSATIONS, Lesson

SEED = 42


def prepare(folder: Path, *, name: str = "calculator") -> Lesson:
    """Write a game of the agents' benchmark; return what the model imitates."""
    work = folder / "work"
    agent_tasks.prepare(work, name, seed=SEED)
    (folder / "tasks").mkdir()
    for split in ("train", "test"):
        (work / f"{name}_{split}.jsonl").replace(folder / "tasks" / f"{split}.jsonl")
    steps, batch, lr = agent_tasks.GAMES[name].sft
    file = work / f"{name}_sft.jsonl"
    return Lesson(work / "model", file, CONVERSATIONS, steps, agent_tasks.MAX_TOKENS, batch=batch, lr=lr)
