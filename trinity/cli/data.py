"""`trinity data`: what the data of a configuration holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, StageName, chosen_file, ended_with

if TYPE_CHECKING:
    from trinity.launch.trial.dataset_preview import DatasetPreview
    from trinity.launch.trial.preview import TasksetPreview

data_app = typer.Typer(help="Inspect the data of a configuration.", no_args_is_help=True)
BAR, MOST_BAD = 40, 5


@data_app.callback()
def data() -> None:
    """Inspect the data of a configuration."""


@data_app.command()
def preview(
    file: File = None,
    config: ConfigFile = None,
    number: Annotated[int, typer.Option("-n", min=0, help="How many rows of each dataset to show.")] = 2,
    measured: Annotated[
        int | None,
        typer.Option(
            "--measured",
            min=1,
            help="Most rows of a training file whose tokens are counted; default: 2000 (1000 pairs), fewer if long.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    stage: StageName = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Show rendered rows, lengths, bad rows and duplicates.

    It covers every stage, writes nothing and loads no model.
    """
    path = chosen_file(file, config)
    with ended_with():
        from trinity.launch.trial.overlaps import note_shared
        from trinity.launch.trial.preview import TasksetPreview, previewed
        from trinity.launch.trial.stage import TrialOptions, data_stages, has_tasks
        from trinity.preflight.data import training_datasets

        options = TrialOptions(tuple(set_ or ()), tuple(plugin_dir or ()), stage)
        found: list[TasksetPreview | DatasetPreview] = []
        for each in data_stages(path, options):
            found += previewed(each, num_shown=number) if has_tasks(each) else []
            if any(training_datasets(each)):  # tasks are not to wait for what reads databases, half a second
                from trinity.launch.trial.dataset_preview import datasets_previewed

                found += datasets_previewed(each, num_shown=number, num_places=MOST_BAD, num_measured=measured)
        evaluated = [each for each in found if isinstance(each, TasksetPreview) and each.is_eval]
        trained = [each for each in found if not any(each is other for other in evaluated)]
        for taskset in evaluated:
            note_shared(taskset, trained)  # of any stage
        if as_json:
            typer.echo(json.dumps([each.facts() for each in found], indent=2, ensure_ascii=True))
            return
        for preview in found:
            for line in _lines(preview):
                typer.echo(line)


def _lines(found: TasksetPreview | DatasetPreview) -> Iterator[str]:
    from trinity.launch.trial.preview import TasksetPreview

    if isinstance(found, TasksetPreview):
        yield from _head(found, f"taskset {found.name!r}, {'evaluated' if found.is_eval else 'trained on'}")
        yield from _taskset_lines(found)
    else:
        yield from _head(found, f"dataset {found.name!r}, {found.schema}")
        yield from _dataset_lines(found)
    yield ""


def _head(found: TasksetPreview | DatasetPreview, title: str) -> Iterator[str]:
    yield f"{title}: {found.num_rows} usable rows, {len(found.bad)} are left out"
    for row in found.bad[:MOST_BAD]:
        yield f"  {row}"
    if len(found.bad) > MOST_BAD:
        yield f"  and {len(found.bad) - MOST_BAD} more"
    for finding in found.findings():
        yield f"[{finding.code}] {finding.message}"


def _taskset_lines(found: TasksetPreview) -> Iterator[str]:
    from trinity.cli.rollouts import indented

    if not found.is_rendered:
        yield "the workflow makes its own prompts; the lengths are those of the prompt column"
    yield from _length_lines("prompts", found.lengths)
    if found.num_images:
        counted = "their tokens" if found.counts_images else "each as its placeholder in the text"
        yield f"{found.num_images} images; the lengths count {counted}"
    if found.num_long and found.limit is not None:
        limit, key, what = found.limit
        yield f"{found.num_long} prompts have more than {limit} tokens ({key}): they are {what}"
    for text in found.prompts:
        yield "prompt"
        yield indented(text)


def _dataset_lines(found: DatasetPreview) -> Iterator[str]:
    from trinity.cli.rollouts import indented

    if found.num_measured < found.num_rows:
        yield f"tokens of {found.num_measured} of them, evenly spaced, are counted (--measured)"
    for name, lengths in found.lengths.items():
        yield from _length_lines(name, lengths)
    if found.num_images:
        yield f"{found.num_images} rows have images"
    if found.num_cut:
        yield f"{found.num_cut} rows are cut to {found.limit} tokens (model.max_model_len)"
    if found.num_dropped:
        yield f"{found.num_dropped} rows have more than {found.limit} tokens (model.max_model_len): they are left out"
    yield from (f"  {place}" for place in found.long)
    for number, row in enumerate(found.rows, 1):
        yield f"row {number} that is trained on"
        for part in row:
            yield f"{part.name}{' (trained)' if part.is_trained else ''}"
            yield indented(part.text)


def _length_lines(what: str, lengths: Sequence[int]) -> Iterator[str]:
    from trinity.launch.trial.token_counts import length_ranges

    if not lengths:
        return
    ordered = sorted(lengths)
    middle, high = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    yield f"{what}: {ordered[0]} to {ordered[-1]} tokens, median {middle}, 99th percentile {high}"
    ranges = length_ranges(lengths)
    most = max(number for _, _, number in ranges)
    for first, last, number in ranges:
        yield f"  {first:>7} to {last:>7}  {number:>8}  {'#' * -(-BAR * number // most)}"
