"""A summary as one page that needs nothing else: `report.html`.

It has both languages and a switch that works without scripts. Nothing in it is loaded from elsewhere, and the page
forbids that to a browser. Every text is escaped: what a model wrote stays text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from trinity.summary.canvas import svg
from trinity.summary.facts import OF_EVALUATION, BestStep, Change, JobSummary
from trinity.summary.picture import Panel
from trinity.summary.table import number
from trinity.summary.words import COMMANDS, COUNTED, PARTS, STATES, WORDS, Text, reason_of

MOST_CHARACTERS = 4000
"""Of a text that a model wrote; the rest is in the store."""
_TEXTS = ("prompt", "response", "truth")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #ddd }
td.n { text-align: right; font-variant-numeric: tabular-nums } svg { max-width: 100%; height: auto }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f5f5; padding: .6rem; margin: .2rem 0 .8rem }
#zh:checked ~ main [lang=en], #en:checked ~ main [lang=zh] { display: none }
"""


def page(
    summary: JobSummary, panels: Sequence[Panel], samples: Sequence[Mapping[str, Any]], *, is_chinese: bool
) -> str:
    """Return the HTML of a summary.

    Args:
        summary: what it shows.
        panels: of the learning curve.
        samples: prompt, response and other facts of what a model said.
        is_chinese: which language is shown first.
    """
    checked = ("", " checked") if is_chinese else (" checked", "")
    parts = [_state(summary), _metrics(summary.metrics), _curve(panels), _best(summary), _rollouts(summary)]
    parts += [_work(summary), _samples(samples), _commands(summary), _notes(summary.notes)]
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="{"zh" if is_chinese else "en"}"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(summary.job)}</title><style>{_STYLE}</style></head><body>\n"
        f'<input type="radio" name="language" id="en"{checked[0]}><label for="en">English</label>\n'
        f'<input type="radio" name="language" id="zh"{checked[1]}><label for="zh">中文</label>\n'
        f"<main>\n<h1>{_word('title')}</h1>\n{''.join(parts)}</main>\n</body></html>\n"
    )


def _both(text: Text) -> str:
    return f'<span lang="en">{escape(text.en)}</span><span lang="zh">{escape(text.zh)}</span>'


def _word(name: str) -> str:
    return _both(WORDS[name])


def _of(table: Mapping[str, Text], name: str) -> str:
    return _both(table[name]) if name in table else escape(name)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are HTML, those that are numbers are aligned."""
    cells = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>\n{lines}</tbody></table>\n"


def _cell(cell: str) -> str:
    is_number = cell.replace(".", "").replace(",", "").replace("-", "").isdigit()
    return f'<td class="n">{cell}</td>' if is_number else f"<td>{cell}</td>"


def _section(name: str, body: str) -> str:
    return f'<section><h2 id="{name}">{_word(name)}</h2>\n{body}</section>\n' if body else ""


def _state(summary: JobSummary) -> str:
    rows = [
        ("job", escape(summary.job)),
        ("stage", escape(summary.stage or "")),
        ("status", _of(STATES, summary.status)),
    ]
    rows += [("error", escape(summary.error))]
    rows += [("training_step", str(summary.training_step or "")), ("explore_step", str(summary.explore_step or ""))]
    rows += [("seconds", f"{summary.seconds:.1f}" if summary.seconds else "")]
    lines = "".join(f'<tr><th scope="row">{_word(name)}</th><td>{text}</td></tr>\n' for name, text in rows if text)
    return f"<table><tbody>\n{lines}</tbody></table>\n"


def _metrics(found: Sequence[Change]) -> str:
    if not found:
        return ""
    head = [_word(name) for name in ("metric", "before", "after", "of")]
    rows = [(escape(each.metric), number(each.before), number(each.after), _span(each)) for each in found]
    return _section("metrics", _table(head, rows))


def _span(change: Change) -> str:
    text = WORDS["evaluation" if change.of == OF_EVALUATION else "tenths"]
    return _both(Text(*(each.format(first=change.first_step, last=change.last_step) for each in text)))


def _curve(panels: Sequence[Panel]) -> str:
    return _section("curve", svg(panels, label="curve") if panels else "")


def _best(summary: JobSummary) -> str:
    kept = [
        f"<li>{each.step}: <code>{escape(each.path)}</code> {_word('hf') if each.has_hf_weights else ''}</li>"
        for each in summary.checkpoints
    ]
    body = "" if summary.best is None else f"<p>{_place(summary.best)}</p>\n"
    return _section("best", body) + _section("checkpoints", f"<ul>{''.join(kept)}</ul>\n" if kept else "")


def _place(best: BestStep) -> str:
    if best.training_step == 0:
        place = _word("initial")
    elif best.checkpoint is not None:
        place = f"<code>{escape(best.checkpoint)}</code>"
    elif best.training_step is None:
        place = _word("unknown_weights")
    else:
        step = best.training_step
        place = _both(Text(*(each.format(step=step) for each in WORDS["not_kept"])))
    return f"{best.step}, <code>{escape(best.metric)}</code> {number(best.value)}: {place}"


def _rollouts(summary: JobSummary) -> str:
    rows = []
    for buffer, fates in summary.rollouts.items():
        for name, count in fates.items():
            why = "" if name == "issued" else _both(reason_of(name))
            rows.append((escape(buffer), escape(name), f"{count:,}", why))
    head = [_word(name) for name in ("buffer", "fate", "number", "why")]
    also = [(_of(COUNTED, name), f"{count:,}") for name, count in summary.counts.items()]
    return _section("rollouts", _table(head, rows) if rows else "") + _section(
        "counts", _table([_word("why"), _word("number")], also) if also else ""
    )


def _work(summary: JobSummary) -> str:
    tokens = {"explore": summary.tokens.get("generated"), "train": summary.tokens.get("trained")}
    rows = [
        (_of(PARTS, part), f"{seconds:.1f}", f"{tokens[part]:,}" if tokens.get(part) is not None else "")
        for part, seconds in summary.time.items()
    ]
    if not rows:
        return ""
    head = [_word(name) for name in ("part", "seconds", "tokens")]
    return _section("work", f"{_table(head, rows)}<p>{_word('overlap')}</p>\n")


def _samples(samples: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for sample in samples:
        facts = ", ".join(f"{name} {value}" for name, value in sample.items() if name not in _TEXTS)
        parts.append(f"<h3>{escape(facts)}</h3>\n")
        parts += [
            f"<div>{_word(name)}</div><pre>{_cut(sample[name])}</pre>\n"
            for name in _TEXTS
            if sample.get(name) is not None
        ]
    return _section("samples", "".join(parts))


def _cut(text: object) -> str:
    """Return the beginning of a text, escaped."""
    whole = str(text)
    left = len(whole) - MOST_CHARACTERS
    return escape(whole if left <= 0 else f"{whole[:MOST_CHARACTERS]}… (+{left})")


def _commands(summary: JobSummary) -> str:
    return _section(
        "commands",
        "".join(
            f"<div>{_of(COMMANDS, each.what)}</div><pre>{escape(each.command)}</pre>\n" for each in summary.commands
        ),
    )


def _notes(notes: Sequence[str]) -> str:
    return _section("notes", f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>\n" if notes else "")
