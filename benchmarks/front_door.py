"""Figures of what comes before a run: typing errors understood, how long `validate`, `doctor`, `estimate` and a
completion take, and how soon the studio is there.

    python benchmarks/front_door.py                 # seconds of the commands
    python benchmarks/front_door.py --typos         # every key of the schema with single edits: minutes
    python benchmarks/front_door.py --studio        # seconds until the studio is painted; needs Chromium and its driver

A single edit is a letter left out, a letter put in, a letter replaced, or two neighbours swapped, at every place of the
name; the letter that is put in or replaces another is drawn, with a fixed seed. An edit that gives another key of the
section is none. Right is a finding of the key whose suggestion is the name that was edited.

Of the studio: a server and a browser that are new each time, so that nothing is in a cache. First paint is what the
browser itself calls first contentful paint, counted from the request of the page. The CPU seconds are those of the
server, its start included: they do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz_"
REPEATS = 5
TYPOS_A_FILE = 60
Typo = tuple[tuple[str | int, ...], str]


def edits(name: str, draw: random.Random) -> Iterator[str]:
    """Yield single edits of a name."""
    for at in range(len(name)):
        yield name[:at] + name[at + 1 :]
        yield name[:at] + draw.choice(LETTERS) + name[at:]
        yield name[:at] + draw.choice(LETTERS) + name[at + 1 :]
        if at + 1 < len(name):
            yield name[:at] + name[at + 1] + name[at] + name[at + 2 :]


def typos() -> Iterator[Typo]:
    """Yield the path of each key of the schema with each edit of its name."""
    from trinity.common.config.config import Config
    from trinity.common.config.schema_index import fields_of, model_at

    draw = random.Random(0)
    for path, _ in fields_of(Config):
        model = model_at(path[:-1])
        if "*" in path or path[0] == "stages" or model is None:
            continue
        for typo in sorted({*edits(str(path[-1]), draw)} - {"", *model.model_fields}):
            yield path, typo


def measure_typos() -> None:
    """Print the share of typing errors whose first suggestion is right."""
    from trinity.catalogue import BUILT_IN
    from trinity.common.config import examine

    found: Counter[bool] = Counter()
    wrong_names: Counter[str] = Counter()
    everything = list(typos())
    random.Random(1).shuffle(everything)  # of one file, few are neighbours
    for start in range(0, len(everything), TYPOS_A_FILE):
        part = everything[start : start + TYPOS_A_FILE]
        tree: dict[str, Any] = {"mode": "both"}
        for path, typo in part:
            node = tree
            for word in path[:-1]:
                node = node.setdefault(word, {}) if isinstance(node.get(word, {}), dict) else {}
            node[typo] = 1
        hints = {each.key: each.suggestion or "" for each in examine(tree, catalogue=BUILT_IN, schema_only=True)[1]}
        for path, typo in part:
            is_right = f"`{path[-1]}`" in hints.get(".".join([*map(str, path[:-1]), typo]), "")
            found[is_right] += 1
            wrong_names[str(path[-1])] += not is_right
    number = len({path for path, _ in everything})
    print(f"{number} keys, {len(everything)} single edits: {found[True] / len(everything):.2%} right")
    print("most often missed:", ", ".join(f"{name} {count}" for name, count in wrong_names.most_common(12)))


def seconds_of(words: list[str], *, environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Return the median wall and CPU seconds of `python -m trinity` with some words."""
    walls, cpus = [], []
    for _ in range(REPEATS):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "trinity", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            env=os.environ | (environment or {}),
        )
        walls.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls), statistics.median(cpus)


def measure_commands() -> None:
    """Print the seconds of each command, of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "quickstart"
        words = ["quickstart", "--prepare-only", "--dir", str(made)]
        subprocess.run([sys.executable, "-m", "trinity", *words], check=True, stdout=subprocess.DEVNULL)
        file = str(made / "quickstart.yaml")
        completed = {
            "_TRINITY_COMPLETE": "complete_bash",
            "COMP_WORDS": "trinity run --set algorithm.",
            "COMP_CWORD": "3",
        }
        print("| command | wall s | CPU s |")
        print("|---|---|---|")
        for name, words, environment in (
            ("--help", ["--help"], {}),
            ("validate", ["validate", "--config", file], {}),
            ("estimate", ["estimate", "--config", file], {}),
            ("doctor", ["doctor"], {}),
            ("completion of `--set algorithm.`", [], completed),
        ):
            wall, cpu = seconds_of(words, environment=environment)
            print(f"| {name} | {wall:.2f} | {cpu:.2f} |", flush=True)


def seconds_of_studio(folder: Path) -> dict[str, float]:
    """Return seconds of a new studio in a new browser: its address printed, first paint, the fields of the form."""
    import psutil

    from tests.browser import browsing

    started = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "trinity", "studio", "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))
        printed = time.perf_counter() - started
        while not listens(address):
            time.sleep(0.02)
        listening = time.perf_counter() - started
        with browsing() as browser:
            asked = time.perf_counter()
            browser.open(address)
            browser.find("//input[@aria-label='Project (project)']")
            usable = time.perf_counter() - asked
            paints = "return performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)"
            (painted,) = browser.run(paints)
            times = psutil.Process(server.pid).cpu_times()
    finally:
        server.kill()
        server.wait()
    return {
        "address printed": printed,
        "server listens": listening,
        "first paint, from the request of the page": painted / 1000,
        "fields of the form, from the request of the page": usable,
        "CPU of the server until then": times.user + times.system,
    }


def listens(address: str) -> bool:
    """Return whether a server answers."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def measure_studio() -> None:
    """Print the median seconds of the studio's start, and the largest."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    os.environ["LC_ALL"] = "C.UTF-8"
    with tempfile.TemporaryDirectory() as folder:
        found = [seconds_of_studio(Path(folder)) for _ in range(REPEATS)]
    print("| what | median s | largest s |")
    print("|---|---|---|")
    for name in found[0]:
        values = [each[name] for each in found]
        print(f"| {name} | {statistics.median(values):.2f} | {max(values):.2f} |")


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--typos", action="store_true")
    parser.add_argument("--studio", action="store_true")
    arguments = parser.parse_args()
    if arguments.typos:
        measure_typos()
    elif arguments.studio:
        measure_studio()
    else:
        measure_commands()


if __name__ == "__main__":
    main()
