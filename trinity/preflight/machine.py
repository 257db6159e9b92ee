"""Checks of a plan against this machine, and the refusal to run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from trinity.common.config import Config, ConfigErrors, Plan, StagePlan
from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding, unique
from trinity.preflight.data import check_data, check_tables
from trinity.preflight.data_juicer import check_data_juicer
from trinity.preflight.devices import check_devices
from trinity.preflight.division import check_division
from trinity.preflight.extras import check_extras
from trinity.preflight.families import check_families
from trinity.preflight.gpu_memory import check_gpu_memory
from trinity.preflight.heads import CRITIC, REWARD_MODEL
from trinity.preflight.images import check_images
from trinity.preflight.model_dir import POLICY
from trinity.preflight.models import check_auxiliary, check_critic, check_policy, check_reward_model
from trinity.preflight.prompts import check_prompts
from trinity.preflight.scorers import RESUME, check_resumed, check_scorers
from trinity.preflight.space import ROOT, check_space
from trinity.preflight.trackers import check_trackers
from trinity.utils.log import get_logger

logger = get_logger("preflight")

Check = Callable[[Config], Iterator[Finding]]


def check_machine(plan: Plan) -> list[Finding]:
    """Return what this machine lacks for a plan.

    Checks models, data, devices, write access to the folder, and disk space.
    """
    found: list[Finding] = []
    written: set[str] = set()
    for stage in plan.stages:
        of_paths: tuple[tuple[str, Check], ...] = (
            (POLICY, check_policy),
            (POLICY, check_families),
            (POLICY, check_images),
            (CRITIC, check_critic),
            (str(KEYS.trainer), check_division),
            (str(KEYS.explorer.auxiliary_models), partial(check_auxiliary, catalogue=stage.catalogue)),
            (REWARD_MODEL, partial(check_reward_model, catalogue=stage.catalogue)),
            (str(KEYS.buffer), partial(check_data, catalogue=stage.catalogue)),
            (str(KEYS.buffer), partial(check_tables, written=frozenset(written))),
            (str(KEYS.buffer), check_scorers),
            (str(RESUME), check_resumed),
            (str(KEYS.buffer), check_prompts),
            (str(KEYS.data_processor), check_data_juicer),
            (ROOT, check_space),
        )
        for key, check in of_paths:
            found += _looked_at(stage, key, check)
        found += map(stage.placed, check_extras(stage.config, catalogue=stage.catalogue))
        found += map(stage.placed, check_devices(stage.config))
        found += _looked_at(stage, POLICY, check_gpu_memory)
        built_in = {name: dict(of.args) for name, of in stage.catalogue.contents("monitor").items()}
        found += map(stage.placed, check_trackers(stage.config, catalogue_args=built_in))
        output = stage.config.buffer.trainer_input.experience_buffer
        written |= {str(output.path)} if output is not None and stage.config.mode != "train" else set()
    return unique(found)


def refuse_unfit_machine(plan: Plan) -> None:
    """Log the warnings of `check_machine`.

    Raises:
        ConfigErrors: this machine lacks something that a run of the plan needs.
    """
    found = check_machine(plan)
    for finding in found:
        if not finding.is_error:
            logger.warning("%s", finding.message)
    errors = [finding for finding in found if finding.is_error]
    if errors:
        raise ConfigErrors(errors)


def _looked_at(stage: StagePlan, key: str, check: Check) -> list[Finding]:
    """Return the findings of `check`; an inaccessible path is one at `key`."""
    try:
        return [stage.placed(finding) for finding in check(stage.config)]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return [stage.placed(Finding("E3602", key, f"a path under `{key}` cannot be looked at: {reason}"))]
