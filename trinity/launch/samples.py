"""Samples of a run's folder: trained ones, and answers of evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.config.interpolation import resolve_interpolations
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import ConfigErrors
from trinity.common.config.reading import read_file
from trinity.common.constants import LINK, Mode
from trinity.common.errors import ConfigError, DataError
from trinity.launch.job import PARTS_FOLDER, config_file
from trinity.utils.log import REDACTED

if TYPE_CHECKING:
    from trinity.buffer.records import Order
    from trinity.buffer.store.types import Fates
    from trinity.common.config import Config
    from trinity.common.schema.sql_schema import ExperienceModel

_OF_EVALUATIONS = ("eval", "bench")
NUM_ROLLOUTS = 4
EXPLORING = (Mode.BOTH, Mode.EXPLORE, Mode.SERVE)


@dataclass(frozen=True)
class Asked:
    """Which samples of a run are asked for.

    Attributes:
        step: the training step that used them, or the explore step of an evaluation; None: any.
        task: `batch/task`, or a row of an evaluation taskset; empty: any.
        number: how many at most.
        order: which come first.
        taskset: of an evaluation; None: what was explored for training.
    """

    step: int | None = None
    task: str = ""
    number: int = 8
    order: Order = "newest"
    taskset: str | None = None


def samples_of(job: Path, asked: Asked, *, url: str | None = None) -> list[dict[str, Any]]:
    """Return samples: prompt, response, reward and what else is known.

    Args:
        job: folder of a run.
        asked: which ones.
        url: of the database; None: the one that the run's `config.yaml` names.

    Raises:
        ConfigError: it is no folder of a run, or its database is not named (E1922).
        DataError: there are no such rollouts (E4070).
        EnvironmentProblem: the database cannot be read (E3435).
    """
    place, run = place_of(job, url=url)
    found = _experiences(place, run, asked) if asked.taskset is None else answers_of(job, asked)
    if not found:
        wanted = [f"step {asked.step}"] * (asked.step is not None) + [f"task {asked.task}"] * bool(asked.task)
        raise DataError(f"{job} has no rollouts of {' and '.join(wanted) or 'this kind'}", code="E4070")
    return found


@dataclass(frozen=True)
class LatestRollout:
    """What a run explored, as it is shown while the run is live.

    Attributes:
        task: `batch/task`.
        reward: of it; None: there is none.
        advantage: the mean over its response; None: not known, or not yet.
        version: of the weights that sampled it.
        prompt: as text.
        response: as text.
    """

    task: str
    reward: float | None
    advantage: float | None
    version: int | None
    prompt: str
    response: str

    def facts(self) -> dict[str, Any]:
        """Return what is known of it, as `samples_of` names it."""
        known = {"task": self.task, "weights": self.version, "reward": self.reward, "advantage": self.advantage}
        known |= {"prompt": self.prompt, "response": self.response}
        return {name: value for name, value in known.items() if value is not None}


def latest_rollouts(place: str, run: str) -> list[LatestRollout]:
    """Return the newest rollouts of a run; none if it has none yet.

    They are few: `NUM_ROLLOUTS` at most.

    Args:
        place: URL of the database, or the file of one of SQLite.
        run: name of the run in it, as `place_of` says.

    Raises:
        EnvironmentProblem: the database cannot be read (E3435).
    """
    from trinity.buffer.records import Records
    from trinity.buffer.wanted import Wanted

    records = Records(place)
    try:
        rows = records.page(Wanted(run=run), number=0, size=NUM_ROLLOUTS, is_whole=True)
        return [_rollout(row) for row in rows]
    finally:
        records.close()


def rollouts_of(config: Config) -> Callable[[], list[LatestRollout]] | None:
    """Return what reads the newest rollouts of a live run.

    None where none are kept in a database.

    Args:
        config: resolved configuration.
    """
    buffer = config.buffer.trainer_input.experience_buffer
    if config.mode not in EXPLORING or buffer is None:
        return None
    own, path = own_database(Path(config.checkpoint_job_dir)), str(buffer.path or "")

    def read() -> list[LatestRollout]:
        if not own.exists() and "://" not in path:
            return []
        return latest_rollouts(str(own) if own.exists() else path, f"{config.project}/{config.name}")

    return read


def _rollout(row: ExperienceModel) -> LatestRollout:
    sample = _sample(row)
    texts = row.prompt_text or "", row.response_text or ""
    return LatestRollout(row.task_id, row.reward, sample.get("advantage"), row.model_version, *texts)


def fates_of(job: Path, *, url: str | None = None) -> dict[str, Fates]:
    """Return what happened to a run's rollouts, by buffer.

    Args:
        job: folder of a run.
        url: of the database; None: the one that the run's `config.yaml` names.

    Raises:
        ConfigError: it is no folder of a run, or its database is not named (E1922).
        EnvironmentProblem: the database cannot be read (E3435).
        StoreError: the numbers of a buffer do not add up (E5213).
    """
    from trinity.buffer.records import Records

    place, run = place_of(job, url=url)
    records = Records(place)
    try:
        return records.fates(run)
    finally:
        records.close()


def place_of(job: Path, *, url: str | None = None) -> tuple[str, str]:
    """Return the database of a run's folder, and the name of the run in it.

    Args:
        job: the folder.
        url: of the database; None: the one that `config.yaml` names.

    Raises:
        ConfigError: it is no folder of a run, or its database is not named (E1922).
    """
    parts = sorted((job / PARTS_FOLDER).glob("*.yaml"))
    # Of a job whose parts run apart that of one of them: they have the database in common.
    tree = _read(job, parts[0]) if parts and not config_file(job).exists() else configuration_of(job)
    return url or _database(job, tree), f"{tree.get('project')}/{tree.get('name')}"


def own_database(job: Path) -> Path:
    """Return the database that a job has in its folder, if it has one."""
    return job / "buffer" / "experience.db"


def configuration_of(job: Path) -> dict[str, Any]:
    """Return the configuration that a run's folder holds.

    Secrets are hidden, except those that were written as references to environment variables that are set.

    Raises:
        ConfigError: it is no folder of a run (E1922).
    """
    return _read(job, config_file(job))


def _read(job: Path, file: Path) -> dict[str, Any]:
    try:
        written = read_file(file)
    except ConfigErrors as error:
        raise ConfigError(
            f"{job} is no folder of a run: {error.problems[0].message}; give "
            "<checkpoint_root_dir>/<project>/<name>[/<stage>]",
            code="E1922",
        ) from error
    tree, problems = resolve_interpolations(written)
    for problem in problems:  # a variable that is not set here
        tree.put(parse_path(problem.key) or (), REDACTED)
    return tree.values


def _database(job: Path, tree: dict[str, Any]) -> str:
    own = own_database(job)
    buffer = (((tree.get("buffer") or {}).get("trainer_input")) or {}).get("experience_buffer") or {}
    path = str(buffer.get("path") or "")
    if not own.exists() and REDACTED in path:
        raise ConfigError(
            f"the password of the database ({path}) is hidden in {job / 'config.yaml'}; write --url, or set the "
            "environment variable that the run had",
            code="E1922",
        )
    return path if "://" in path and not own.exists() else f"sqlite:///{own}"


def _experiences(url: str, run: str, asked: Asked) -> list[dict[str, Any]]:
    from trinity.buffer.records import Records
    from trinity.buffer.wanted import Wanted

    records = Records(url)
    try:
        wanted = Wanted(run=run, task=asked.task, step=asked.step)
        rows = records.page(wanted, number=0, size=asked.number, order=asked.order, is_whole=True)
        return [_sample(row) for row in rows]
    finally:
        records.close()


def _sample(row: ExperienceModel) -> dict[str, Any]:
    sample: dict[str, Any] = {"task": row.task_id, "run": row.run_id, "turn": row.msg_id}
    sample |= {"weights": row.model_version, "reward": row.reward}
    sample |= _of_payload(row)
    state = row.state if not row.drop_reason else f"{row.state} ({row.drop_reason})"
    sample["state"] = state if row.trained_step is None else f"{state} in step {row.trained_step}"
    known = {name: value for name, value in sample.items() if value is not None}
    return known | {"prompt": row.prompt_text, "response": row.response_text}


def _of_payload(row: ExperienceModel) -> dict[str, Any]:
    if row.experience_bytes is None:
        return {"payload": "none any more (buffer.keep_payloads)"}
    try:
        experience = row.to_experience()
    except DataError as error:
        return {"unreadable": error.args[0]}
    found: dict[str, Any] = {}
    if experience.advantages is not None and experience.advantages.numel():
        found["advantage"] = round(float(experience.advantages.mean()), 6)
    found |= {name: experience.info.get(name) for name in (*LINK, "truth")}
    return found | experience.metrics | {"truncated": experience.truncate_status}


def answers_of(job: Path, asked: Asked) -> list[dict[str, Any]]:
    """Return rollouts of an evaluation: the taskset must be given.

    Raises:
        DataError: there are no rollouts of this taskset (E4070).
    """
    files = {
        (int(match[1]), file)
        for folder in _OF_EVALUATIONS
        for file in (job / folder / str(asked.taskset)).glob("*_step_*.jsonl")
        if (match := re.search(r"_step_(\d+)\.jsonl$", file.name))
    }
    if not files:
        known = sorted({path.name for folder in _OF_EVALUATIONS for path in (job / folder).glob("*") if path.is_dir()})
        raise DataError(
            f"{job} has no rollouts of an evaluation taskset {asked.taskset!r}; it has those of: "
            f"{', '.join(known) or 'none'}",
            code="E4070",
        )
    step = max(number for number, _ in files) if asked.step is None else asked.step
    chosen = sorted(file for number, file in files if number == step)
    # Not splitlines: a response may hold other characters that end a line.
    texts = [line for file in chosen for line in file.read_text(encoding="utf-8").split("\n")]
    lines = [json.loads(text) for text in texts if text]
    lines = [line for line in lines if not asked.task or str(line["task"]) == asked.task]
    if asked.order != "newest":
        lines = [line for line in lines if line.get("reward") is not None]
        lines.sort(key=lambda line: line["reward"], reverse=asked.order == "best")
    return [_flat(line) for line in lines[: asked.number]]


def _flat(line: dict[str, Any]) -> dict[str, Any]:
    metrics = line.pop("metrics", None) or {}
    return {name: value for name, value in (line | metrics).items() if value is not None}
