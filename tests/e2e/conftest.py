"""One finished short run, shared by the tests that only look at what it left, and a plugin for runs of a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.short_run import ShortRun

REWARD = '''
"""A reward that a random model earns, too."""

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("share_of_digits")
class ShareOfDigits(RewardFn):
    """The share of digits in the response."""

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        return {"digits": sum(character.isdigit() for character in response) / max(len(response), 1)}
'''


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reward function `share_of_digits`; one folder, because a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("plugins_of_algorithms")
    (folder / "share_of_digits.py").write_text(REWARD)
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
