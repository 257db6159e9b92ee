"""Checks of the monitors that send metrics to another place."""

from __future__ import annotations

import configparser
import netrc
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trinity.common.config.keys import KEYS, present
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import monitors
from trinity.monitor.mlflow import DEFAULT_URI, is_mlflow, local_store
from trinity.utils.packages import install_hint, is_installed

if TYPE_CHECKING:
    from trinity.common.config import Config

TYPE, ARGS = str(KEYS.monitor.monitor_type), present(KEYS.monitor.monitor_args)
CONNECT_S = 2.0
_WANDB_URL = "https://api.wandb.ai"
_QUIET = ("offline", "disabled", "dryrun")
# MLflow's places: a server, a folder, a database, a service that it finds by itself.
_SERVERS = ("http", "https")
_OTHERS = ("", "file", "sqlite", "mysql", "mssql", "postgresql", "databricks", "databricks-uc", "uc")


def check_trackers(config: Config, *, catalogue_args: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """Yield what keeps a tracker from its metrics.

    A missing key of W&B or SwanLab (E3850), a wrong URI of MLflow (W3851), a run that is kept beside its files (W3852),
    a port that another process has (W3853).

    Args:
        config: the resolved configuration of a stage.
        catalogue_args: the default arguments of the built-in monitors.
    """
    written = config.monitor.monitor_args or {}
    for name in monitors(config):
        if name in catalogue_args and is_installed(name):
            arguments = catalogue_args[name] | written
            if name == "wandb":
                yield from _wandb(arguments)
            elif name == "swanlab":
                yield from _swanlab(arguments)
            elif name == "mlflow":
                yield from _mlflow(config, written.get("uri"))
        if name == "prometheus":
            yield from _prometheus(catalogue_args[name] | written)


def _wandb(arguments: dict[str, Any]) -> Iterator[Finding]:
    keys = (arguments.get("api_key"), os.environ.get(str(arguments.get("api_key_env") or "")))
    if any(keys) or any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return
    if os.environ.get("WANDB_MODE", _written_mode()) in _QUIET:
        return
    url = str(arguments.get("base_url") or os.environ.get("WANDB_BASE_URL") or _WANDB_URL)
    host = urlsplit(url).hostname or ""
    if _knows(host):
        return
    places = f"{ARGS['api_key_env']}, WANDB_API_KEY and ~/.netrc"
    yield _keyless("wandb", host, places, "run `wandb login`, set WANDB_MODE=offline")


def _keyless(name: str, host: str, places: str, ways_out: str) -> Finding:
    message = f"`{TYPE}: {name}` needs a key for {host}, and {places} have none"
    return Finding("E3850", TYPE, message, suggestion=f"{ways_out}, or use --set {TYPE}=tensorboard")


def _swanlab(arguments: dict[str, Any]) -> Iterator[Finding]:
    keys = (arguments.get("api_key"), os.environ.get(str(arguments.get("api_key_env") or "")))
    mode = arguments.get("mode") or os.environ.get("SWANLAB_MODE") or "online"
    if any(keys) or os.environ.get("SWANLAB_API_KEY") or mode not in ("online", "cloud"):
        return
    home = os.environ.get("SWANLAB_ROOT") or os.environ.get("SWANLAB_SAVE_DIR") or Path.home() / ".swanlab"
    if any((Path(folder) / ".netrc").exists() for folder in (".swanlab", home)):
        return
    places = f"{ARGS['api_key_env']}, SWANLAB_API_KEY and {home}/.netrc"
    yield _keyless("swanlab", "swanlab.cn", places, f"run `swanlab login`, write `{ARGS['mode']}: offline`")


def _written_mode() -> str:
    """Return the mode that `wandb offline` wrote for this folder."""
    settings = configparser.ConfigParser()
    try:
        settings.read(Path("wandb") / "settings")
        return settings.get("default", "mode", fallback="")
    except configparser.Error:
        return ""


def _knows(host: str) -> bool:
    """Return whether a netrc file has a login for a host."""
    for file in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if file and netrc.netrc(Path(file).expanduser()).authenticators(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _mlflow(config: Config, written: Any) -> Iterator[Finding]:
    uri = str(written or os.environ.get("MLFLOW_TRACKING_URI") or "")
    if uri:
        yield from _address(uri)
    elif not is_mlflow(DEFAULT_URI):
        folder = config.monitor.cache_dir or ""
        if not is_installed("alembic"):
            message = f"`{TYPE}: mlflow` without a server needs the package alembic, which is not installed"
            way_out = f"run {install_hint('mlflow')}, or write the address of a server as {ARGS['uri']}"
            yield Finding("E3301", TYPE, message, suggestion=way_out)
        elif not (Path(folder) / "mlflow_run.json").exists():  # a run that is there stays where it is
            yield Finding(
                "W3852",
                TYPE,
                f"no MLflow answers at {DEFAULT_URI}, so that the run is kept in {local_store(folder)}",
                suggestion=f"start `mlflow server`, or write an address as {ARGS['uri']}",
            )


def _address(uri: str) -> Iterator[Finding]:
    place = urlsplit(uri)
    kind = place.scheme.partition("+")[0]
    if kind in _OTHERS:
        return
    if kind not in _SERVERS or not place.hostname:
        yield _unreachable(uri, f"is no place of MLflow ({', '.join((*_SERVERS, *_OTHERS[1:]))})")
        return
    try:
        port = place.port or (443 if kind == "https" else 80)
        socket.create_connection((place.hostname, port), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        yield _unreachable(uri, f"does not answer ({error})")


def _unreachable(uri: str, why: str) -> Finding:
    key = str(ARGS["uri"])
    message = f"`{key}` {uri} {why}; the run continues, and what is missing is sent when it answers"
    return Finding("W3851", key, message, suggestion=f"start the server, or write its address as {key}")


def _prometheus(arguments: dict[str, Any]) -> Iterator[Finding]:
    host, port = str(arguments["host"]), arguments["port"]
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except (OSError, TypeError, OverflowError) as error:
        yield Finding(
            "W3853",
            str(ARGS["port"]),
            f"port {port} of {host} cannot be opened for Prometheus ({error}); the run continues, and tries it again",
            suggestion=f"write another {ARGS['port']}; 0 takes a free one",
        )
