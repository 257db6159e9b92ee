"""A run of the past, as its folder and its database tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from trinity.buffer.export import pages
from trinity.buffer.records import Records
from trinity.buffer.wanted import Wanted
from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config, ConfigErrors, plugin_dirs_of
from trinity.common.config.checking import check_schema
from trinity.common.config.given import read_source
from trinity.common.config.overrides import apply_overrides, parse_path
from trinity.common.errors import ConfigError, DataError
from trinity.common.experience import Experience
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.launch.copies import with_copies
from trinity.launch.job import config_file, read_record
from trinity.launch.samples import configuration_of, place_of
from trinity.utils.kinds import ROLES

NOT_COMPARED = frozenset({"time", "perf"})


@dataclass(frozen=True)
class PastRun:
    """A run's folder, opened for reading.

    Attributes:
        job: the folder.
        url: the database of its experiences.
        name: `project/name` of the run in it.
        plugin_dirs: folders of plugin modules, besides those of its configuration.
    """

    job: Path
    url: str
    name: str
    plugin_dirs: tuple[Path, ...] = ()

    @classmethod
    def of(cls, job: Path, *, url: str | None = None, plugin_dirs: Sequence[Path] = ()) -> PastRun:
        """Return the run of a folder.

        Raises:
            ConfigError: it is no folder of a run, or its database is not named (E1922).
        """
        place, name = place_of(job, url=url)
        return cls(job, place, name, tuple(plugin_dirs))

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """Return the run's complete configuration, with other values of keys.

        Nothing is derived again, except that a function of the algorithm that is replaced has its own defaults. Of
        addresses it has local copies.

        Raises:
            ConfigErrors: a value that its key cannot have.
            AddressError: what is at an address cannot be fetched.
        """
        values = self._written()
        for override in overrides:
            path = parse_path(override.partition("=")[0].strip()) or ()
            if len(path) == 2 and path[0] == "algorithm" and path[1] in ROLES:
                values["algorithm"].pop(f"{path[1]}_args", None)
        tree, problems = apply_overrides(read_source(values), overrides)
        config, found, _ = check_schema(tree)
        if problems or found:
            raise ConfigErrors([*problems, *found])
        return with_copies(config)

    def buffer_of(self, config: Config) -> str:
        """Return the name of the buffer that the trainer reads."""
        buffer = config.buffer.trainer_input.experience_buffer
        return "experience_buffer" if buffer is None else buffer.name

    def _written(self) -> dict[str, Any]:
        """Return the saved configuration without types the device chose."""
        tree = configuration_of(self.job)
        for key in read_record(self.job).get("unwritten", ()):
            *parents, last = key.split(".")
            node: Any = tree
            for name in parents:
                node = node.get(name) if isinstance(node, dict) else None
            if isinstance(node, dict):
                node.pop(last, None)
        return tree

    def all_plugin_dirs(self) -> tuple[Path, ...]:
        """Return the folders of plugin modules, those of its configuration too."""
        return tuple(dict.fromkeys([*self.plugin_dirs, *plugin_dirs_of(config_file(self.job), ())]))

    def fingerprints(self) -> dict[int, str]:
        """Return those of the run's tasksets, by number.

        There are none without a checkpoint of them.
        """
        steps = CheckpointStore(self.job).steps()
        file = self.job / f"global_step_{max(steps, default=0)}" / "explorer.json"
        if not file.is_file():
            return {}
        state = json.loads(file.read_text(encoding="utf-8")) or {}
        reader = (state.get("readers") or {}).get("taskset") or {}
        states = {int(number): each for number, each in reader.get("tasksets", {"0": reader}).items()}
        return {number: str(each["fingerprint"]) for number, each in states.items() if "fingerprint" in each}

    def experiences(self, records: Records, step: int, *, buffer: str) -> list[Experience]:
        """Return the experiences of a training step in their order.

        Raises:
            DataError: no such step is in the ledger (E4070), or a payload was pruned (E4071).
        """
        rows = records.of_step(self.name, step, buffer=buffer)
        if not rows:
            steps = records.steps(self.name, buffer=buffer)
            known = f"it has the steps {steps[0]} to {steps[-1]}" if steps else "it has no training step"
            raise DataError(
                f"training step {step} of {self.name} is not in the experience store; {known}", code="E4070"
            )
        return stored_experiences(rows, what=f"training step {step} of {self.name}")

    def explored(self, records: Records, *, buffer: str) -> Iterator[list[ExperienceModel]]:
        """Yield each explore step's rows, in the order of the log."""
        rows = (row for page in pages(records, Wanted(buffer=buffer, run=self.name)) for row in page)
        for _, group in groupby(rows, key=lambda row: (row.producer, row.explore_step)):
            yield list(group)

    def checkpoint_before(self, step: int) -> Path | None:
        """Return the newest checkpoint before a step; None: the first model."""
        known = [number for number in CheckpointStore(self.job).steps() if number < step]
        return self.job / f"global_step_{max(known)}" if known else None

    def newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint; None: there is none."""
        known = CheckpointStore(self.job).steps()
        return self.job / f"global_step_{max(known)}" if known else None

    def last_step(self, config: Config) -> int:
        """Return the newest training step that is logged or saved; 0: none."""
        logged = [int(line["step"]) for line in self._lines() if line.get("actor") == config.trainer.name]
        return max([*logged, *CheckpointStore(self.job).steps()], default=0)

    def metrics(self, config: Config, step: int) -> dict[str, float]:
        """Return what the run logged of a training step, without times."""
        found: dict[str, float] = {}
        for line in self._lines():
            if line.get("actor") == config.trainer.name and line.get("step") == step:
                found = {name: value for name, value in line.items() if is_compared(name, value)}
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        file = self.job / "metrics.jsonl"
        if file.exists():
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)


def stored_experiences(rows: Sequence[ExperienceModel], *, what: str) -> list[Experience]:
    """Return the experiences of rows that all have their payload.

    Args:
        rows: of the log.
        what: they are, for the message.

    Raises:
        DataError: a payload was pruned (E4071).
    """
    gone = sum(row.experience_bytes is None for row in rows)
    if gone:
        raise DataError(
            f"{what} cannot be computed again: {gone} of its {len(rows)} experiences have no payload any more; a run "
            "with a larger buffer.keep_payloads keeps more",
            code="E4071",
        )
    return [row.to_experience() for row in rows]


def is_compared(name: str, value: Any) -> bool:
    """Return whether a value is a metric that ignores the clock."""
    return "/" in name and isinstance(value, int | float) and not set(name.split("/")) & NOT_COMPARED


def refuse_other_keys(overrides: Sequence[str], *, known: Sequence[str], without: Sequence[str], what: str) -> None:
    """Refuse a `--set` that would change nothing.

    Args:
        overrides: `a.b=c`.
        known: beginnings of the keys that have an effect.
        without: keys below them that have none.
        what: what they would have to have an effect on.

    Raises:
        ConfigError: a key has no effect (E1923).
    """
    excepted = f", without {', '.join(without)}" if without else ""
    for override in overrides:
        key = override.partition("=")[0].strip()
        is_known = any(key == each or key.startswith(f"{each}.") for each in known)
        if not is_known or any(key == each or key.startswith(f"{each}.") for each in without):
            raise ConfigError(
                f"--set {key} has no effect on {what}; set keys of {', '.join(known)}{excepted}",
                code="E1923",
            )
