"""One finished short run, shared by the tests that only look at what it left, and a plugin for runs of a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.e2e.short_run import ShortRun

REWARD = '''
"""A reward that a random model earns, too."""

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("share_of_digits")
class ShareOfDigits(RewardFn):
    """The share of digits in the response."""

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        digits = sum(character.isdigit() for character in response) / max(len(response), 1)
        return {"digits": digits, "variety": 0.01 * len(set(response))}
'''
STEPWISE = '''
"""A rollout of one to three steps: it goes on while the answer ends early."""

from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.step_wise_workflow import StepWiseRewardWorkflow


@WORKFLOWS.register_module("digits_step_by_step")
class DigitsStepByStep(StepWiseRewardWorkflow):
    """Asks for digits again and again; a step is rewarded for its share of them."""

    max_step_num = 3

    def step(self, step_num):
        question = self.task.task_desc + "?" * step_num
        (answer,) = self.model.chat([{"role": "user", "content": question}], n=1, stop=list("acegikmoqsuwy"))
        answer.info["env_state_hash"] = question
        return True

    def reward(self, exps, step_num):
        text = exps[0].response_text
        return sum(character.isdigit() for character in text) / max(len(text), 1)
'''


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Leave the process as it was: a run in it sets its threads and its determinism."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reward function `share_of_digits`; one folder, because a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("plugins_of_algorithms")
    (folder / "share_of_digits.py").write_text(REWARD)
    (folder / "digits_step_by_step.py").write_text(STEPWISE)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """A short quickstart that ran to its end."""
    run = ShortRun.make(tmp_path_factory.mktemp("finished") / "quickstart")
    status, output = run.finish()
    assert status == 0, output
    (run.folder / "output.txt").write_text(output)
    return run


@pytest.fixture
def fresh(tmp_path) -> ShortRun:
    """A prepared folder in which nothing ran yet."""
    return ShortRun.make(tmp_path / "quickstart")
