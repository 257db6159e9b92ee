"""This machine's addresses, proxies and Ray; nothing is asked of others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from trinity.common.config.explorer import ExplorerConfig
from trinity.common.config.problems import Finding
from trinity.common.errors import EnvironmentProblem
from trinity.preflight.doctor.look import Look, looked, problem
from trinity.runtime.cluster import DEFAULT_PORT, found_address
from trinity.utils.packages import install_hint, is_installed

LOOPBACK = "127.0.0.1"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
ANSWER_S = 1.0
PORTS: dict[int, str] = {ExplorerConfig().proxy_port: "explorer.proxy_port", DEFAULT_PORT: "ray start --head"}
"""Ports that are used unless others are named."""
TOKEN_FILE, TOKEN_PATH, TOKEN, TOKEN_MODE = (
    "~/.ray/auth_token", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"
)  # fmt: skip


def checks() -> Iterator[Look]:
    """Yield what was found, one look at a time."""
    yield loopback()
    yield ports()
    yield proxies()
    yield ray()


def loopback() -> Look:
    """Return whether this machine reaches itself (E3840, W3841)."""
    name, problems = socket.gethostname(), list[Finding]()
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=ANSWER_S).close()
    except OSError as error:
        closed = f"a port of {LOOPBACK} cannot be opened and reached: {error.strerror or error}"
        problems.append(
            problem("E3840", closed, "switch the loopback device on (`ip link set lo up`), or ease the firewall")
        )
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        address = "no address"
        message = f"the machine's name {name!r} has no address ({error.strerror or error}): Ray and gloo ask for it"
        problems.append(problem("W3841", message, f"write `{LOOPBACK} {name}` into /etc/hosts"))
    return looked("network", f"{name}: {address}", *problems)


def ports() -> Look:
    """Return which of the usual ports are taken.

    A run that needs one says so itself, and takes another where it may.
    """
    taken = [f"{port} ({whose})" for port, whose in PORTS.items() if _is_taken(port)]
    return looked("ports", f"taken: {', '.join(taken)}" if taken else f"free: {', '.join(map(str, PORTS))}")


def proxies() -> Look:
    """Return proxies that would come between a workflow and an engine (W3842)."""
    given = {name: os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES}
    named = [name for name, value in given.items() if value]
    passed = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    if not named or "*" in passed or {LOOPBACK, "localhost"} <= set(passed):
        return looked("proxies", ", ".join(named) if named else "none")
    message = (
        f"{', '.join(named)} is set and no_proxy leaves {LOOPBACK} or localhost out: calls of other clients to an "
    )
    message += "engine of this machine go to the proxy"
    return looked("proxies", ", ".join(named), problem("W3842", message, f"set no_proxy={LOOPBACK},localhost"))


def ray() -> Look:
    """Return Ray's version, its running cluster and its token.

    An address that is none: E3404. One where nothing answers: W3843. A token that is asked for and not there: W3844.
    """
    if not is_installed("ray"):
        return looked("ray", f"not installed; {install_hint('ray')} brings it, and runs without a cluster need none")
    problems, given = list[Finding](), os.environ.get("RAY_ADDRESS", "")
    try:
        address = found_address("auto")
    except EnvironmentProblem as error:
        address, way_out = None, "set RAY_ADDRESS to host:port of a head, or unset it"
        problems.append(problem(error.code, str(error.args[0]), way_out))
    if given and address is None and not problems:
        silent = f"RAY_ADDRESS is {given!r}, and nothing answers there"
        problems.append(problem("W3843", silent, "start the cluster with `ray start --head`, or unset RAY_ADDRESS"))
    mode = os.environ.get(TOKEN_MODE, "")
    place = Path(os.environ.get(TOKEN_PATH) or TOKEN_FILE).expanduser()
    has_token = bool(os.environ.get(TOKEN)) or place.is_file()
    if mode.lower() == "token" and not has_token:
        message = f"{TOKEN_MODE} is token, and there is neither {TOKEN} nor the file {place}"
        problems.append(
            problem("W3844", message, "run `ray get-auth-token --generate`, and give every machine the same")
        )
    cluster = f"cluster at {address}" if address else "no cluster runs"
    token = "a token" if has_token else "no token"
    return looked("ray", f"{version('ray')}, {cluster}, {token}", *problems)


def _is_taken(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
