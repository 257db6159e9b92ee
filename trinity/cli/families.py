"""`validate`: whether the trainer knows how to compute the families of policy and critic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinity.common.config import Problem, StagePlan


def check_families_of(stage: StagePlan) -> Iterator[Problem]:
    """Yield why the models of the stage cannot be trained, from their `config.json` and the table of families."""
    from trinity.common.config.draft import path_of
    from trinity.common.models.families import critic_problem, trainer_problem

    config, critic = stage.config, stage.config.trainer.trainer_config.critic
    if config.mode not in ("both", "train"):
        return
    kind = _model_type(config.model.model_path)
    problem = trainer_problem(kind)
    if problem is not None:
        yield stage.tree.problem("E3130", path_of("model.model_path"), problem)
    path = config.model.critic_model_path or config.model.model_path
    of_critic = critic_problem(_model_type(path)) if critic.enable and problem is None else None
    if of_critic is not None:
        yield stage.tree.problem("E3120", path_of("model.critic_model_path"), of_critic)


def _model_type(path: str | None) -> str:
    """Return the family of the model in a folder; empty for what is no model's folder, which others report."""
    from trinity.common.models.preflight import Unreadable, read_mapping

    try:
        return str(read_mapping(Path(path or "").expanduser() / "config.json").get("model_type"))
    except (Unreadable, OSError):
        return ""
