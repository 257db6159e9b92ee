"""What sample strategies share: reading, metrics, rows to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.buffer.store.types import num_rollouts
from trinity.common.errors import StarvedError
from trinity.common.experience import Experience

NUM_SHOWN = 3
STALE = "stale"


def version_metrics(exps: list[Experience], step: int) -> dict[str, float]:
    """Return metrics of model versions, staleness, tasks and rollouts.

    They are `sample/model_version/...`, `sample/staleness/...` (training steps) and the numbers of tasks and rollouts.
    Training step s changes the weights of version s - 1, so that staleness is s - 1 - version. The published
    `sample/model_version_drift/...` is s - version, one more.
    """
    if not exps:
        return {}
    metrics = {"sample/task_count": float(len({exp.eid.tid for exp in exps}))}
    metrics["sample/rollout_count"] = float(len({exp.eid.rid for exp in exps}))
    versions = [float(exp.info["model_version"]) for exp in exps if exp.info.get("model_version") is not None]
    if not versions:
        return metrics
    metrics["sample/mixed_version_count"] = float(sum("model_versions" in exp.info for exp in exps))
    series = {
        "model_version": versions,
        "model_version_drift": [step - version for version in versions],
        "staleness": [step - 1 - version for version in versions],
    }
    for name, values in series.items():
        metrics[f"sample/{name}/mean"] = sum(values) / len(values)
        metrics[f"sample/{name}/max"] = max(values)
        metrics[f"sample/{name}/min"] = min(values)
    return metrics


def shown_rows(exps: list[Experience]) -> list[dict[str, Any]]:
    """Return `exps` as rows of a table of examples.

    The advantage is the mean over the response; None where the trainer computes it from the whole batch.
    """
    return [
        {
            "id": exp.eid.uid,
            "prompt": exp.prompt_text,
            "response": exp.response_text,
            "reward": exp.reward,
            "advantage": None if exp.advantages is None else float(exp.advantages.float().mean()),
            "model_version": exp.info.get("model_version"),
        }
        for exp in exps
    ]


def representative_sample(experiences: Sequence[Experience]) -> list[dict[str, Any]]:
    """Return the rows of the lowest and the highest reward.

    Where there is no reward, the first row is returned.
    """
    scored = [exp for exp in experiences if exp.reward is not None]
    if not scored:
        return shown_rows(list(experiences[:1]))
    return shown_rows([min(scored, key=_reward), max(scored, key=_reward)])


def _reward(exp: Experience) -> float:
    return float(exp.reward or 0.0)


async def read_recent(
    source: ExperienceSource, num: int, *, trained_version: int, oldest: float
) -> tuple[list[Experience], int]:
    """Return the next rollouts that are not too old, and a count.

    The count is that of the experiences that were dropped because they are too old.

    An experience whose `model_version` is below `oldest` is dropped, and with it the others of its rollout: recorded
    as such in the buffer, and not read again. Reading continues until there are `num` rollouts, or no more can come
    before newer weights. An experience without a version is kept.

    Args:
        source: what is read.
        num: rollouts that are wanted.
        trained_version: version of the weights that the trainer has.
        oldest: lowest version that is kept.

    Raises:
        StarvedError: nothing came before the deadline.
    """
    kept: list[Experience] = []
    num_stale = 0
    while num_rollouts(kept) < num:
        asked = num - num_rollouts(kept)
        try:
            exps = await source.read(asked, trained_version=trained_version)
        except StarvedError:
            if not kept:
                raise
            break  # as at the deadline of any read, the incomplete batch is trained
        versions = [(exp.eid.rid, exp.info.get("model_version")) for exp in exps]
        old = {rollout for rollout, version in versions if version is not None and version < oldest}
        stale = [exp.eid.uid for exp in exps if exp.eid.rid in old]
        if stale:
            await source.drop(stale, reason=STALE)
        num_stale += len(stale)
        kept += [exp for exp in exps if exp.eid.rid not in old]
        if num_rollouts(exps) < asked:
            break
    return kept, num_stale
