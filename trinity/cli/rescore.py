"""`trinity rescore`: stored rollouts with another reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.completion import reward_names
from trinity.cli.options import Job, Overrides, PluginDirs, ended_with

if TYPE_CHECKING:
    from trinity.launch.reuse.rescoring import Rescored

NUM_BINS, BAR = 10, 30


def rescore(
    job: Job,
    output: Annotated[str, typer.Option("--output", "-o", help="New database: path of an SQLite file, or a URL.")],
    reward: Annotated[
        str | None,
        typer.Option("--reward", help="Reward function; default: that of the run.", autocompletion=reward_names),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", help="PROJECT/NAME of the run that will train on them; default: those of JOB, with -rescored."
        ),
    ] = None,
    set_: Overrides = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Database URL; needed if config.yaml hides its password.")
    ] = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Score stored rollouts again and store them for another run to train on.

    The run itself is not changed. Relative paths are those of the run: call it in the same folder.
    """
    with ended_with():
        from trinity.launch.reuse.past_run import PastRun
        from trinity.launch.reuse.rescoring import rescored

        place = output if "://" in output else f"sqlite:///{Path(output).resolve()}"
        run = PastRun.of(job, url=url, plugin_dirs=tuple(plugin_dir or ()))
        found = rescored(run, place, reward=reward, name=for_, overrides=tuple(set_ or ()))
        for line in _lines(found, place):
            typer.echo(line)


def _lines(found: Rescored, place: str) -> Iterator[str]:
    yield f"{len(found.rewards)} rollouts, for the run {found.run}"
    yield from (f"{number} could not be scored ({code})" for code, number in found.unscored.items())
    yield from (f"{number} never were in the store ({fate})" for fate, number in found.unstored.items())
    if found.gone:
        yield f"{found.gone} have no payload any more (buffer.keep_payloads)"
    yield from (f"{number} are left out by the operator {name}" for name, number in found.filtered.items() if number)
    if found.left_out:
        yield f"{found.left_out} are left out: the advantage function drops them"
    old = [before for before, _ in found.rewards if before is not None]
    new = [after for _, after in found.rewards]
    changed = sum(before != after for before, after in found.rewards)
    yield f"the reward of {changed} changed"
    yield from _distributions(old, new)
    both = [sum(each[side] for each in found.groups) for side in (0, 1)]
    yield f"tasks whose rewards differ: {both[0]} before, {both[1]} now, of {len(found.groups)}"
    project, _, name = found.run.partition("/")
    yield ""
    yield "train on them with"
    yield f"  mode: train, project: {project}, name: {name}"
    yield f"  buffer.trainer_input.experience_buffer: {{storage_type: sql, path: '{place}'}}"


def _distributions(old: Sequence[float], new: Sequence[float]) -> Iterator[str]:
    yield f"{'':8}{'mean':>12}{'std':>12}{'least':>12}{'most':>12}"
    for name, values in (("before", old), ("now", new)):
        if values:
            mean = sum(values) / len(values)
            std = (sum((each - mean) ** 2 for each in values) / len(values)) ** 0.5
            yield f"{name:8}{mean:>12.5g}{std:>12.5g}{min(values):>12.5g}{max(values):>12.5g}"
    low, high = min(*old, *new) if old else min(new), max(*old, *new) if old else max(new)
    width = (high - low) / NUM_BINS or 1.0
    counts = [[0] * NUM_BINS for _ in range(2)]
    for side, values in enumerate((old, new)):
        for value in values:
            counts[side][min(int((value - low) / width), NUM_BINS - 1)] += 1
    most = max(map(max, counts)) or 1
    for place in range(NUM_BINS):
        if counts[0][place] or counts[1][place]:
            bars = [
                f"{number:>7} {'#' * -(-BAR * number // most):{BAR}}" for number in (counts[0][place], counts[1][place])
            ]
            yield f"from {low + place * width:>10.4g}  before {bars[0]}  now {bars[1]}".rstrip()
