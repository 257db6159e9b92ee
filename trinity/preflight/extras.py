"""The packages that a stage needs beyond those that are always installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trinity.common.config.keys import AUXILIARY, EXPERIENCES, KEYS
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import monitors
from trinity.preflight.data import tasksets
from trinity.utils.packages import install_hint, is_installed, postgresql_driver, way_to_install
from trinity.utils.remote.addresses import scheme_of

if TYPE_CHECKING:
    from trinity.common.config import Catalogue, Config


def check_extras(config: Config, *, catalogue: Catalogue) -> Iterator[Finding]:
    """Yield each missing package (E3301); `check_devices` reports vLLM."""
    yield from missing(_needed(config, catalogue))


def missing(needed: Iterable[tuple[str, str, str, str]]) -> Iterator[Finding]:
    """Yield the packages of `_needed` that are not installed."""
    for key, package, way_out, other in needed:
        if not is_installed(package):
            message = f"`{key}` needs the package {package}, which is not installed"
            yield Finding("E3301", key, message, suggestion=f"run {way_out}, or use --set {other}")


def _needed(config: Config, catalogue: Catalogue) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, package, command that installs it, and what to write instead."""
    for tracker in monitors(config):
        monitor = catalogue.entry("monitor", tracker)
        if monitor is not None and monitor.package:
            has_extra = catalogue.is_built_in("monitor", tracker)
            way_out = install_hint(monitor.package) if has_extra else f"`pip install {monitor.package}`"
            yield str(KEYS.monitor.monitor_type), monitor.package, way_out, f"{KEYS.monitor.monitor_type}=tensorboard"
    yield from _of_tasksets(config, catalogue)
    if config.cluster.runtime == "ray":
        yield str(KEYS.cluster.runtime), "ray", install_hint("ray"), f"{KEYS.cluster.runtime}=local"
    yield from _of_databases(config)
    upload, key = config.trainer.checkpoint_upload_dir, str(KEYS.trainer.checkpoint_upload_dir)
    if upload and config.mode in ("both", "train"):
        yield from of_address(key, upload, "null")


def of_address(key: str, address: str, other: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the package that an address needs, as `_needed` does."""
    scheme = scheme_of(address)
    if scheme.package is not None and scheme.extra is not None:
        yield key, scheme.package, install_hint(scheme.extra), f"{key}={other}"


def _of_databases(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Yield the drivers of experience stores.

    Those of rows that are read from a database are found missing when the first ones are looked at.
    """
    buffers = config.buffer.trainer_input
    buffer = buffers.experience_buffer
    places = [(str(EXPERIENCES.path), buffer.place)] if buffer is not None and buffer.storage_type != "file" else []
    places += [
        (str(AUXILIARY[name].path), each.place)
        for name, each in buffers.auxiliary_buffers.items()
        if each.storage_type == "queue"
    ]
    section = config.data_processor.experience_pipeline
    if section.save_input:
        places.append((str(KEYS.data_processor.experience_pipeline.input_save_path), section.input_save_path))
    for path, url in places:
        driver = postgresql_driver(url or "")
        if driver is not None:
            yield path, driver, install_hint("postgres"), f"{path}=sqlite:///data.db"


def _of_tasksets(config: Config, catalogue: Catalogue) -> Iterator[tuple[str, str, str, str]]:
    """Yield what workflows and reward functions of the tasksets need."""
    for place, taskset in tasksets(config).items():
        for kind, name, field, other in (
            ("workflow", taskset.default_workflow_type, "default_workflow_type", "math_workflow"),
            ("reward_fn", taskset.default_reward_fn_type, "default_reward_fn_type", "accuracy_reward"),
        ):
            entry = catalogue.entry(kind, name)
            if entry is not None and entry.package:
                has_extra = catalogue.is_built_in(kind, name)
                way_out = way_to_install(entry.package) if has_extra else f"`pip install {entry.package}`"
                yield f"{place}.{field}", entry.package, way_out, f"{place}.{field}={other}"
