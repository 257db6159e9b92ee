"""One task attempted with the inference model of another process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.errors import EnvironmentProblem
from trinity.launch.trial.announcement import Announcement, found_server
from trinity.launch.trial.session import attempted

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.workflows.task import Task
    from trinity.explorer.isolation.child import DistantEngine
    from trinity.launch.trial.rollouts import Rollout

GRACE_S = 30.0


@dataclass(frozen=True)
class Debugged:
    """What came of the task.

    Attributes:
        rollouts: those of the task.
        words: text of each token id.
    """

    rollouts: Sequence[Rollout]
    words: Mapping[int, str] = field(repr=False)


async def debug_tasks(config: Config, tasks: Sequence[Task], *, command: str) -> Debugged:
    """Attempt tasks here, with the models of the job's server.

    Args:
        config: of the stage, as `trial_stage` returned it.
        tasks: to attempt.
        command: what starts a server, for the message.

    Raises:
        EnvironmentProblem: there is no server (E3430), or one of other models (E3432).
    """
    server = found_server(Path(config.checkpoint_job_dir), command=command)
    _check_models(config, server)
    # The rounds of a deterministic engine would wait for a participant whose process was killed.
    config = config.model_copy(update={"deterministic": False})
    async with distant_engines(config, server) as engines:
        rollouts = await attempted(config, engines, tasks)
        vocabulary = await engines[0].asked_vocabulary()
    return Debugged(rollouts, {number: text for text, number in vocabulary.items()})


@asynccontextmanager
async def distant_engines(config: Config, server: Announcement) -> AsyncIterator[list[DistantEngine]]:
    """Give proxies of the engines of a server."""
    from trinity.common.models.model import call_timeout_s
    from trinity.explorer.isolation.child import DistantEngine
    from trinity.explorer.isolation.requested import RequestedCalls

    # The engine has a deadline of its own for each call, and says more when it is reached.
    calls = RequestedCalls(server.address, server.key, timeout_s=call_timeout_s(config) + GRACE_S)
    try:
        yield [DistantEngine(calls, index) for index in range(len(server.models))]
    finally:
        await calls.close()


def _check_models(config: Config, server: Announcement) -> None:
    explorer = config.explorer
    asked = [config.explorer.rollout_model.model_path or config.model.model_path]
    asked += [model.model_path or config.model.model_path for model in explorer.auxiliary_models]
    served = [model.model_path for model in server.models]
    if asked != served:
        raise EnvironmentProblem(
            f"the inference model at {server.address} serves {', '.join(served)}, and the file asks for "
            f"{', '.join(asked)}; end it (process {server.pid}) and start it again",
            code="E3432",
        )
