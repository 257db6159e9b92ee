"""Mode serve: engines that answer programs outside of the run."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.config.model import NO_KEY
from trinity.common.errors import EnvironmentProblem
from trinity.launch.explorer_side import ExplorerSide
from trinity.launch.side import ServedAt, folder_synchronizer, logger, open_monitor
from trinity.utils.disk import write_atomically
from trinity.utils.log import add_secret
from trinity.utils.ports import taken

if TYPE_CHECKING:
    from trinity.explorer.api.endpoint import Endpoint
    from trinity.explorer.proxy.service import ProxyService
    from trinity.explorer.summary import ExploreSummary
    from trinity.synchronizer.base import Synchronizer

ADDRESS_FILE = "_server_url.txt"  # of a job, after the name of the explorer


class ServeSide(ExplorerSide):
    """Engines of one stage, and the service before them.

    They are started as those of an explorer, whose place in the job it has.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service: ProxyService | None = None
        self._endpoint: Endpoint | None = None
        self._served: ServedAt | None = None
        self._serving: asyncio.Task[None] | None = None

    @classmethod
    def load(cls) -> None:
        """Import what preparation needs."""
        import trinity.buffer.buffer
        import trinity.engine.create
        import trinity.explorer.proxy.service  # noqa: F401

    @property
    def service(self) -> ProxyService:
        """What answers; there after `prepare`."""
        assert self._service is not None, "prepare() comes first"
        return self._service

    async def prepare(
        self,
        synchronizer: Synchronizer | None = None,
        *,
        resume: Path | None = None,
        explore_steps: int | None = None,
    ) -> int | None:
        """Load the engines and begin to answer; return None.

        There is no last step.

        Raises:
            EnvironmentProblem: `listen_address` and `proxy_port` cannot be listened at (E3435).
            TrinityError: a model, the record or the store cannot be used.
        """
        from trinity.explorer.proxy.service import ProxyService

        config, store = self.config, await self._opened_store()
        engine = self._made_engines()
        self._monitor = open_monitor(config, config.explorer.name, self._on_metrics)
        written = config.explorer.rollout_model.api_key.strip()
        is_given = written not in ("", NO_KEY)  # the variable that it is read from may be empty
        token = written if is_given else secrets.token_urlsafe(24)
        add_secret(token)
        self._service = ProxyService(
            config,
            engine=engine,
            auxiliary_models=self._engines[1:],
            store=store,
            synchronizer=synchronizer or folder_synchronizer(config, store),
            monitor=self._monitor,
            token=token,
        )
        await self._prepare_engines()
        await self._service.prepare()
        address = await self._listening(self._service)
        self._served = ServedAt(address, None if is_given else token)
        file = Path(config.checkpoint_job_dir) / f"{config.explorer.name}{ADDRESS_FILE}"
        write_atomically(file, f"{address}\n")
        logger.info("mode serve is ready at %s (the address is in %s, too)", address, file)
        return None

    async def _listening(self, service: ProxyService) -> str:
        """Let the endpoint listen; return its address."""
        from trinity.explorer.api.endpoint import Endpoint
        from trinity.explorer.api.limits import EndpointLimits
        from trinity.explorer.proxy.routes import proxy_routes

        explorer = self.config.explorer
        self._endpoint = Endpoint(
            host=explorer.listen_address,
            port=explorer.proxy_port,
            limits=EndpointLimits.of(self.config),
            extend=proxy_routes(service, asyncio.get_running_loop()),
            model_of=service.models.model_of,
            problem=service.health.problem,
        )
        endpoint = self._endpoint
        try:
            return await asyncio.to_thread(lambda: endpoint.address)
        except OSError as error:
            raise EnvironmentProblem(
                f"explorer.listen_address {explorer.listen_address} with explorer.proxy_port {explorer.proxy_port} "
                f"cannot be listened at: {taken(explorer.proxy_port, error)}; write another proxy_port, or 0 for "
                "a free one",
                code="E3435",
            ) from error

    async def served(self) -> ServedAt | None:
        """Return where callers are answered."""
        return self._served

    async def run(self) -> ExploreSummary:
        """Answer until `request_stop`; return what was committed.

        Raises:
            EnginesLostError: too few engines answer for too long.
        """
        service = self.service
        serving = self._serving = asyncio.create_task(service.serve(), name=self.config.explorer.name)
        if self._is_stopped:
            serving.cancel()
        try:
            await asyncio.wait((serving,))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await self._stop_listening()
        if not serving.cancelled():
            serving.result()
        await service.finish()
        return service.summary

    async def request_stop(self) -> None:
        """Answer nobody any more; what was recorded stays."""
        self._is_stopped = True
        if self._serving is not None:
            self._serving.cancel()

    async def close(self) -> None:
        """Close endpoint, service, engines and an own store, whatever fails.

        Raises:
            Exception: the first failure to close.
        """
        service = [] if self._service is None else [self._service.close]
        await self._close((self._stop_listening, *service, *(engine.shutdown for engine in self._engines)))

    async def _stop_listening(self) -> None:
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)
