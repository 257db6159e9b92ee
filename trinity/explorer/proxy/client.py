"""`TrinityClient`: what a program outside of the run needs of mode serve.

It imports neither torch nor anything else of the framework but its errors.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from trinity.common.errors import DeadlineError, EngineError

if TYPE_CHECKING:
    import openai

API_KEY_ENV_VAR = "TRINITY_API_KEY"
NO_KEY = "EMPTY"
TASK_HEADER = "X-Trinity-Task-Id"
RUN_HEADER = "X-Trinity-Run-Id"
ALIVE_TIMEOUT_S = 2.0
POLL_S = 0.2


class ServeError(EngineError):
    """The service has refused a request, or does not answer.

    Args:
        message: what it said.
        status: of the HTTP answer; None without one.
    """

    default_code = "E5642"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TrinityClient:
    """OpenAI clients, and the rewards for the responses they received.

    Every method that asks has a form with `_async`. The calls of its OpenAI clients belong to its task and run: those
    of one run that continue each other are one experience, and the rollouts of one task are a group.

    Args:
        proxy_url: `http://host:port` of the service.
        api_key: token of the service; default: the environment variable `TRINITY_API_KEY`.
        task_id: name of the task; default: a random one.
        run_id: number of the rollout of the task, from 0.

    Attributes:
        task_id: as given or made.
        run_id: as given.
    """

    def __init__(
        self, proxy_url: str, api_key: str | None = None, *, task_id: str | None = None, run_id: int = 0
    ) -> None:
        self.proxy_url = proxy_url.rstrip("/").removesuffix("/v1")
        self.openai_base_url = f"{self.proxy_url}/v1"
        self.feedback_url = f"{self.proxy_url}/feedback"
        self.task_id = task_id or uuid.uuid4().hex
        self.run_id = run_id
        self._key = api_key or os.environ.get(API_KEY_ENV_VAR) or NO_KEY
        # Plain HTTP needs no certificates, whose loading takes longer than most requests.
        self._transport: dict[str, Any] = {"trust_env": False, "verify": not self.proxy_url.startswith("http://")}

    # ------------------------------------------------------------------ health
    def alive(self) -> bool:
        """Return whether the service answers and has enough engines."""
        try:
            answer = httpx.get(f"{self.proxy_url}/health", timeout=ALIVE_TIMEOUT_S, **self._transport)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    async def alive_async(self) -> bool:
        """Return whether the service answers and has enough engines."""
        return await asyncio.to_thread(self.alive)

    def wait_until_alive(self, timeout_s: float = 60.0) -> None:
        """Return once the service answers.

        Raises:
            DeadlineError: it does not within `timeout_s` (E5305).
        """
        end = time.monotonic() + timeout_s
        while not self.alive():
            self._still(end, timeout_s)
            time.sleep(POLL_S)

    async def wait_until_alive_async(self, timeout_s: float = 60.0) -> None:
        """Return once the service answers; raises as `wait_until_alive`."""
        end = time.monotonic() + timeout_s
        while not await self.alive_async():
            self._still(end, timeout_s)
            await asyncio.sleep(POLL_S)

    def _still(self, end: float, timeout_s: float) -> None:
        if time.monotonic() >= end:
            raise DeadlineError(
                f"no healthy service at {self.proxy_url} within {timeout_s:g} s; look at the log of `trinity run` with "
                "mode serve, or give timeout_s",
                code="E5305",
            )

    # ----------------------------------------------------------------- clients
    def get_openai_client(self) -> openai.OpenAI:
        """Return an `openai.OpenAI` whose calls belong to this task and run."""
        import openai

        return openai.OpenAI(
            base_url=self.openai_base_url,
            api_key=self._key,
            default_headers=self._headers(),
            http_client=openai.DefaultHttpxClient(**self._transport),
        )

    def get_openai_async_client(self) -> openai.AsyncOpenAI:
        """Return an `openai.AsyncOpenAI`; see `get_openai_client`."""
        import openai

        return openai.AsyncOpenAI(
            base_url=self.openai_base_url,
            api_key=self._key,
            default_headers=self._headers(),
            http_client=openai.DefaultAsyncHttpxClient(**self._transport),
        )

    def _headers(self) -> dict[str, str]:
        return {TASK_HEADER: self.task_id, RUN_HEADER: str(self.run_id)}

    # ----------------------------------------------------------------- requests
    def models(self, timeout: float = 10) -> list[str]:
        """Return the names of the models."""
        return _names(self._asked("GET", "/v1/models", timeout))

    async def models_async(self, timeout: float = 10) -> list[str]:
        """Return the names of the models."""
        return _names(await self._asked_async("GET", "/v1/models", timeout))

    def feedback(self, reward: float, msg_ids: Sequence[str] | None = None, timeout: float = 10) -> dict[str, Any]:
        """Give answers a reward; without ids, all of this task and run.

        It may be sent again, also with another reward until the responses are committed.

        Args:
            reward: a finite number.
            msg_ids: `id` of answers; `<id>#<number>` is one choice of several.
            timeout: longest wait in seconds.

        Returns:
            How many choices have another reward now (`updated`) and how many had this one (`unchanged`).

        Raises:
            ServeError: a rollout without calls here, or a response of another one (403), another reward than a
                committed one (409), an unknown id or no finite number (422).
        """
        return self._asked("POST", "/feedback", timeout, self._reward(reward, msg_ids))

    async def feedback_async(
        self, reward: float, msg_ids: Sequence[str] | None = None, timeout: float = 10
    ) -> dict[str, Any]:
        """Give answers a reward; see `feedback`."""
        return await self._asked_async("POST", "/feedback", timeout, self._reward(reward, msg_ids))

    def commit(self, timeout: float = 60) -> dict[str, Any]:
        """Move what is rewarded into the experience store, for the trainer.

        It may be sent again: nothing is committed twice.

        Returns:
            The explore `step`, the `answers` and `experiences` of this commit, and the answers that have no reward
            (`waiting`) and stay recorded.

        Raises:
            ServeError: it could not be done; with status 503 it may be later.
        """
        return self._asked("POST", "/commit", timeout)

    async def commit_async(self, timeout: float = 60) -> dict[str, Any]:
        """Move what is rewarded into the experience store; see `commit`."""
        return await self._asked_async("POST", "/commit", timeout)

    def get_metrics(self, timeout: float = 5) -> dict[str, Any]:
        """Return how the service is: version of the weights, counts."""
        return self._asked("GET", "/status", timeout)

    async def get_metrics_async(self, timeout: float = 5) -> dict[str, Any]:
        """Return how the service is; see `get_metrics`."""
        return await self._asked_async("GET", "/status", timeout)

    def _reward(self, reward: float, msg_ids: Sequence[str] | None) -> dict[str, Any]:
        if not math.isfinite(reward):
            raise ServeError(f"a reward must be a finite number, got {reward}", status=httpx.codes.UNPROCESSABLE_ENTITY)
        found: dict[str, Any] = {"reward": reward, "task_id": self.task_id, "run_id": self.run_id}
        return found if msg_ids is None else {**found, "msg_ids": list(msg_ids)}

    def _asked(self, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with httpx.Client(headers=self._authorization(), timeout=timeout_s, **self._transport) as client:
            try:
                return _answer(client.request(method, self.proxy_url + path, json=body))
            except httpx.HTTPError as error:
                raise self._unanswered(error) from error

    async def _asked_async(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        async with httpx.AsyncClient(headers=self._authorization(), timeout=timeout_s, **self._transport) as client:
            try:
                return _answer(await client.request(method, self.proxy_url + path, json=body))
            except httpx.HTTPError as error:
                raise self._unanswered(error) from error

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"}

    def _unanswered(self, error: httpx.HTTPError) -> ServeError:
        return ServeError(f"{self.proxy_url} does not answer: {type(error).__name__}: {error}; is mode serve running?")


def _answer(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError:
        said = {}
    if answer.status_code != httpx.codes.OK or not isinstance(said, dict):
        error = said.get("error") if isinstance(said, dict) else None
        text = error.get("message") if isinstance(error, dict) else answer.text[:500]
        raise ServeError(f"{answer.request.url} answered {answer.status_code}: {text}", status=answer.status_code)
    return said


def _names(said: Mapping[str, Any]) -> list[str]:
    return [str(entry["id"]) for entry in said.get("data", ())]
