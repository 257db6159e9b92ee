"""`trinity runs`, `status`, `log`, `stop` and `resume`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.completion import jobs as jobs_of_words
from trinity.cli.completion import set_words
from trinity.cli.options import ended_with
from trinity.common.errors import ExitCode
from trinity.utils.log import redact

if TYPE_CHECKING:
    from trinity.launch.jobs import JobState, PartState

Job = Annotated[
    Path,
    typer.Argument(
        metavar="JOB", help="Folder of a job, <checkpoint_root_dir>/<project>/<name>.", autocompletion=jobs_of_words
    ),
]
Part = Annotated[
    str | None, typer.Option("--part", help="Name of one part (such as explorer) that runs on its own; default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FOLLOW_S = 0.5
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look in, such as a checkpoint_root_dir.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder and below it, with their state."""
    from trinity.launch.jobs import jobs_below

    with ended_with():
        found = list(jobs_below(folder))
    if as_json:
        _print_json([each.facts() for each in found])
        return
    if not found:
        typer.echo(f"no runs in {folder} and the folders below it")
        return
    rows = [(str(each.folder), each.status, _steps(each), _age(each.updated), _figures(each)) for each in found]
    head = ("job", "state", "step", "written", "")
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    for row in [head, *rows]:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def status(job: Job, as_json: AsJson = False) -> None:
    """Show the state of a run, and its summary once it has ended."""
    from trinity.launch.ending import job_summary
    from trinity.launch.jobs import job_state
    from trinity.summary.table import summary_lines
    from trinity.summary.words import is_chinese

    with ended_with():
        found = job_state(job)
        summary = job_summary(job) if found.has_ended else None
    if as_json:
        _print_json(found.facts() | {"summary": None if summary is None else asdict(summary)})
        return
    typer.echo(f"{found.folder}: {found.status}, written {_age(found.updated)} ago")
    for part in found.parts:
        typer.echo(f"  {_part_line(part)}")
    for actor, record in found.metrics.items():
        typer.echo(f"  {actor}: step {record.get('step')}  {_text(record)}".rstrip())
    kept = ", ".join(map(str, found.checkpoints)) or "none"
    typer.echo(f"  checkpoints: {kept}")
    for part in found.parts:
        if part.command and not part.is_running and part.status != "done":
            typer.echo(f"  continue with: trinity resume {job}{f' --part {part.name}' if part.name else ''}")
    if summary is not None:
        typer.echo("\n".join(summary_lines(summary, is_chinese=is_chinese(os.environ))))


def log(
    job: Job,
    number: Annotated[int, typer.Option("-n", min=1, help="How many last lines of each file.")] = 20,
    part: Annotated[str, typer.Option("--part", help="Only log files with this in their name.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as a JSON object.")] = False,
) -> None:
    """Print the last lines of a run's logs; --follow prints new ones, too."""
    from trinity.launch.jobs import job_state, log_files

    with ended_with():
        job_state(job)
    places: dict[Path, int] = {}
    for file in log_files(job):
        if part in file.stem:
            places[file] = _print_end(file, job, number, as_json=as_json)
    try:
        while follow:
            for file in log_files(job):
                if part in file.stem:
                    places[file] = _print_new(file, job, places.get(file, 0), as_json=as_json)
            sys.stdout.flush()
            time.sleep(FOLLOW_S)
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.DONE)) from None


def stop(
    job: Job,
    part: Part = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait until it has ended.")] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Stop a run on this machine: it finishes its step, saves, and exits."""
    from trinity.launch.jobs import job_state, stop_job

    with ended_with():
        stopped = stop_job(job, part=part, timeout_s=timeout)
        after = job_state(job)
    if as_json:
        _print_json({"stopped": [each.holder for each in stopped], **after.facts()})
        return
    for each in stopped:
        typer.echo(f"stopped: {each.name or job} ({each.holder})")
    kept = after.checkpoints[-1:]
    typer.echo(f"last checkpoint: {f'step {kept[0]}' if kept else 'none'}; continue with: trinity resume {job}")


def resume(
    job: Job,
    part: Part = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="New value of a key: a.b=c; may be repeated.", autocompletion=set_words),
    ] = None,
    accept_change: Annotated[
        list[str] | None,
        typer.Option("--accept-change", help="Key whose value may differ from when the run began; may be repeated."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the command without running it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON at the end, like `trinity run --json`.")] = False,
) -> None:
    """Continue a run as it was started, from its last checkpoint."""
    import shlex

    from trinity.launch.jobs import resume_words

    with ended_with():
        folder, words = resume_words(job, part=part)
        if not folder.is_dir():
            from trinity.common.errors import EnvironmentProblem

            raise EnvironmentProblem(f"{folder}, where the run was started, is not there", code="E3602")
    words += [word for each in set_ or () for word in ("--set", each)]
    words += [word for each in accept_change or () for word in ("--accept-change", each)]
    words += ["--json"] * as_json
    command = [sys.executable, "-m", "trinity", "run", *words]
    text = redact(shlex.join(["trinity", "run", *words]))
    if show and as_json:
        _print_json({"folder": str(folder), "command": text})
    else:
        typer.echo(f"cd {shlex.quote(str(folder))} && {text}", err=not show)
    if show:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(folder)
    os.execv(command[0], command)


def _print_json(found: Any) -> None:
    typer.echo(redact(json.dumps(found, indent=2, ensure_ascii=False)))


def _part_line(part: PartState) -> str:
    words = [part.name or "the whole job", part.status]
    words += [part.holder] if part.holder else []
    words += [f"training step {part.training_step}"] if part.training_step else []
    words += [f"explore step {part.explore_step}"] if part.explore_step and not part.training_step else []
    words += [redact(part.error)] if part.error else []
    return ", ".join(words)


def _steps(job: JobState) -> str:
    steps = [part.training_step or part.explore_step for part in job.parts]
    steps += [int(record.get("step") or 0) for record in job.metrics.values()]
    return str(max(steps, default=0))


def _figures(job: JobState) -> str:
    """Return reward or loss, accuracy and speed, of all actors together."""
    both: dict[str, Any] = {}
    for record in job.metrics.values():
        both |= record
    return _text(both)


def _text(record: dict[str, Any]) -> str:
    from trinity.monitor.headline import text

    return text({name: value for name, value in record.items() if isinstance(value, int | float)})


def _age(when: float) -> str:
    if not when:
        return "never"
    seconds = max(0.0, time.time() - when)
    length, unit = next(((length, unit) for length, unit in AGES if seconds >= length), AGES[-1])
    return f"{seconds / length:.0f} {unit}"


def _print_end(file: Path, job: Path, number: int, *, as_json: bool) -> int:
    """Print the last whole lines of a file; return where they end."""
    with open(file, "rb") as opened:
        lines, end = deque[bytes](maxlen=number), 0
        for line in opened:
            if line.endswith(b"\n"):  # the last one may just be written
                lines.append(line)
                end += len(line)
    _print_lines(file, job, lines, as_json=as_json)
    return end


def _print_new(file: Path, job: Path, place: int, *, as_json: bool) -> int:
    """Print the whole lines behind a place of a file; return where they end."""
    try:
        with open(file, "rb") as opened:
            opened.seek(place if place <= file.stat().st_size else 0)
            start, data = opened.tell(), opened.read()
    except FileNotFoundError:
        return 0
    whole = data[: data.rfind(b"\n") + 1]
    _print_lines(file, job, iter(whole.splitlines()), as_json=as_json)
    return start + len(whole)


def _print_lines(file: Path, job: Path, lines: Iterator[bytes] | deque[bytes], *, as_json: bool) -> None:
    name = str(file.relative_to(job / "log").with_suffix(""))
    for line in lines:
        text = redact(line.decode(errors="replace").rstrip())
        typer.echo(json.dumps({"file": name, "line": text}, ensure_ascii=False) if as_json else f"{name}: {text}")
