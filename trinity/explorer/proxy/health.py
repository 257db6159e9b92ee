"""Whether enough engines answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trinity.common.errors import EngineError, EnginesLostError, TrinityError
from trinity.utils.deadline import bounded
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel

logger = get_logger("explorer")

SERVING = "engines_serving"  # of a router's totals


class EngineHealth:
    """Counts the engines that answer, and ends the run without enough of them.

    Args:
        config: of the run.
        engine: one engine, or several as one.

    Attributes:
        serving: engines that answered at the last check.
        needed: `explorer.min_running_model_num`.
    """

    def __init__(self, config: Config, engine: InferenceModel) -> None:
        explorer = config.explorer
        self.serving = explorer.rollout_model.engine_num
        self.needed = explorer.min_running_model_num
        self.interval_s = explorer.service_status_check_interval
        self._engine = engine
        self._timeout_s = explorer.engine_probe_timeout
        self._recovery_s = explorer.engine_recovery_timeout
        self._few_since: float | None = None

    def problem(self) -> str | None:
        """Return why no call can be answered now; None if calls can be."""
        if self.serving >= self.needed:
            return None
        return (
            f"{self.serving} engines answer, and explorer.min_running_model_num is {self.needed}: if there are not "
            f"enough for {self._recovery_s:g} s (explorer.engine_recovery_timeout), the run ends; ask again later"
        )

    def refuse(self) -> None:
        """Raise if no call can be answered now.

        Raises:
            EngineError: fewer engines answer than are needed (E5637).
        """
        problem = self.problem()
        if problem is not None:
            raise EngineError(problem, code="E5637")

    async def check(self) -> None:
        """Count the engines that answer.

        Raises:
            EnginesLostError: for `explorer.engine_recovery_timeout` there were too few (E5638).
        """
        try:
            stats = await bounded(
                self._engine.stats(), self._timeout_s, what="the engines", setting="explorer.engine_probe_timeout"
            )
            self.serving = int(stats.get(SERVING, 1))
        except TrinityError as error:
            logger.warning("the engines did not answer a check: %s", error)
            self.serving = 0
        if self.serving >= self.needed:
            if self._few_since is not None:
                logger.info("%d engines answer again", self.serving)
            self._few_since = None
            return
        now = time.monotonic()
        if self._few_since is None:
            self._few_since = now
            logger.warning("%s", self.problem())
        if now - self._few_since >= self._recovery_s:
            raise EnginesLostError(
                f"for {self._recovery_s:g} s (explorer.engine_recovery_timeout) fewer engines answered, now "
                f"{self.serving}, than explorer.min_running_model_num, {self.needed}; see the log for why they ended, "
                "correct it, and run the same command again: what was recorded is there",
                code="E5638",
            )
