"""A judge inside of the run, for Data-Juicer's filters: it knows their form, and draws its marks by chance."""

from __future__ import annotations

from pathlib import Path

from tests.judge import write_judge


def prepare(folder: Path) -> None:
    """Write the model; it has nothing to imitate."""
    write_judge(folder / "model")
