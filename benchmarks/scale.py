"""What many engines cost and give: weight sync, scheduling, the store, and a simulated run on 1,024 engines.

The first three are measured on this machine. The simulation takes latencies from `data/latencies.json`: `recorded`, the
samples of a run of the torch engine (`record` takes them again), and `heavy tail`, a log-normal distribution.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scale_simulation import Outcome, Plan, Simulation

from trinity.explorer.pacing import OverRollout

DATA = Path(__file__).parent / "data" / "latencies.json"
PARTS = ("weights", "scheduler", "store", "pages", "simulation")
PAGED_ROWS = 1_000_000
RUNNERS = (1, 16, 256)
DESIGN_ROWS_PER_S = 5000
MEAN_S = 20.0
HEAVY_SIGMA = 1.2
HEAVY_CAP = 20.0
IN_FLIGHT: dict[str, Any] = {"style": "fully_async", "in_flight": True, "max_inflight": 3, "runners_per_engine": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "fixed, sync_offset 1": {"offset": 1},
    "dynamic_by_explorer, over_rollout 0.05": {"style": "dynamic_by_explorer", "over_rollout": OverRollout(0.05, 0.0)},
    "dynamic_by_explorer, over_rollout 0.2": {"style": "dynamic_by_explorer", "over_rollout": OverRollout(0.2, 0.0)},
    "dynamic_by_explorer, interval 2": {"style": "dynamic_by_explorer", "interval": 2},
    "dynamic_by_trainer, max_staleness 2": {"style": "dynamic_by_trainer", "max_staleness": 2},
    "fully_async, max_staleness 1": {"style": "fully_async", "max_staleness": 1},
    "fully_async, max_staleness 2": IN_FLIGHT | {"in_flight": False, "max_staleness": 2},
    "fully_async, max_staleness 4": {"style": "fully_async", "max_staleness": 4, "max_inflight": 4},
    "update_in_flight, max_staleness 1": IN_FLIGHT | {"max_staleness": 1},
    "update_in_flight, max_staleness 2": IN_FLIGHT | {"max_staleness": 2},
    "update_in_flight, max_staleness 2, train 15 s": IN_FLIGHT | {"max_staleness": 2, "train_s": 15.0},
    "update_in_flight, max_staleness 2, train 30 s": IN_FLIGHT | {"max_staleness": 2, "train_s": 30.0},
    "update_in_flight, max_staleness 3, train 30 s": IN_FLIGHT
    | {"max_staleness": 3, "max_inflight": 4, "train_s": 30.0},
}
Row = dict[str, Any]


def draws(values: Sequence[float]) -> Callable[[random.Random], float]:
    """Return what draws from recorded latencies, scaled to a mean of `MEAN_S` seconds."""
    scale = MEAN_S * len(values) / sum(values)
    scaled = [value * scale for value in values]
    return lambda source: scaled[int(source.random() * len(scaled))]


def heavy_tail(number: int) -> list[float]:
    """Return draws of a log-normal distribution of mean about 1, cut at `HEAVY_CAP`."""
    source = random.Random(1)
    return [min(math.exp(source.gauss(-(HEAVY_SIGMA**2) / 2, HEAVY_SIGMA)), HEAVY_CAP) for _ in range(number)]


def simulate(plan: Plan, settings: dict[str, dict[str, Any]], latencies: dict[str, list[float]]) -> list[Row]:
    """Return one row for each distribution and setting."""
    rows = []
    for kind, values in latencies.items():
        for name, changes in settings.items():
            rows.append(
                {"latencies": kind, "setting": name}
                | summary(Simulation(replace(plan, **changes), draws(values)).run(), steps=plan.steps)
            )
    return rows


def summary(outcome: Outcome, *, steps: int) -> Row:
    """Return the figures of a simulated run."""
    ages = outcome.staleness
    return {
        "step_s": outcome.wall_s / steps,
        "engines": outcome.engine_frac,
        "wasted": outcome.wasted_frac,
        "weights": outcome.weights_frac,
        "trainer": outcome.trainer_frac,
        "staleness_mean": sum(ages) / len(ages),
        "staleness_max": max(ages),
        "tasks_lost": outcome.tasks_lost / (outcome.tasks_lost + len(ages)),
    }


def measure(
    parts: Sequence[str], folder: Path, *, is_tiny: bool, rows: int = 0, url: str | None = None
) -> dict[str, Any]:
    """Return the figures of the parts; `is_tiny` takes the same path with sizes that say nothing.

    With `rows` the store is measured on histories of a hundredth and a tenth of them and of all, and the pages of the
    viewer on a log of so many, in SQLite or in the PostgreSQL server at `url`.
    """
    import scale_pages
    import scale_parts
    import scale_rows

    found: dict[str, Any] = {}
    if "weights" in parts:
        sizes = {"megabytes": 8, "repeats": 1} if is_tiny else {"megabytes": 256, "repeats": 3}
        found["weights"] = scale_parts.weight_sync(folder / "job", **sizes)
    if "scheduler" in parts:
        number = 64 if is_tiny else 2048
        found["scheduler"] = scale_parts.scheduling(folder / "quickstart", tasks=number, runners=RUNNERS)
    if "store" in parts:
        sizes = {"steps": 2, "rows": 64} if is_tiny else {"steps": 16, "rows": 512}
        found["store"] = scale_parts.store_rows(folder, **sizes)
        # Longer: only one of the two works on the first batch and on the last one.
        found["sides"] = scale_parts.store_sides(
            folder, repeats=1 if is_tiny else 7, **{**sizes, "steps": 3 * sizes["steps"]}
        )
    if "store" in parts and rows:
        sizes = [rows // 100, rows // 10, rows]
        found["history"] = scale_rows.histories(folder, rows=sizes, repeats=1 if is_tiny else 20, url=url)
    if "pages" in parts:
        sizes = {"rows": 640, "repeats": 2} if is_tiny else {"rows": rows or PAGED_ROWS, "repeats": 20}
        found["pages"] = scale_pages.pages(folder, url=url, **sizes)
    if "simulation" in parts:
        plan = Plan(engines=8, batch_size=32, start=1, steps=3, end=2) if is_tiny else Plan()
        found["simulation"] = simulate(plan, SETTINGS, json.loads(DATA.read_text())["seconds"])
    return found


def record(folder: Path, *, number: int) -> None:
    """Take the latencies of the torch engine again, and write them and the heavy tail to `data/latencies.json`."""
    import scale_parts

    recorded = scale_parts.latencies(folder, number=number)
    kinds = {"recorded": recorded, "heavy tail": heavy_tail(number)}
    document = {
        "about": "seconds a sample; recorded: the quickstart's untrained model, torch engine on a CPU, 32 at once; "
        f"heavy tail: log-normal, sigma {HEAVY_SIGMA}, cut at {HEAVY_CAP:g} times the mean",
        "in_means": {
            name: {k: round(v, 2) for k, v in scale_parts.described(each).items()} for name, each in kinds.items()
        },
        "seconds": {name: [round(value, 4) for value in each] for name, each in kinds.items()},
    }
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(document) + "\n")


def table(found: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = []
    if "weights" in found:
        heads = "transport | publish s | take s | GB/s | GB a CPU second | bytes moved"
        lines += [f"| {heads} |", "|---|---|---|---|---|---|"]
        columns = ("publish_s", "take_s", "gb_per_s", "gb_per_cpu_s", "moved")
        for row in found["weights"]:
            lines.append(f"| {row['transport']} | {' | '.join(f'{row[name]:.2f}' for name in columns)} |")
    if "scheduler" in found:
        lines += ["", "| runners | us a task | CPU us a task |", "|---|---|---|"]
        lines += [
            f"| {r['runners']} | {r['us_per_task']:.0f} | {r['cpu_us_per_task']:.0f} |" for r in found["scheduler"]
        ]
    if "store" in found:
        row = found["store"]
        lines += [
            "",
            f"| rows of {row['payload_bytes']} bytes | append | claim | commit | all three |",
            "|---|---|---|---|---|",
        ]
        for unit, name in (("s", "a second"), ("cpu_s", "a CPU second")):
            each = [row[f"{part}_per_{unit}"] for part in ("append", "claim", "commit", "all")]
            lines.append(f"| {name} | {' | '.join(f'{value:,.0f}' for value in each)} |")
            lines.append(
                f"| over {DESIGN_ROWS_PER_S} | {' | '.join(f'{value / DESIGN_ROWS_PER_S:.2f}' for value in each)} |"
            )
        sides = found["sides"]
        each_s, least, most = (f"{sides[name]:,.0f}" for name in ("per_s", "least_per_s", "most_per_s"))
        of_goal = f"{sides['per_s'] / DESIGN_ROWS_PER_S:.2f} of the goal"
        lines += ["", f"Two processes: {each_s} rows a second ({least} to {most}), {of_goal}."]
    if "history" in found:
        from scale_rows import table as history_table

        lines += ["", *history_table(found["history"])]
    if "pages" in found:
        from scale_pages import table as page_table

        lines += ["", *page_table(found["pages"])]
    if "simulation" in found:
        heads = (
            "latencies | setting | s a step | engines | wasted | take weights | trainer | staleness mean (max) | lost"
        )
        lines += ["", f"| {heads} |", "|---|---|---|---|---|---|---|---|---|"]
        lines += [
            f"| {r['latencies']} | {r['setting']} | {r['step_s']:.1f} | {r['engines']:.2f} | {r['wasted']:.2f} | "
            f"{r['weights']:.2f} | {r['trainer']:.2f} | {r['staleness_mean']:.2f} ({r['staleness_max']}) | "
            f"{r['tasks_lost']:.2f} |"
            for r in found["simulation"]
        ]  # fmt: skip
    return "\n".join(lines).strip()


def plot(rows: list[Row], path: Path) -> None:
    """Write utilisation and staleness of every simulated setting as bars, one column of plots a distribution."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(row["latencies"] for row in rows))
    figure, grid = pyplot.subplots(2, len(kinds), figsize=(6 * len(kinds), 6), sharey="row", sharex=True, squeeze=False)
    for column, kind in enumerate(kinds):
        own = [row for row in rows if row["latencies"] == kind]
        names, places = [row["setting"] for row in own], range(len(own))
        above, below = grid[0][column], grid[1][column]
        above.bar(places, [row["engines"] for row in own], label="engines, kept")
        above.bar(
            places, [row["wasted"] for row in own], bottom=[row["engines"] for row in own], label="engines, wasted"
        )
        above.plot(places, [row["trainer"] for row in own], "k_", markersize=14, label="trainer")
        below.bar(places, [row["staleness_mean"] for row in own], label="mean")
        below.plot(places, [row["staleness_max"] for row in own], "k_", markersize=14, label="max")
        above.set_title(kind)
        below.set_xticks(places, names, rotation=60, ha="right", fontsize=8)
    grid[0][0].set_ylabel("share of the time")
    grid[1][0].set_ylabel("staleness (training steps)")
    grid[0][0].legend(fontsize=8)
    grid[1][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Measure and simulate what was asked for, and print it."""
    from trinity.runtime.collector import collect_seldom

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}, or record; all but record if none is given")
    parser.add_argument("--tiny", action="store_true", help="the same path with sizes that say nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="where the plot of the simulation goes")
    parser.add_argument("--rows", type=float, default=0, help="rows of the longest history of store, 1e7; of pages")
    parser.add_argument("--url", help="PostgreSQL server for --rows and pages; else SQLite")
    parser.add_argument("--samples", type=int, default=2048, help="latencies that record takes")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - {*PARTS, "record"}
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join((*PARTS, 'record'))}")
    os.environ["OMP_NUM_THREADS"] = "1"
    collect_seldom()  # as in every process of a run
    with tempfile.TemporaryDirectory(prefix="scale") as folder:
        if "record" in arguments.parts:
            record(Path(folder), number=arguments.samples)
            return
        sizes = {"rows": int(arguments.rows), "url": arguments.url}
        found = measure(arguments.parts or PARTS, Path(folder), is_tiny=arguments.tiny, **sizes)
    if arguments.plot is not None:
        plot(found["simulation"], arguments.plot)
    print(json.dumps(found) if arguments.json else table(found))


if __name__ == "__main__":
    main()
