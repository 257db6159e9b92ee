"""Experiences for the store's tests, and how they are counted."""

from __future__ import annotations

from pathlib import Path

import torch

from trinity.buffer.store import BufferCounts, ExperienceStore
from trinity.common.experience import EID, Experience

BUFFER, RUN, PRODUCER, CONSUMER = "exp", "project/run", "explorer", "trainer"


def experience(
    step: int, task: int, run: int = 0, *, turn: int = 0, version: int = 0, reward: float | None = 1.0
) -> Experience:
    """Return a sampled experience that is recognisable by its tokens."""
    return Experience(
        eid=EID(step, task, run, turn),
        tokens=torch.tensor([step, task, run, 7]),
        prompt_length=3,
        logprobs=torch.tensor([-0.5]),
        reward=reward,
        info={"model_version": version},
        prompt_text=f"p{step}.{task}",
        response_text=f"r{run}",
    )


def uids(experiences: list[Experience]) -> list[str]:
    """Return the ids in order."""
    return [one.eid.uid for one in experiences]


def open_store(folder: Path) -> ExperienceStore:
    """Return an open store in `folder`."""
    return ExperienceStore(f"sqlite:///{folder}/experience.db", busy_timeout_s=20.0).open()


def generated(counts: BufferCounts) -> int:
    """Return the number of experiences that were ever appended."""
    return counts["ready"] + counts["claimed"] + counts["trained"] + sum(counts["dropped"].values())
