"""A few random kills of runs that explore other things each time: nothing is lost, nothing is trained twice.

`python -m tests.faults.kills` does hundreds of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kills import STREAMED, Job, Kind

KINDS = [
    Kind("both", 3, "fixed", is_deterministic=False),
    Kind("both", 3, "fully_async", is_deterministic=False),
    Kind("both", 3, STREAMED, is_deterministic=False),
    Kind("apart", 3, "fixed", is_deterministic=False),
]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_random_kills_lose_nothing_and_train_nothing_twice(tmp_path: Path, kind: Kind) -> None:
    job = Job.make(kind, tmp_path, seed=35)
    job.run(3, timeout_s=300)
    assert job.kills > 0
