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
from trinity.utils.packages import is_installed

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
    """Yield a missing key of W&B (E3850), a wrong URI of MLflow (W3851).

    Args:
        config: the resolved configuration of a stage.
        catalogue_args: the default arguments of the built-in monitors.
    """
    written = config.monitor.monitor_args or {}
    for name in monitors(config):
        if name in catalogue_args and is_installed(name):
            arguments = catalogue_args[name] | written
            yield from {"wandb": _wandb, "mlflow": _mlflow}.get(name, _nothing)(arguments)


def _nothing(_arguments: dict[str, Any]) -> Iterator[Finding]:
    yield from ()


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
    yield Finding(
        "E3850",
        TYPE,
        f"`{TYPE}: wandb` needs a key for {host}, and {ARGS['api_key_env']}, WANDB_API_KEY and ~/.netrc have none",
        suggestion=f"run `wandb login`, set WANDB_MODE=offline, or use --set {TYPE}=tensorboard",
    )


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


def _mlflow(arguments: dict[str, Any]) -> Iterator[Finding]:
    uri = str(arguments.get("uri"))
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
    message = f"`{key}` {uri} {why}; the run continues, and metrics.jsonl has every metric"
    return Finding("W3851", key, message, suggestion=f"start the server, or write its address as {key}")
