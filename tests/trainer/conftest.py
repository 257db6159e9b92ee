"""Real parts for the tests of the trainer: a tiny model, a store, a synchronizer, a monitor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.resolved import resolved
from tests.stores import bucket, memory, s3_server  # noqa: F401
from tests.tiny import tiny_model
from tests.trainer.rank_pool import RankPool
from tests.trees import merged
from trinity.common.config import Config
from trinity.common.experience import EID, Experience
from trinity.common.models.trajectories import trajectories
from trinity.trainer.verl.worker import ActorWorker

VOCABULARY = 20
FLOAT32 = {"fsdp_config": {"dtype": "float32"}}  # the default follows the processor; exactness is that of float32


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tiny_model(path, "llama", seed=1, scale=3.0)
    return path


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Four processes that play ranks, started by the first test that asks for them."""
    with RankPool(4) as made:
        yield made


@pytest.fixture
def make_config(tmp_path: Path, model_path: Path) -> Callable[..., Config]:
    """Return a function that makes a configuration; keyword arguments are merged into it section by section."""

    def make(**sections: Any) -> Config:
        values: dict[str, Any] = {
            "project": "p",
            "name": "n",
            "mode": "train",
            "checkpoint_job_dir": str(tmp_path / "job"),
            "deterministic": True,
            "model": {"model_path": str(model_path), "max_model_len": 64, "max_response_tokens": 16},
            "algorithm": {"algorithm_type": "grpo", "kl_loss_fn": "none", "optimizer": {"lr": 1e-2}},
            "buffer": {"batch_size": 2, "train_batch_size": 8, "total_steps": 6},
            "trainer": {"trainer_config": {"actor_rollout_ref": {"actor": FLOAT32}}},
        }
        return resolved(merged(values, sections))

    return make


def moved(made: ActorWorker, *, share: float, seed: int) -> ActorWorker:
    """Move the policy away from the reference, the same way each time: noise of `share` on every weight."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.add_(share * torch.randn(parameter.shape, generator=generator))
    made.actor.decoder.refresh()
    return made


def make_experiences(
    step: int, *, tasks: int = 2, repeats: int = 4, version: int | None = None, ragged: bool = True, seed: int = 0
) -> list[Experience]:
    """Return random experiences of explore step `step` with advantages that differ within each task."""
    generator = torch.Generator().manual_seed(1000 * seed + step)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    experiences = []
    for task in range(tasks):
        prompt = torch.randint(3, VOCABULARY, (draw(3, 7) if ragged else 5,), generator=generator)
        for run in range(repeats):
            length = draw(2, 12) if ragged else 8
            response = torch.randint(3, VOCABULARY, (length,), generator=generator)
            mask = torch.rand(length, generator=generator) < 0.8
            mask[0] = True
            experiences.append(
                Experience(
                    EID(step, task, run),
                    torch.cat([prompt, response]),
                    len(prompt),
                    logprobs=-torch.rand(length, generator=generator) - 2.0,
                    reward=float(run % 2),
                    advantages=torch.full((length,), 1.0 if run % 2 else -1.0),
                    action_mask=mask,
                    info={"model_version": step - 1 if version is None else version},
                )
            )
    return experiences


def make_episodes(*, episodes: int = 2, turns: int = 3, samples: int = 1, seed: int = 0) -> list[Experience]:
    """Return the turns of random episodes: a prompt is the last prompt, its response and an observation.

    Of several samples a turn, the first continues.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> torch.Tensor:
        size = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(3, VOCABULARY, (size,), generator=generator)

    experiences = []
    for episode in range(episodes):
        prompt = draw(20, 24)
        for turn in range(turns):
            answers = [draw(3, 8) for _ in range(samples)]
            for sample, response in enumerate(answers):
                length = len(response)
                mask = torch.rand(length, generator=generator) < 0.8
                mask[0] = True
                experiences.append(
                    Experience(
                        EID(1, episode, sample, turn),
                        torch.cat([prompt, response]),
                        len(prompt),
                        logprobs=-torch.rand(length, generator=generator) - 2.0,
                        reward=float((episode + sample) % 2),
                        advantages=torch.full((length,), 1.0 if (episode + sample) % 2 else -1.0),
                        action_mask=mask,
                        info={"model_version": 0},
                    )
                )
            prompt = torch.cat([prompt, answers[0], draw(2, 6)])
    return experiences


def make_branches(*, rollouts: int = 2, branches: int = 3, seed: int = 0) -> list[Experience]:
    """Return the trajectories of rollouts in which several calls go on from one response, as a workflow makes them.

    What the branches have in common is an action of the first one, and context in the others.
    """
    generator = torch.Generator().manual_seed(100 + seed)

    def call(begin: torch.Tensor, low: int, high: int) -> Experience:
        sizes = torch.randint(low, high, (2,), generator=generator).tolist()
        prompt, response = (torch.randint(3, VOCABULARY, (size,), generator=generator) for size in sizes)
        logprobs = -torch.rand(len(response), generator=generator) - 2.0
        tokens, length = torch.cat([begin, prompt, response]), len(begin) + len(prompt)
        return Experience(EID(1), tokens, length, logprobs=logprobs, info={"model_version": 0})

    experiences = []
    for rollout in range(rollouts):
        root = call(torch.zeros(0, dtype=torch.long), 12, 18)
        made = trajectories([root, *(call(root.tokens, 3, 7) for _ in range(branches))])
        assert len(made) == branches
        for number, exp in enumerate(made):
            exp.eid = EID(1, 100 + rollout, number)
            exp.reward = float((rollout + number) % 2)
            exp.advantages = torch.full((exp.response_length,), 2.0 * exp.reward - 1.0)
            experiences.append(exp)
    return experiences


@pytest.fixture
def demonstrations(tmp_path: Path) -> Path:
    """A dataset of 40 sums."""
    file = tmp_path / "demonstrations.jsonl"
    rows = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 18) for b in range(20, 25)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
