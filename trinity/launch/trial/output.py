"""Files of trial rollouts, where the user asks for them."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.experience_id import EID
from trinity.launch.trial.profiling import profile_file
from trinity.launch.trial.replaced import BUFFER, refuse_unfit, unwritable
from trinity.launch.trial.session import BATCH

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.launch.trial.rollouts import Rollout

JSON = (".json", ".jsonl")
PROFILE = ".html"


@dataclasses.dataclass(frozen=True)
class Places:
    """Where files are written.

    Attributes:
        experiences: lines of JSON if it ends in `.json` or `.jsonl`, else an SQLite database.
        profile: the profile, without its ending.
        has_profile: whether one is asked for.
    """

    experiences: Path
    profile: Path
    has_profile: bool

    def check(self) -> None:
        """Refuse places where a file cannot, or must not, be written.

        Raises:
            EnvironmentProblem: one of the files (E3433).
        """
        refuse_unfit(self.experiences)
        if self.has_profile:
            refuse_unfit(profile_file(self.profile))


def places(file: Path | None, folder: Path, *, is_profiled: bool, is_kept: bool) -> Places:
    """Return where files are written.

    Args:
        file: the experiences, or a profile that ends in `.html` with the experiences beside it; None: `folder` has all.
        folder: gets `experiences.db` and the profile.
        is_profiled: a profile is asked for.
        is_kept: what is there stays; the new files are beside it, with the time in their name.
    """
    if file is None:
        if is_kept and folder.is_dir() and any(folder.iterdir()):
            folder = folder.with_name(f"{folder.name}_{_now()}")
        return Places(folder / "experiences.db", folder / "profiling", is_profiled)
    if is_kept and file.exists():
        file = file.with_name(f"{file.stem}_{_now()}{file.suffix}")
    if file.suffix == PROFILE:
        return Places(file.with_suffix(".db"), file.with_suffix(""), True)
    return Places(file, file.with_name(f"{file.stem}_profiling"), is_profiled)


def _now() -> str:
    return time.strftime("%Y%m%d%H%M%S")


def write_rollouts(file: Path, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts in the place of what `file` was.

    Lines of JSON, one a rollout, or a database with the table `experience`, whose rows are the experiences. What was
    there is lost only once the new file is complete.

    Raises:
        EnvironmentProblem: it cannot be written, or what is there is not from an earlier call (E3433).
    """
    from sqlalchemy.exc import OperationalError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        refuse_unfit(file)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
            made = Path(folder) / file.name
            if file.suffix in JSON:
                lines = [json.dumps(rollout.facts(), ensure_ascii=True) + "\n" for rollout in rollouts]
                made.write_text("".join(lines), encoding="utf-8")
            else:
                _write_table(made, [exp for rollout in rollouts for exp in _identified(rollout)])
            os.replace(made, file)
    except OSError as error:
        raise unwritable(file, str(error.strerror)) from error
    except OperationalError as error:
        raise unwritable(file, str(error.orig)) from error


def _identified(rollout: Rollout) -> Iterator[Experience]:
    """Yield the experiences, with an identity also where the rollout failed."""
    for step, experience in enumerate(rollout.experiences):
        if not rollout.is_completed:
            eid = EID(BATCH, rollout.task, rollout.run, step, experience.eid.suffix)
            experience = dataclasses.replace(experience, eid=eid)
        yield experience


def _write_table(file: Path, experiences: Sequence[Experience]) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    from trinity.common.schema.sql_schema import Base, ExperienceBlobModel, ExperienceModel

    engine = create_engine(f"sqlite:///{file}")
    try:
        own = (ExperienceModel.__tablename__, ExperienceBlobModel.__tablename__)
        Base.metadata.create_all(engine, tables=[Base.metadata.tables[name] for name in own])
        with Session(engine) as session:
            session.add_all(
                [
                    ExperienceModel.from_experience(each, run="debug", buffer=BUFFER, producer="debug", explore_step=1)
                    for each in experiences
                ]
            )
            session.commit()
    finally:
        engine.dispose()
