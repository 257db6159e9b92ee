"""Where the inference model of a job is, for workflows that are debugged.

A file below the job's folder, readable by its owner alone, from the start of the server to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from trinity.common.errors import AlreadyRunningError, EnvironmentProblem
from trinity.launch.job import DEBUG_FOLDER

FILE = "inference_model.json"
HEALTH_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ServedModel:
    """A model of the server.

    Attributes:
        name: what clients give as `model`.
        model_path: its folder.
        api_key: of the OpenAI-compatible endpoint; it stands for this model.
    """

    name: str
    model_path: str
    api_key: str


@dataclass(frozen=True)
class Announcement:
    """What the file says.

    Attributes:
        address: `http://host:port`; the OpenAI-compatible routes are below `/v1`.
        pid: the process of the server.
        key: of the routes that `trinity debug --module workflow` uses.
        models: the rollout model, then the auxiliary ones.
    """

    address: str
    pid: int
    key: str
    models: tuple[ServedModel, ...]

    @property
    def is_answered(self) -> bool:
        """Whether the server answers, which it has some seconds for."""
        try:
            answer = httpx.get(f"{self.address}/health", timeout=HEALTH_TIMEOUT_S, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK


def announcement_file(job_dir: Path) -> Path:
    """Return the file of a job."""
    return job_dir / DEBUG_FOLDER / FILE


@contextlib.contextmanager
def announced(job_dir: Path, announcement: Announcement) -> Iterator[Path]:
    """Keep the file there; afterwards remove it with the folders made for it.

    Raises:
        AlreadyRunningError: another server of the job answers (E8005).
    """
    file = announcement_file(job_dir)
    refuse_second(job_dir)
    made = [folder for folder in file.parents[1:] if not folder.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    own = file.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(own, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as opened:
        json.dump(asdict(announcement), opened, indent=2)
    os.replace(own, file)
    try:
        yield file
    finally:
        with contextlib.suppress(EnvironmentProblem):
            if read_announcement(job_dir) == announcement:
                file.unlink(missing_ok=True)
        for folder in (file.parent, *made):
            with contextlib.suppress(OSError):  # something else is in it, or it is gone
                folder.rmdir()


def refuse_second(job_dir: Path) -> None:
    """Verify that no other server of the job answers.

    Raises:
        AlreadyRunningError: one does (E8005).
    """
    with contextlib.suppress(EnvironmentProblem):
        other = read_announcement(job_dir)
        if other.is_answered:
            raise AlreadyRunningError(
                f"an inference model of {job_dir} serves already at {other.address} (process {other.pid}); use it, or "
                "end it first",
                code="E8005",
            )


def read_announcement(job_dir: Path) -> Announcement:
    """Return what the file of a job says.

    Raises:
        EnvironmentProblem: there is no file, or it cannot be read (E3430).
    """
    file = announcement_file(job_dir)
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        models = tuple(ServedModel(**each) for each in given.pop("models"))
        return Announcement(models=models, **given)
    except FileNotFoundError as error:
        raise EnvironmentProblem(f"there is no file {file}", code="E3430") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EnvironmentProblem(f"{file} cannot be read: {error}", code="E3430") from error


def found_server(job_dir: Path, *, command: str) -> Announcement:
    """Return the server of a job, which answers.

    Args:
        job_dir: folder of the job.
        command: what starts a server.

    Raises:
        EnvironmentProblem: there is none (E3430).
    """
    try:
        found = read_announcement(job_dir)
        gone = None if found.is_answered else f"the last one, process {found.pid}, does not answer at {found.address}"
    except EnvironmentProblem as error:
        gone = str(error.args[0])
    if gone is not None:
        raise EnvironmentProblem(
            f"no inference model of {job_dir} is there to debug a workflow with ({gone}); start it in another "
            f"terminal, and wait until it says that it is ready:\n    {command}",
            code="E3430",
        )
    return found


def command_of(words: list[str], *, module: str) -> str:
    """Return the command `trinity debug` of a module with further words."""
    return shlex.join(["trinity", "debug", *words, "--module", module])
