"""`DataJuicerClient`: what a run asks of a Data-Juicer server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from trinity.common.errors import ConfigError, DeadlineError, EnvironmentProblem, ServiceError
from trinity.service.data_juicer.policy import PROTOCOL, refusal
from trinity.service.data_juicer.process import SERVER, ServerProcess, installed_version
from trinity.service.data_juicer.recipe import Recipe
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config.sections import DataJuicerServiceConfig

logger = get_logger("service")

TOKEN_ENV_VAR = "TRINITY_DATA_JUICER_TOKEN"
HEALTH_S = 5.0
POLL_S = 0.2
GRACE_S = 5.0
ENDED_S = 1.0  # between a connection that breaks off and the end of the process that had it
_CODES = {"refused": "E5801", "unknown_operator": "E5804", "arguments": "E5804", "joins": "E5801", "model": "E5803"}


@dataclass(frozen=True)
class KeptRow:
    """A row that is left.

    Attributes:
        row: its number among those that were sent.
        stats: statistics that operators computed.
        values: columns that are new or changed.
    """

    row: int
    stats: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessedRows:
    """What operators made of rows.

    Attributes:
        rows: what is left, in order.
        operators: of each its name, `rows_in`, `rows_out`, `seconds` and, if it asked a model, the `calls`.
        left_out: columns that no operator saw, because their values have several types.
    """

    rows: list[KeptRow]
    operators: list[dict[str, Any]]
    left_out: list[str]


def found_version(config: DataJuicerServiceConfig) -> str:
    """Return the version of Data-Juicer that a client would ask.

    Nothing is started.

    Raises:
        EnvironmentProblem: there is no Data-Juicer (E3440), or no server answers (E3442).
    """
    if config.auto_start:
        return installed_version(config)
    client = DataJuicerClient(config)
    try:
        return client.connect(wait_s=0.0)
    finally:
        client.close()


class DataJuicerClient:
    """A list of operators at a server, which is started if it has to be.

    Its methods wait; use it from a thread of its own.

    Args:
        config: of the service.
        log: file of what a server that is started writes.
    """

    def __init__(self, config: DataJuicerServiceConfig, *, log: Path | None = None) -> None:
        self.config = config
        self._log = log
        self._server: ServerProcess | None = None
        self._http: httpx.Client | None = None
        self._body: dict[str, Any] = {}
        self._session = ""
        self.version = ""

    def initialize(self, recipe: Recipe, *, pipeline: str, seed: int | None = None) -> None:
        """Start or find the server, and open a list of operators there.

        Raises:
            ConfigError: an operator is not known, or is not run unasked (E5801, E5804).
            EnvironmentProblem: no server can be started or found (E3440 to E3442), or it is of another version
                (E3444).
            DeadlineError: it does not answer in time (E5306).
        """
        for name, args in recipe.operators:
            why = refusal(name, args, allowed=self.config.allowed_operators)
            if why:
                raise ConfigError(why, code="E5801")
        self._body = {
            "pipeline": pipeline,
            "operators": [{name: args} for name, args in recipe.operators],
            "np": recipe.num_process,
            "text_key": recipe.text_key,
            "seed": seed,
            "seeded": sorted(recipe.seeded),
        }
        self.connect()
        self._open()

    def connect(self, *, wait_s: float = HEALTH_S) -> str:
        """Start or find the server; return the version of Data-Juicer.

        Args:
            wait_s: how long a server that is not started here may take to answer.

        Raises:
            EnvironmentProblem: no server can be started or found (E3440 to E3442), or it is of another version
                (E3444).
            DeadlineError: it does not start in time (E5306).
        """
        if self._http is None:
            if self.config.auto_start:
                self._server = ServerProcess(self.config, log=self._log)
                url, token = self._server.url, self._server.token
            else:
                url = str(self.config.server_url).rstrip("/")
                token = self.config.token or os.environ.get(TOKEN_ENV_VAR, "")
            # No proxy of the environment, and no certificates where there is no TLS.
            transport: dict[str, Any] = {"trust_env": False, "verify": not url.startswith("http://")}
            authorization = {"Authorization": f"Bearer {token}"} if token else {}
            self._http = httpx.Client(base_url=url, headers=authorization, timeout=self.config.timeout, **transport)
            self._wait_healthy(url, wait_s if self._server is None else self.config.start_timeout)
        return self.version

    def process_experience(self, rows: Sequence[Mapping[str, Any]]) -> ProcessedRows:
        """Return what the operators make of experiences as rows.

        Raises:
            ServiceError: the server refused, failed or ended (E5800, E5802, E5803).
            DeadlineError: it was not done within `service.data_juicer.timeout` (E5307).
        """
        return self._processed("/process_experience", rows)

    def process_task(self, rows: Sequence[Mapping[str, Any]]) -> ProcessedRows:
        """Return what the operators make of tasks; see `process_experience`."""
        return self._processed("/process_task", rows)

    def close(self) -> None:
        """Close the list of operators, and end a server that was started."""
        try:
            if self._server is None and self._session and self._http is not None:
                self._http.post("/close", json={"session_id": self._session}, timeout=HEALTH_S)
        except httpx.HTTPError as error:
            logger.debug("the Data-Juicer server did not hear the end: %s", error)
        finally:
            self._session = ""
            self._disconnect()

    def _disconnect(self) -> None:
        http, server, self._http, self._server = self._http, self._server, None, None
        if http is not None:
            http.close()
        if server is not None:
            server.close()

    def _wait_healthy(self, url: str, limit_s: float) -> None:
        assert self._http is not None
        end = time.monotonic() + limit_s
        while True:
            try:
                answer = self._http.get("/health", timeout=HEALTH_S)
                said = answer.json() if answer.status_code == httpx.codes.OK else {}
            except (httpx.HTTPError, ValueError) as error:
                said, why = {}, f"{type(error).__name__}: {error}"
            else:
                why = f"status {answer.status_code}"
            if isinstance(said, dict) and said.get("status") == "ok":
                self._check_protocol(said.get("protocol"), url)
                self.version = str(said.get("data_juicer", ""))
                return
            if time.monotonic() > end:
                self._disconnect()
                raise EnvironmentProblem(
                    f"no Data-Juicer server answers at {url} ({why}); start it, or write `service.data_juicer."
                    "auto_start: true`",
                    code="E3442",
                )
            time.sleep(POLL_S)

    def _check_protocol(self, found: Any, url: str) -> None:
        if found != PROTOCOL:
            self._disconnect()
            raise EnvironmentProblem(
                f"the Data-Juicer server at {url} is of another version: its protocol is {found}, that of this program "
                f"{PROTOCOL}; start {SERVER} of this installation, or write `service.data_juicer.auto_start: true`",
                code="E3444",
            )

    def _open(self) -> None:
        self._session = str(self._asked("/create", self._body)["session_id"])

    def _processed(self, path: str, rows: Sequence[Mapping[str, Any]]) -> ProcessedRows:
        def ask() -> dict[str, Any]:
            return self._asked(path, {"session_id": self._session, "rows": list(rows)})

        said = self._again(ask)
        found = [KeptRow(each["row"], each["stats"], each["values"]) for each in said["rows"]]
        return ProcessedRows(found, said["operators"], said["left_out"])

    def _again(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return an answer; ask a server that has ended once more.

        Operators are functions of the rows, so that nothing happens twice.
        """
        try:
            return ask()
        except ServiceError as error:
            if error.code != "E5802":
                raise
            logger.warning("%s; it is asked once more", error.args[0])
            self._disconnect()
            self.connect()
            self._open()
            return ask()

    def _asked(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        assert self._http is not None, "initialize() comes first"
        limit = self.config.timeout
        try:
            content = json.dumps({**body, "timeout_s": limit}, allow_nan=False)
            answer = self._http.post(path, content=content, timeout=limit + GRACE_S)
            said = answer.json()
        except httpx.TimeoutException as error:
            raise self._late(path) from error
        except (httpx.HTTPError, ValueError) as error:
            raise ServiceError(f"{self._ended()}: {type(error).__name__}: {error}", code="E5802") from error
        if answer.status_code == httpx.codes.OK and isinstance(said, dict):
            return said
        told = said.get("error", {}) if isinstance(said, dict) else {}
        kind, text = told.get("type", ""), told.get("message", answer.text[:500])
        if kind == "deadline":
            raise self._late(path)
        message = f"the Data-Juicer server refuses {path} with status {answer.status_code}: {text}"
        if _CODES.get(kind) in ("E5801", "E5804"):
            raise ConfigError(message, code=_CODES[kind])
        if kind == "token":
            raise EnvironmentProblem(f"{message}; set {TOKEN_ENV_VAR} to the token of that server", code="E3443")
        raise ServiceError(message, code="E5802" if kind == "session" else _CODES.get(kind, "E5800"))

    def _late(self, path: str) -> DeadlineError:
        limit = self.config.timeout
        return DeadlineError(
            f"timed out after {limit:g} s waiting for {path} of the Data-Juicer server; raise "
            "service.data_juicer.timeout if this wait may be longer",
            code="E5307",
        )

    def _ended(self) -> str:
        status = None if self._server is None else self._server.status(wait_s=ENDED_S)
        if self._server is None or status is None:
            return "the Data-Juicer server broke off"
        return f"the Data-Juicer server ended with status {status}{self._server.last_words()}"
