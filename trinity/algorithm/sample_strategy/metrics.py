"""Metrics of a sampled batch, and rows of it to look at."""

from __future__ import annotations

from typing import Any

from trinity.common.experience import Experience

NUM_SHOWN = 3


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
    """Return prompt, response and reward of `exps` for a table of examples."""
    return [
        {"id": exp.eid.uid, "prompt": exp.prompt_text, "response": exp.response_text, "reward": exp.reward}
        for exp in exps
    ]
