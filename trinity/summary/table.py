"""A summary as lines of a terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len

from trinity.summary.facts import CURVE_NAME, OF_EVALUATION, PAGE_NAME, BestStep, Change, JobSummary
from trinity.summary.words import COMMANDS, COUNTED, PARTS, STATES, TABLE, WORDS, Text, reason_of

MOST_METRICS = 8
_WIDTH = 13


def summary_lines(summary: JobSummary, *, is_chinese: bool = False) -> list[str]:
    """Return the lines that show a job after a run, in one of both languages.

    Names of metrics and of what happened to rollouts are the same in both.
    """
    return _Lines(summary, is_chinese=is_chinese).all()


class _Lines:
    """The lines of a summary in one language."""

    def __init__(self, summary: JobSummary, *, is_chinese: bool) -> None:
        self._summary, self._is_chinese = summary, is_chinese

    def all(self) -> list[str]:
        summary = self._summary
        state = self._of(STATES, summary.status)
        head = [f"{self._word('summary', job=shown_path(summary.job))}: {state}"]
        head += [f"{self._word('at_training_step')} {summary.training_step}"] if summary.training_step else []
        head += [f"{self._word('at_explore_step')} {summary.explore_step}"] if summary.explore_step else []
        head += [f"{summary.seconds:.1f} s"] if summary.seconds else []
        lines = [", ".join(head), *self._metric_lines(summary.metrics)]
        for name, texts in self._facts():
            for number, text in enumerate(texts):
                lines.append(f"  {_padded('' if number else self._word(name), _WIDTH)} {text}")
        return lines

    def _word(self, name: str, **values: object) -> str:
        text = TABLE[name] if name in TABLE else WORDS[name]
        return self._in_language(text).format(**values)

    def _in_language(self, text: Text) -> str:
        return text.zh if self._is_chinese else text.en

    def _of(self, table: Mapping[str, Text], name: str) -> str:
        return self._in_language(table[name]) if name in table else name

    def _metric_lines(self, found: Sequence[Change]) -> list[str]:
        if not found:
            return []
        rows = [(*(self._word(f"column_{name}") for name in ("metric", "before")), "", self._word("column_after"), "")]
        for each in found[:MOST_METRICS]:
            rows.append((each.metric, number(each.before), "->", number(each.after), self._span(each)))
        widths = [max(cell_len(row[at]) for row in rows) for at in range(4)]
        lines = []
        for name, before, arrow, after, span in rows:
            numbers = (_padded(before, widths[1], is_right=True), arrow.ljust(widths[2]))
            texts = (_padded(name, widths[0]), *numbers, _padded(after, widths[3], is_right=True), span)
            lines.append("  " + "  ".join(texts).rstrip())
        left = len(found) - MOST_METRICS
        return [*lines, f"  {self._word('more', left=left)}"] if left > 0 else lines

    def _span(self, change: Change) -> str:
        name = "evaluation" if change.of == OF_EVALUATION else "tenths"
        return self._word(name, first=change.first_step, last=change.last_step)

    def _facts(self) -> Iterator[tuple[str, list[str]]]:
        """Yield name and texts of what follows the metrics."""
        summary = self._summary
        if summary.best is not None:
            yield "best_step", [self._best(summary.best)]
        kept = [
            f"{each.step} ({self._word('hf')})" if each.has_hf_weights else f"{each.step}"
            for each in summary.checkpoints
        ]
        if kept:
            yield "kept", [f"{', '.join(kept)}: {shown_path(summary.job)}/global_step_<N>"]
        if summary.rollouts:
            yield "of_rollouts", [_rollouts(fates) for fates in summary.rollouts.values()]
            yield "dropped", list(self._dropped(summary.rollouts.values())) or [self._word("nothing")]
        if summary.counts:
            yield "also", [f"{count} {self._of(COUNTED, name)}" for name, count in summary.counts.items()]
        if summary.time:
            parts = [f"{self._of(PARTS, name)} {seconds:.1f} s" for name, seconds in summary.time.items()]
            yield "time", ["; ".join(parts)]
        counted = [f"{count:,} {self._of(TABLE, name)}" for name, count in summary.tokens.items() if count is not None]
        if counted:
            yield "of_tokens", [", ".join(counted)]
        for name, file in (("of_curve", CURVE_NAME), ("report", PAGE_NAME)):
            if file in summary.files:
                yield name, [shown_path(f"{summary.job}/{file}")]
        if summary.commands:
            yield (
                "next",
                [f"{_command(each.command)}    # {self._of(COMMANDS, each.what)}" for each in summary.commands],
            )
        if summary.notes:
            yield "missing", list(summary.notes)

    def _best(self, best: BestStep) -> str:
        """Return in one line what the best step was, and where it is."""
        if best.training_step == 0:
            place = self._word("initial")
        elif best.checkpoint is not None:
            place = shown_path(best.checkpoint)
        elif best.training_step is None:
            place = self._word("unknown_weights")
        else:
            place = self._word("not_kept", step=best.training_step)
        return f"{best.step}, {best.metric} {number(best.value)}: {place}"

    def _dropped(self, buffers: Iterable[Mapping[str, int]]) -> Iterator[str]:
        for fates in buffers:
            for name, count in fates.items():
                if name not in ("issued", "waiting", "trained") and count:
                    why = self._in_language(reason_of(name))
                    yield self._word("dropped_of", count=count, issued=fates["issued"], fate=name, why=why)


def _rollouts(fates: Mapping[str, int]) -> str:
    ended = [f"{count} {name}" for name, count in fates.items() if name not in ("issued", "waiting")]
    return f"{fates['issued']} issued = {' + '.join(ended)} + {fates['waiting']} waiting"


def _padded(text: str, width: int, *, is_right: bool = False) -> str:
    """Return a text with spaces up to a width; some characters are two wide."""
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space


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
