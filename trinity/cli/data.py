"""`trinity data`: what the data of a configuration holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, StageName, chosen_file, ended_with

if TYPE_CHECKING:
    from trinity.launch.trial.preview import TasksetPreview

data_app = typer.Typer(help="Look at the data of a configuration.", no_args_is_help=True)
BAR, MOST_BAD = 40, 5


@data_app.callback()
def data() -> None:
    """Look at the data of a configuration."""


@data_app.command()
def preview(
    file: File = None,
    config: ConfigFile = None,
    number: Annotated[int, typer.Option("-n", min=0, help="Rendered prompts of each taskset.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    stage: StageName = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Show rendered prompts, their lengths, bad rows, and duplicates.

    Nothing is written, and no model is loaded.
    """
    path = chosen_file(file, config)
    with ended_with():
        from trinity.launch.trial.preview import previewed
        from trinity.launch.trial.stage import TrialOptions, trial_stage

        options = TrialOptions(tuple(set_ or ()), tuple(plugin_dir or ()), stage)
        found = previewed(trial_stage(path, options), num_shown=number)
        if as_json:
            typer.echo(json.dumps([each.facts() for each in found], indent=2, ensure_ascii=True))
            return
        for each in found:
            for line in _lines(each):
                typer.echo(line)


def _lines(found: TasksetPreview) -> Iterator[str]:
    from trinity.cli.rollouts import indented

    kind = "evaluated" if found.is_eval else "trained on"
    yield f"taskset {found.name!r}, {kind}: {found.num_rows} usable rows, {len(found.bad)} are left out"
    for row in found.bad[:MOST_BAD]:
        yield f"  {row}"
    if len(found.bad) > MOST_BAD:
        yield f"  and {len(found.bad) - MOST_BAD} more"
    for finding in found.findings():
        yield f"[{finding.code}] {finding.message}"
    if not found.is_rendered:
        yield "the workflow makes its own prompts; the lengths are those of the prompt column"
    if found.lengths:
        ordered = sorted(found.lengths)
        middle, high = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        yield f"prompts: {ordered[0]} to {ordered[-1]} tokens, median {middle}, 99th percentile {high}"
        most = max(number for _, _, number in found.histogram())
        for first, last, number in found.histogram():
            yield f"  {first:>7} to {last:>7}  {number:>8}  {'#' * -(-BAR * number // most)}"
    if found.num_images:
        yield f"{found.num_images} images; the lengths count each as what stands for it in the text"
    if found.num_long and found.limit is not None:
        limit, key, what = found.limit
        yield f"{found.num_long} prompts have more than {limit} tokens ({key}): they are {what}"
    for text in found.prompts:
        yield "prompt"
        yield indented(text)
    yield ""
