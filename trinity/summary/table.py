"""A summary as lines of a terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trinity.summary.facts import CURVE_NAME, OF_EVALUATION, PAGE_NAME, BestStep, Change, JobSummary
from trinity.summary.words import COMMANDS, COUNTED, PARTS, WORDS, reason_of

MOST_METRICS = 8
_WIDTH = 13


def summary_lines(summary: JobSummary) -> list[str]:
    """Return the lines that show a job after a run."""
    head = [f"summary of {shown_path(summary.job)}: {summary.status}"]
    head += [f"training step {summary.training_step}"] if summary.training_step else []
    head += [f"explore step {summary.explore_step}"] if summary.explore_step else []
    head += [f"{summary.seconds:.1f} s"] if summary.seconds else []
    lines = [", ".join(head), *_metric_lines(summary.metrics)]
    for name, texts in _facts(summary):
        for number, text in enumerate(texts):
            lines.append(f"  {'' if number else name:<{_WIDTH}} {text}")
    return lines


def _metric_lines(found: Sequence[Change]) -> list[str]:
    if not found:
        return []
    rows = [("metric", "before", "", "after", "")]
    for each in found[:MOST_METRICS]:
        rows.append((each.metric, number(each.before), "->", number(each.after), _span(each)))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = []
    for name, before, arrow, after, span in rows:
        texts = (name.ljust(widths[0]), before.rjust(widths[1]), arrow.ljust(widths[2]), after.rjust(widths[3]), span)
        lines.append("  " + "  ".join(texts).rstrip())
    left = len(found) - MOST_METRICS
    return [*lines, f"  and {left} more in summary.json"] if left > 0 else lines


def _span(change: Change) -> str:
    word = "evaluation" if change.of == OF_EVALUATION else "tenths"
    return WORDS[word].en.format(first=change.first_step, last=change.last_step)


def _facts(summary: JobSummary) -> Iterator[tuple[str, list[str]]]:
    """Yield name and texts of what follows the metrics."""
    if summary.best is not None:
        yield "best step", [best_text(summary.best)]
    kept = [
        f"{each.step} (with Hugging Face weights)" if each.has_hf_weights else f"{each.step}"
        for each in summary.checkpoints
    ]
    if kept:
        yield "checkpoints", [f"{', '.join(kept)}: {shown_path(summary.job)}/global_step_<N>"]
    if summary.rollouts:
        yield "rollouts", [_rollouts(fates) for fates in summary.rollouts.values()]
        yield "dropped", list(_dropped(summary.rollouts.values())) or ["nothing"]
    if summary.counts:
        yield (
            "also",
            [f"{count} {COUNTED[name].en if name in COUNTED else name}" for name, count in summary.counts.items()],
        )
    if summary.time:
        yield "time", ["; ".join(f"{_part(name)} {seconds:.1f} s" for name, seconds in summary.time.items())]
    counted = [f"{count:,} {name}" for name, count in summary.tokens.items() if count is not None]
    if counted:
        yield "tokens", [", ".join(counted)]
    for name, file in (("curve", CURVE_NAME), ("report", PAGE_NAME)):
        if file in summary.files:
            yield name, [shown_path(f"{summary.job}/{file}")]
    if summary.commands:
        yield "next", [f"{_command(each.command)}    # {COMMANDS[each.what].en}" for each in summary.commands]
    if summary.notes:
        yield "missing", list(summary.notes)


def best_text(best: BestStep) -> str:
    """Return in one line what the best step was, and where it is."""
    if best.training_step == 0:
        place = WORDS["initial"].en
    elif best.checkpoint is not None:
        place = shown_path(best.checkpoint)
    elif best.training_step is None:
        place = WORDS["unknown_weights"].en
    else:
        place = WORDS["not_kept"].en.format(step=best.training_step)
    return f"{best.step}, {best.metric} {number(best.value)}: {place}"


def _rollouts(fates: Mapping[str, int]) -> str:
    ended = [f"{count} {name}" for name, count in fates.items() if name not in ("issued", "waiting")]
    return f"{fates['issued']} issued = {' + '.join(ended)} + {fates['waiting']} waiting"


def _dropped(buffers: Iterable[Mapping[str, int]]) -> Iterator[str]:
    for fates in buffers:
        for name, count in fates.items():
            if name not in ("issued", "waiting", "trained") and count:
                yield f"{count} of {fates['issued']}: {name}, {reason_of(name).en}"


def _part(name: str) -> str:
    return PARTS[name].en if name in PARTS else name


def _command(text: str) -> str:
    """Return a command as one types it in this folder."""
    program, *words = shlex.split(text)
    return shlex.join([command(program), *(shown_path(word) if word.startswith("/") else word for word in words)])


def number(value: float) -> str:
    """Return a number with four significant digits or so."""
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def shown_path(path: str | Path) -> str:
    """Return a path as one types it in this folder."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else str(path)


def command(name: str) -> str:
    """Return how to call a program of this environment.

    Returns its name if the shell finds that program, otherwise its path.
    """
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not own.exists() or (found is not None and Path(found).samefile(own)):
        return name
    return shown_path(own)
