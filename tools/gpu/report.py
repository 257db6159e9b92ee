"""Parts one after another, each with its deadline, and the report of them, which is whole whenever it is read."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.gpu import process
from tools.gpu.records import counts, read_json, recorded, write_json

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "VLLM_NO_USAGE_STATS"), "1")
CALM = {"TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
LEAST_S = 1.0
OK, FAILED, TIMEOUT, SKIPPED, RUNNING, IDLE = "ok", "failed", "timeout", "skipped", "running", "not run"


@dataclass(frozen=True)
class Part:
    """A command that shows something; it writes `figures.json`, and tests `tests.jsonl`, into the folder it is given.

    Attributes:
        name: of the part.
        shows: what it shows, in a few words.
        command: program and arguments; `{out}` stands for the folder.
        least_s: seconds that are kept for it whatever the parts before it take.
        most_s: seconds that it gets at most.
        package: distribution without which it is skipped.
        counts: whether its failure is one of the report.
    """

    name: str
    shows: str
    command: tuple[str, ...]
    least_s: float
    most_s: float
    package: str | None = None
    counts: bool = True


@dataclass
class Report:
    """What has been found so far, in a file.

    Attributes:
        file: where it is written.
        values: what is in it.
        started: clock at the start.
    """

    file: Path
    values: dict[str, Any]
    started: float = field(default_factory=time.monotonic)

    def write(self) -> None:
        """Write it again."""
        self.values["seconds"] = round(time.monotonic() - self.started, 1)
        write_json(self.file, self.values)


def environment() -> dict[str, str]:
    """Return the environment of parts: offline, with this tree before anything that is installed."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return CALM | dict(os.environ) | OFFLINE | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def run_parts(
    parts: Sequence[Part], report: Report, *, work: Path, total_s: float, missing: Sequence[str] = ()
) -> bool:
    """Run the parts within `total_s` seconds from the report's start; return whether none of those that count failed.

    Args:
        parts: the most valuable first.
        report: gets an entry a part.
        work: folder of their files.
        total_s: seconds of all of them; at least the sum of what is kept for each.
        missing: distributions that are not installed.
    """
    entries = [_entry(part) for part in parts]
    report.values["parts"] = entries
    for number, (part, entry) in enumerate(zip(parts, entries, strict=True)):
        if part.package in missing:
            entry |= {"status": SKIPPED, "reason": f"{part.package} is not installed"}
            continue
        kept = sum(each.least_s for each in parts[number + 1 :] if each.package not in missing)
        left = total_s - (time.monotonic() - report.started)
        deadline_s = min(part.most_s, left - kept)
        if deadline_s < LEAST_S:
            entry |= {"status": SKIPPED, "reason": "no time was left"}
            continue
        _run(part, entry, report, out=work / part.name.replace(" ", "_"), deadline_s=deadline_s)
    report.values["result"] = OK if all(is_fine(entry) for entry in entries) else FAILED
    report.write()
    return report.values["result"] == OK


def is_fine(entry: dict[str, Any]) -> bool:
    """Return whether a part's entry is no failure."""
    return entry["status"] in (OK, SKIPPED) or not entry["counts"]


def _entry(part: Part) -> dict[str, Any]:
    return {"name": part.name, "shows": part.shows, "counts": part.counts, "status": IDLE, "reason": ""}


def _run(part: Part, entry: dict[str, Any], report: Report, *, out: Path, deadline_s: float) -> None:
    """Run one part, and keep its entry of the report up to date."""
    out.mkdir(parents=True)
    command = [word.replace("{out}", str(out)) for word in part.command]
    entry |= {"status": RUNNING, "deadline_s": round(deadline_s, 1), "command": shlex.join(command)}
    print(f"{part.name}: {part.shows} (at most {deadline_s:.0f} s)", flush=True)

    def collect() -> None:
        entry["figures"] = read_json(out / "figures.json")
        if (out / "tests.jsonl").exists():
            entry["tests"] = recorded(out / "tests.jsonl")
        report.write()

    collect()
    ended = process.run(
        command, deadline_s=deadline_s, log=out / "output.log", env=environment(), cwd=ROOT, tick=collect
    )
    entry["seconds"] = round(ended.seconds, 1)
    entry["exit_status"] = ended.status
    entry["status"] = TIMEOUT if ended.is_late else FAILED if ended.status else OK
    if ended.is_late:
        entry["reason"] = f"it was not done after {deadline_s:.0f} s and was ended"
    elif ended.status:
        how = f"was killed by signal {-ended.status}" if ended.status < 0 else f"ended with status {ended.status}"
        entry["reason"] = f"it {how}"
    if entry["status"] != OK:
        entry["tail"] = ended.tail
    collect()
    print(f"{part.name}: {entry['status']} after {ended.seconds:.0f} s {entry['reason']}".rstrip(), flush=True)


def commit() -> str | None:
    """Return the commit of this tree, with `+` where something is changed."""

    def told(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True).stdout

    try:
        return told("rev-parse", "HEAD").strip() + ("+" if told("status", "--porcelain", "-uno").strip() else "")
    except (OSError, subprocess.SubprocessError):
        return None


def summary(values: dict[str, Any]) -> str:
    """Return the report as a table for the screen."""
    machine = values["machine"]
    devices = ", ".join(f"{d['name']} ({d['memory_gib']:g} GiB)" for d in machine["devices"]) or "no CUDA device"
    lines = [
        "",
        f"{devices}, driver {machine['driver']}, CUDA {machine.get('cuda')}, torch {machine.get('torch')}, "
        f"transformers {machine.get('transformers')}, Python {machine['python']}",
        *_missing(machine["packages"]),
        "",
        f"{'part':<18}{'status':<10}{'seconds':>8}  what was found",
    ]
    for entry in values.get("parts", []):
        seconds = entry.get("seconds")
        shown = "" if seconds is None else f"{seconds:.0f}"
        aside = "" if entry["counts"] else " (does not count)"
        lines.append(f"{entry['name']:<18}{entry['status']:<10}{shown:>8}  {_found(entry)}{aside}")
        lines += [f"{'':<38}{test['outcome']}: {test['test']}" for test in _bad(entry)]
        lines += [f"{'':<38}{goal_line(goal)}" for goal in entry.get("figures", {}).get("goals", [])]
    lines += ["", f"{values.get('result', 'interrupted')} after {values['seconds']:.0f} s"]
    return "\n".join(lines)


def goal_line(goal: dict[str, Any]) -> str:
    """Return a figure beside its goal."""
    met = "met" if goal["is_met"] else "not met"
    return f"{goal['name']}: {goal['value']:.3g} {goal['unit']}, goal {goal['sign']} {goal['goal']:g}: {met}"


def _missing(packages: dict[str, Any]) -> list[str]:
    lines = []
    for key, text in (("missing_required", "required and missing"), ("other_versions", "of another version"),
                      ("missing_optional", "optional and missing")):  # fmt: skip
        if packages[key]:
            lines.append(f"{text}: {', '.join(packages[key])}")
    return lines


def _found(entry: dict[str, Any]) -> str:
    if "tests" in entry:
        told = ", ".join(f"{number} {outcome}" for outcome, number in counts(entry["tests"]).items())
        return f"{told} {entry['reason']}".strip()
    wrong = entry.get("figures", {}).get("problems") or []
    return "; ".join([entry["reason"], *wrong]).strip("; ") or entry["shows"]


def _bad(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [test for test in entry.get("tests", []) if test["outcome"] not in ("passed", "skipped", "not run")]
