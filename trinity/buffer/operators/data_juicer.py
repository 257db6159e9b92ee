"""Operators of Data-Juicer as a step of the experience pipeline."""

from __future__ import annotations

import asyncio
import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS
from trinity.common.config.sections import DataJuicerServiceConfig
from trinity.common.errors import WorkflowError
from trinity.common.experience import Experience
from trinity.service.data_juicer.client import DataJuicerClient, ProcessedRows
from trinity.service.data_juicer.models import with_models
from trinity.service.data_juicer.recipe import read_recipe
from trinity.utils.log import get_logger

logger = get_logger("buffer")

KEY = "data_processor.experience_pipeline.operators.data_juicer.args"
TEXT_KEY = "response"


@EXPERIENCE_OPERATORS.register_module("data_juicer")
class DataJuicer(ExperienceOperatorV1):
    """Scores and filters experiences with operators of Data-Juicer.

    Operators see the columns `prompt`, `response`, `reward` and the metrics; an operator that names no column reads
    `response`. Their statistics, such as `llm_quality_score`, are added to `Experience.info`, where
    `reward_shaping_mapper` finds them.

    Args:
        config_path: a recipe of Data-Juicer, of which `process`, `np` and `text_keys` are read.
        operators: `{name: arguments}` or `{name: ..., args: ...}`, in place of a recipe.
        np: processes that share the rows, >= 1.

    Raises:
        ConfigError: neither a recipe nor operators (E1930), or they cannot be read (E1931, E1932).
    """

    drops_experiences = True

    def __init__(
        self, config_path: str | None = None, operators: Sequence[dict[str, Any]] | None = None, np: int = 4
    ) -> None:
        self.recipe = read_recipe(
            key=KEY, config_path=config_path, operators=operators or (), num_process=np, text_key=TEXT_KEY
        )
        self._client: DataJuicerClient | None = None
        self.use_service(DataJuicerServiceConfig(auto_start=True))

    def use_service(self, config: DataJuicerServiceConfig, *, log: Path | None = None, seed: int | None = None) -> None:
        """Set the server to use; called before `prepare`.

        Args:
            config: settings of the server.
            log: file for the output of a server that is started here.
            seed: seed of operators that draw random numbers.
        """
        self._config, self._log, self._seed = config, log, seed

    async def prepare(self) -> None:
        """Start or find the server, which checks the operators.

        Raises:
            ConfigError: an operator or a model is not known, or an operator runs only if `allowed_operators` names it.
            EnvironmentProblem: there is no server.
        """
        recipe = with_models(self.recipe, self.auxiliary_models, timeout_s=self._config.timeout)
        client = self._client = DataJuicerClient(self._config, log=self._log)
        await asyncio.to_thread(client.initialize, recipe, pipeline="experience", seed=self._seed)

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Return the experiences that the operators keep, with their statistics.

        The metrics are `filtered_count`, that of each operator as `<operator>/filtered_count`, `failed_calls` of
        models, `unread_answers` of models (which could not be parsed), and the mean of each statistic as
        `<statistic>/mean`.

        Raises:
            ServiceError: the server failed.
            WorkflowError: an operator changed what was sampled, or made several rows of one experience (E5806).
        """
        if not exps:
            return exps, {}
        assert self._client is not None, "prepare() comes first"
        done = await asyncio.to_thread(self._client.process_experience, [_row(exp) for exp in exps])
        kept = [_with_stats(exps[each.row], each.stats, each.values) for each in done.rows]
        if len({each.row for each in done.rows}) < len(kept):
            raise WorkflowError("an operator of Data-Juicer made several rows of one experience", code="E5806")
        return kept, _metrics(len(exps) - len(kept), done)

    async def close(self) -> None:
        """End the server, if it was started here."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


def _row(exp: Experience) -> dict[str, Any]:
    own = {name: value for name, value in exp.metrics.items() if isinstance(value, int | float)}
    return {**own, "prompt": exp.prompt_text or "", "response": exp.response_text or "", "reward": exp.reward}


def _with_stats(exp: Experience, stats: dict[str, Any], values: dict[str, Any]) -> Experience:
    changed = sorted(values.keys() & _row(exp).keys())
    if changed:
        raise WorkflowError(
            f"an operator of Data-Juicer changed {', '.join(changed)} of an experience: what was sampled stays as it "
            "is; use operators that filter or score, and reward_shaping_mapper for the reward",
            code="E5806",
        )
    exp.info.update(values | stats)
    return exp


def _metrics(dropped: int, done: ProcessedRows) -> dict[str, Any]:
    found: dict[str, Any] = {"filtered_count": dropped}
    for told in done.operators:
        name = f"{told['name']}/filtered_count"
        found[name] = found.get(name, 0) + told["rows_in"] - told["rows_out"]
    found["failed_calls"] = sum(told.get("failed_calls", 0) for told in done.operators)
    found["unread_answers"] = sum(told.get("unread", 0) for told in done.operators)
    if found["failed_calls"] or found["unread_answers"]:
        logger.warning(
            "Data-Juicer: %d calls of a model failed, and the responses about %d experiences could not be read: these "
            "have no score",
            found["failed_calls"],
            found["unread_answers"],
        )
    values: dict[str, list[float]] = {}
    for row in done.rows:
        for name, value in row.stats.items():
            if isinstance(value, numbers.Real):
                values.setdefault(name, []).append(float(value))
    return found | {f"{name}/mean": sum(own) / len(own) for name, own in values.items()}
