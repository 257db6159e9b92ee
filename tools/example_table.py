"""Runs examples, and writes their times and curves into the READMEs: `python -m tools.example_table [NAME ...]`.

It does what the READMEs of the folders tell, one after another: half an hour for all, on free cores. The processor
time goes into the tables of `examples/README.md` and of its Chinese half, the curve of the job into the example's
folder. The figures beside a curve are those of its run, and are changed by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean

from tests.example_runs import job_of, metrics_of, place_of_runs, prepare, train
from tests.examples import BY_SCRIPT, EXAMPLES, FOLDERS
from trinity.summary.canvas import drawn
from trinity.summary.facts import CURVE_NAME
from trinity.summary.picture import Curve, Panel
from trinity.summary.words import Text

PAGES = (EXAMPLES / "README.md", EXAMPLES / "README.zh.md")
LONGEST_S = 3600.0
VERSION, REWARD, ACCURACY = (f"rollout/{name}" for name in ("model_version", "reward/mean", "accuracy/mean"))


def with_time(text: str, name: str, cpu_s: int) -> str:
    """Return a page whose table has this time in the last column of an example's row."""
    row = re.compile(rf"^(\| \[{name}\]\(.*\|) [^|]* \|$", re.MULTILINE)
    return row.sub(rf"\g<1> {cpu_s} s |", text)


def curve_of(name: str, job: Path) -> bytes:
    """Return the picture of a job: its own, or that of each explorer where commands of their own explore."""
    if name not in BY_SCRIPT:
        return (job / CURVE_NAME).read_bytes()
    values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in metrics_of(job):
        if VERSION in line:
            values[str(line["actor"])][line[VERSION]].append(line.get(ACCURACY, line[REWARD]))
    curves = [
        Curve(Text(actor, actor), [(version, mean(found)) for version, found in sorted(of.items())], has_dots=True)
        for actor, of in values.items()
    ]
    title = Text(f"{name}: right answers by training step", f"{name}：各训练步的正确回答")
    return drawn([Panel(title, curves, bounds=(0.0, 1.0))], is_chinese=False)


def main(words: list[str]) -> int:
    """Run and write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of examples; default: all")
    parser.add_argument("--dir", type=Path, help="where they run, and what is prepared stays; default: a new folder")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as root:
        place = place_of_runs(arguments.dir or Path(root))
        for folder in [each for each in FOLDERS if each.name in arguments.names or not arguments.names]:
            prepare(folder, place, timeout_s=LONGEST_S)
            run = train(folder, place, timeout_s=LONGEST_S)
            sys.stdout.write(f"{folder.name}: {run.cpu_s:.0f} s of the processor in {run.wall_s:.0f} s\n{run.output}\n")
            sys.stdout.flush()
            (folder / "curve.png").write_bytes(curve_of(folder.name, job_of(folder, place)))
            for page in PAGES:
                text = page.read_text(encoding="utf-8")
                page.write_text(with_time(text, folder.name, round(run.cpu_s)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
