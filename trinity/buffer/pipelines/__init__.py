"""Pipelines between the explorer and the experience store."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "ExperiencePipeline":
        from trinity.buffer.pipelines import experience_pipeline

        return getattr(experience_pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
