"""Addresses of a plan become local copies before all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trinity.buffer.data_files import places_of
from trinity.common.config import Config, ConfigErrors, Finding, Plan
from trinity.common.config.keys import key_named, path_of
from trinity.common.config.plan import FetchedPath
from trinity.common.config.problems import unique
from trinity.common.errors import CheckpointError, TrinityError
from trinity.common.models.hub import TEXT_FILES, WEIGHT_FILES
from trinity.launch.job import accepts_change, read_record
from trinity.launch.models import models_of, with_places
from trinity.preflight.data import tasksets, training_datasets
from trinity.preflight.extras import missing, of_address
from trinity.utils.caches import cache_dir
from trinity.utils.log import get_logger
from trinity.utils.remote.addresses import is_remote, shown
from trinity.utils.remote.copies import Copy, fetch, kept_copy

RECORDED = "fetched"
NAMES = frozenset({"path", "inputs", "resume_from_path"})
_RESUME = "trainer.trainer_config.trainer.resume_from_path"
_PIPELINE = "data_processor.task_pipeline.inputs"
_logger = get_logger("launch")

Take = Callable[..., Copy | None]


@dataclass(frozen=True)
class _Wanted:
    key: str
    address: str
    patterns: tuple[str, ...] | None


def with_local_copies(plan: Plan, take: Take = fetch) -> Plan:
    """Return `plan` with a local copy in place of every address.

    Args:
        plan: the resolved plan.
        take: returns the copy of an address; None leaves the address as it is.

    Raises:
        ConfigErrors: something cannot be fetched (E3301, E3610 to E3619).
    """
    for finding in check_addresses(plan) if take is fetch else ():
        if not finding.is_error:
            _logger.warning("%s; %s", finding.message, finding.suggestion)
    copies: dict[tuple[str, tuple[str, ...] | None], Copy | None] = {}
    problems: list[Finding] = []
    for stage in plan.stages:
        for each in _wanted(stage.config):
            if (each.address, each.patterns) in copies:
                continue
            try:
                copy = take(each.address, patterns=each.patterns, key=each.key)
            except TrinityError as error:
                copy, place = None, path_of(key_named(each.key))
                problems.append(stage.tree.problem(error.code, place, f"`{each.key}`: {error.args[0]}"))
            copies[each.address, each.patterns] = copy
    if problems:
        raise ConfigErrors(problems)
    stages = []
    for stage in plan.stages:
        found = [(each, copies[each.address, each.patterns]) for each in _wanted(stage.config)]
        fetched = tuple(
            FetchedPath(each.key, shown(each.address), str(copy.path), copy.sha256) for each, copy in found if copy
        )
        places = {each.address: str(copy.path) for each, copy in found if copy}
        config = with_places(stage.config, places, names=NAMES) if places else stage.config
        stages.append(replace(stage, config=config, fetched=fetched))
    return replace(plan, stages=stages)


def with_copies(config: Config) -> Config:
    """Return a configuration with local copies in place of addresses.

    Raises:
        AddressError: something cannot be fetched.
    """
    places = {
        each.address: str(fetch(each.address, patterns=each.patterns, key=each.key).path) for each in _wanted(config)
    }
    return with_places(config, places, names=NAMES) if places else config


def _wanted(config: Config) -> list[_Wanted]:
    """Return the addresses that a stage reads from, once each."""
    found: dict[str, _Wanted] = {}
    for key, path, patterns in (*_models(config), *_data(config), *_checkpoints(config)):
        if is_remote(path):
            old = found.setdefault(path, _Wanted(key, path, patterns))
            wider = old.patterns if patterns is None or len(old.patterns or ()) > len(patterns) else patterns
            found[path] = _Wanted(old.key, path, wider)
    return list(found.values())


def _models(config: Config) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for key, path, needs_weights in models_of(config):
        yield key, path, (*TEXT_FILES, *(WEIGHT_FILES if needs_weights else ()))
    for index, adapter in enumerate(config.model.lora_configs or ()):
        yield f"model.lora_configs[{index}].path", adapter.path or "", (*TEXT_FILES, *WEIGHT_FILES)


def _data(config: Config) -> Iterator[tuple[str, str, None]]:
    sources = {key: source.path for key, source in tasksets(config).items()}
    sources |= {key: source.path for key, source, _ in training_datasets(config)}
    for key, path in sources.items():
        for index, place in enumerate(places_of(path)):
            name = key if key.startswith(_PIPELINE) else f"{key}.path"
            yield name if isinstance(path, str) else f"{name}[{index}]", place, None


def _checkpoints(config: Config) -> Iterator[tuple[str, str, None]]:
    verl = config.trainer.trainer_config.trainer
    if verl.resume_mode == "resume_path":
        yield _RESUME, verl.resume_from_path or "", None


def kept(address: str, *, patterns: Sequence[str] | None, key: str) -> Copy | None:
    """Return the copy of an address that is on this machine, if any."""
    return kept_copy(address, patterns=patterns)


def check_addresses(plan: Plan) -> list[Finding]:
    """Return what this machine lacks to fetch the addresses of a plan.

    With several machines, also that they must have the copies in common (W3113).
    """
    found: list[Finding] = []
    for stage in plan.stages:
        for each in _wanted(stage.config):
            found += map(stage.placed, missing(of_address(each.key, each.address, "PATH")))
            if stage.config.cluster.node_num > 1:
                message = f"`{each.key}`: the copy of {shown(each.address)} is in {cache_dir('remote')} of this machine"
                way_out = "let TRINITY_CACHE_DIR name a folder that all machines of the cluster see"
                found.append(stage.placed(Finding("W3113", each.key, message, suggestion=way_out)))
    return unique(found)


def fetched_record(fetched: Sequence[FetchedPath]) -> dict[str, Any]:
    """Return what the record of a job says of what was fetched for it."""
    return {each.key: {"address": each.address, "sha256": each.sha256} for each in fetched}


def check_same_content(
    job_dir: Path, fetched: Sequence[FetchedPath], *, accepted: Sequence[str] = (), part: str | None = None
) -> None:
    """Compare what was fetched now with what the job was begun with.

    Raises:
        CheckpointError: something at the same address has another content (E7046).
    """
    before: Mapping[str, Any] = read_record(job_dir, part).get(RECORDED, {})
    changed = []
    for each in fetched:
        old = before.get(each.key, {})
        if old.get("address") != each.address or old.get("sha256") == each.sha256:
            continue
        if accepts_change(each.key, accepted):
            _logger.warning("`%s`: %s has another content than when the job was begun", each.key, each.address)
        else:
            changed.append(f"  {each.key}: {each.address}: sha256 {old.get('sha256')} -> {each.sha256}")
    if changed:
        lines = "\n".join(changed)
        raise CheckpointError(
            f"{job_dir} was started with other contents of the same addresses:\n{lines}\nput them back there, choose "
            "another `name`, or accept each with --accept-change KEY",
            code="E7046",
        )
