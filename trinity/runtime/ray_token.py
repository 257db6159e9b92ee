"""The token of a Ray cluster.

Finds out whether a cluster requires one and keeps this process's setting in line with it.

Ray reads `RAY_AUTH_MODE` once. Starting a cluster of its own switches a process to tokens permanently, in its
environment and in Ray's own memory. If that process then joins a cluster without tokens, the cluster removes every
actor of the process before it runs: the cluster's calls carry no token, and the process demands one. Also, `ray start`
requires a token as soon as the machine has one, and does not tell those who join by address.
"""

from __future__ import annotations

import os

from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError, RayError

from trinity.runtime import cluster

MODE = "RAY_AUTH_MODE"
DISABLED = "disabled"


class TokenMode:
    """Whether this process uses a token.

    The user's setting decides; without one, the cluster's.
    """

    def __init__(self) -> None:
        self._is_followed = False
        self._asked: str | None = None

    def follow(self, address: str | None) -> None:
        """Adopt the token mode of the cluster at `address`.

        A mode that the user set is kept and only checked against the cluster. With None, Ray starts a cluster by its
        own rules.

        Raises:
            EnvironmentProblem: the cluster asks for another token, or the user asks for one and it for none (E3402).
            ConnectionError: what answers there is no head.
        """
        if not self._is_followed:
            self._asked, self._is_followed = os.environ.get(MODE), True
        self._set(self._asked)
        if address is None:
            return
        try:
            wants_token = self._is_refused(address, DISABLED)
            is_refused = wants_token and self._is_refused(address, "token")
        except RayError as error:  # `ray.init` would try this twenty times
            raise ConnectionError(str(error)) from error
        uses_token = wants_token if self._asked is None else self._asked.lower() != DISABLED
        self._set("token" if self._asked is None and wants_token else self._asked)
        if uses_token and not wants_token:
            raise cluster.mismatch(f"it asks for no token, and {MODE} is {self._asked!r} here")
        if wants_token and not uses_token:
            raise cluster.mismatch(f"it asks for a token, and {MODE} is {self._asked!r} here")
        if is_refused:
            raise cluster.mismatch("the token is missing here, or is another one")

    def restore(self) -> None:
        """Forget what was taken from a cluster."""
        if self._is_followed:
            self._is_followed = False
            self._set(self._asked)

    def _is_refused(self, address: str, mode: str) -> bool:
        self._set(mode)
        try:
            GcsClient(address=address)
        except AuthenticationError:
            return True
        return False

    def _set(self, mode: str | None) -> None:
        os.environ.pop(MODE, None)
        if mode is not None:
            os.environ[MODE] = mode
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
