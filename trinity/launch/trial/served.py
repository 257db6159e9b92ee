"""The models of a configuration behind an address."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.errors import EnvironmentProblem, ExitCode
from trinity.launch.trial.announcement import Announcement, ServedModel, announced, refuse_second
from trinity.launch.trial.session import own_engines
from trinity.utils.ports import taken

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.explorer.api.endpoint import Endpoint

STATUS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


async def serve_models(config: Config, *, port: int, say: Callable[[str], object]) -> ExitCode:
    """Serve the rollout model and the auxiliary ones; return the exit status.

    Workflows of other processes find the server by a file below the folder of the job, OpenAI clients by what is said.

    Args:
        config: of the stage, as `trial_stage` returned it.
        port: where it listens; 0: a free port.
        say: takes a line for the user.

    Raises:
        AlreadyRunningError: another server of the job answers (E8005).
        EnvironmentProblem: the port is taken (E3431).
        TrinityError: a model cannot be used.
    """
    job_dir = Path(config.checkpoint_job_dir)
    refuse_second(job_dir)
    async with own_engines(config) as engines:
        return await _serve(config, engines, port, say)


async def _serve(
    config: Config, engines: Sequence[InferenceModel], port: int, say: Callable[[str], object]
) -> ExitCode:
    from trinity.explorer.api.endpoint import Endpoint
    from trinity.explorer.api.engines import engine_routes
    from trinity.explorer.api.limits import EndpointLimits
    from trinity.explorer.wrappers import auxiliary_wrappers, wrapper

    key, loop = secrets.token_urlsafe(24), asyncio.get_running_loop()
    endpoint = Endpoint(port=port, limits=EndpointLimits.of(config), extend=engine_routes(engines, key, loop))
    models = [wrapper(config, engines[0]), *auxiliary_wrappers(config, engines[1:])]
    for model in models:
        model.enable_history = False  # nobody extracts it
    try:
        address = await asyncio.to_thread(_begun, endpoint, port)
        served = tuple(ServedModel(each.model_name, each.model_path, endpoint.token(each)) for each in models)
        with announced(Path(config.checkpoint_job_dir), Announcement(address, os.getpid(), key, served)) as file:
            for line in _lines(address, served, file):
                say(line)
            return await _interrupted()
    finally:
        await asyncio.to_thread(endpoint.close)


def _begun(endpoint: Endpoint, port: int) -> str:
    try:
        return endpoint.address
    except OSError as error:
        raise EnvironmentProblem(
            f"port {port} of 127.0.0.1 cannot be listened at: {taken(port, error)}; give another --port, or 0",
            code="E3431",
        ) from error


def _lines(address: str, models: Sequence[ServedModel], file: Path) -> list[str]:
    lines = [f"ready: {address}/v1, an OpenAI-compatible endpoint; Ctrl-C ends it"]
    lines += [f"  {model.name}: api_key in {file}, models[{number}]" for number, model in enumerate(models)]
    return lines


async def _interrupted() -> ExitCode:
    """Wait for the first signal; a second one ends the process at once."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    got: list[signal.Signals] = []

    def take(number: signal.Signals) -> None:
        got.append(number)
        ended.set()
        for each in STATUS:
            loop.remove_signal_handler(each)

    for number in STATUS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as a run, see `StopSignal`
            loop.add_signal_handler(number, take, number)
    # The user has the deadline.
    await ended.wait()
    return STATUS[got[0]]
