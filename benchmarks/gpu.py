"""What one device reaches of its limits: decoding, training, and the way of new weights to the engine.

Random models go through the engine and the trainer of a run. Limits are measured on the spot: a copy of a large tensor
for the bandwidth, a large bfloat16 product for the arithmetic. A figure that cannot be taken, for want of memory for
one, is told and does not hide the others. `--device cpu --tiny` takes the same path with tiny shapes on a CPU; its
figures say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from gpu_limits import SHAPES, bandwidth, product_rate, published_flops
from gpu_parts import (
    PROMPT_TOKENS,
    collective_sync,
    decode,
    decode_figures,
    make_engine,
    make_worker,
    memory_sync,
    train_figures,
    write_model,
)

from trinity.engine.torch.engine import TorchEngine
from trinity.trainer.verl.worker import ActorWorker
from trinity.utils.device import compute_dtype, is_out_of_memory, select_device, total_memory_bytes

GOALS = {"decode": 0.70, "mfu": 0.40, "sync": 0.2}
"""Share of the bandwidth limit; share of the published (else measured) peak; seconds."""
RECOMPUTED = ("1.7B", "4B")
IN_MEMORY = Path("/dev/shm")


class Figures:
    """What has been measured, in a file after every figure.

    Args:
        file: where it is written; None: nowhere.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.values: dict[str, Any] = {"limits": {}, "shapes": {}, "goals": [], "problems": []}

    def write(self) -> None:
        """Write the file again."""
        if self.file is not None:
            aside = self.file.with_name(f".{self.file.name}.new")
            aside.write_text(json.dumps(self.values, indent=1))
            os.replace(aside, self.file)

    def take(self, name: str, work: Callable[[], Any], *, keep: Callable[[Any], None]) -> Any:
        """Return what `work` gives and `keep` it; None, and a problem of that name, where it fails."""
        try:
            found = work()
            keep(found)
        # One figure must not hide the others, whatever is wrong with it.
        except Exception as error:  # noqa: BLE001
            self.values["problems"].append(f"{name}: {type(error).__name__}: {str(error)[:600]}")
            if not isinstance(error, MemoryError) and not is_out_of_memory(error):
                print(f"{name} failed", file=sys.stderr)
                sys.excepthook(type(error), error, error.__traceback__)
            found = None
        self.write()
        return found

    def goal(self, name: str, value: float, goal: float, *, unit: str, at_least: bool) -> None:
        """Put a figure beside its goal."""
        is_met = value >= goal if at_least else value <= goal
        sign = ">=" if at_least else "<="
        self.values["goals"].append(
            {"name": name, "value": value, "goal": goal, "unit": unit, "sign": sign, "is_met": is_met}
        )


class Measure:
    """The figures of one shape.

    Args:
        name: of the shape.
        device: where it computes.
        arguments: of the command line.
        figures: gets them.
    """

    def __init__(self, name: str, device: torch.device, *, arguments: argparse.Namespace, figures: Figures) -> None:
        self.name, self.shape = name, SHAPES[name]
        self.device, self.arguments, self.figures = device, arguments, figures
        self.found: dict[str, Any] = {"parameters": self.shape.parameters, "decode": [], "train": [], "sync": {}}
        figures.values["shapes"][name] = self.found

    def run(self, folder: Path) -> None:
        """Take all of them over a model in `folder`."""
        asyncio.run(self._run(folder))

    async def _run(self, folder: Path) -> None:
        figures, arguments, made = self.figures, self.arguments, {}
        write_model(self.shape, folder, self.device)
        _free(self.device)
        slots, length = max(arguments.rows), PROMPT_TOKENS + arguments.new
        engine = make_engine(folder, self.device, slots=slots, length=length)
        await engine.prepare()
        await self._decode(engine)
        recompute = self.name in RECOMPUTED
        figures.take(
            f"{self.name} trainer",
            lambda: make_worker(folder, self.device, length=max(arguments.lengths), recompute=recompute),
            keep=lambda worker: made.update(worker=worker),
        )
        if "worker" in made:
            self._train(made["worker"])
            await self._sync(engine, made["worker"])
        await engine.shutdown()

    async def _decode(self, engine: TorchEngine) -> None:
        limit, dtype = self.figures.values["limits"]["bandwidth_bytes_s"], compute_dtype("auto", self.device)
        for rows in self.arguments.rows:
            sizes = {"rows": rows, "new_tokens": self.arguments.new}
            measured = await _caught(decode(engine, **sizes))

            def figures(measured: Any = measured, sizes: dict[str, int] = sizes) -> dict[str, float]:
                found = _given(measured)
                return decode_figures(self.shape, found, limit_bytes_s=limit, dtype=dtype, **sizes)

            row = self.figures.take(f"{self.name} decode {rows}", figures, keep=self.found["decode"].append)
            if row:
                name = f"{self.name} decode of {rows} rows, of the bandwidth limit"
                self.figures.goal(name, row["share_of_limit"], GOALS["decode"], unit="of it", at_least=True)

    def _train(self, worker: ActorWorker) -> None:
        limits = self.figures.values["limits"]
        peaks = {"rate": limits["product_flops"], "published": limits["published_flops"]}
        for tokens in self.arguments.lengths:
            row = self.figures.take(
                f"{self.name} train {tokens}",
                lambda tokens=tokens: train_figures(worker, self.shape, tokens=tokens, **peaks),
                keep=self.found["train"].append,
            )
            if row:
                share = row["mfu_of_published"] or row["mfu_of_measured"]
                name = f"{self.name} MFU at {tokens} tokens"
                self.figures.goal(name, share, GOALS["mfu"], unit="of the peak", at_least=True)
            _free(self.device)

    async def _sync(self, engine: TorchEngine, worker: ActorWorker) -> None:
        keep = self.found["sync"].update
        measured = await _caught(memory_sync(engine, worker))
        found = self.figures.take(f"{self.name} sync", lambda: _given(measured), keep=keep)
        if found:
            name = f"{self.name} sync in memory"
            self.figures.goal(name, found["lent_s"], GOALS["sync"], unit="s", at_least=False)
        if self.arguments.collective:
            found = self.figures.take(
                f"{self.name} collective sync",
                lambda: collective_sync(worker),
                keep=lambda values: keep({"collective": values}),
            )
            if found:
                name, seconds = f"{self.name} sync by {found['backend']}", found["published_s"] + found["received_s"]
                self.figures.goal(name, seconds, GOALS["sync"], unit="s", at_least=False)
        self.figures.write()


async def _caught(work: Any) -> Any:
    """Return the result of `work`, or the error that ended it."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001  told by the figure that it was for
        return error


def _given(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return found


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def place_for(shape_bytes: int) -> str | None:
    """Return where a model of that size is written: memory where there is room for it, else the usual place."""
    try:
        return str(IN_MEMORY) if shutil.disk_usage(IN_MEMORY).free > 2 * shape_bytes else None
    except OSError:
        return None


def limits_of(device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the device gives."""
    dtype = compute_dtype("auto", device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "bandwidth_bytes_s": bandwidth(device, size_bytes=2**24 if arguments.tiny else 2**31),
        "product_flops": product_rate(device, size=256 if arguments.tiny else 8192, dtype=dtype),
        "published_flops": published_flops(device, arguments.peak_tflops),
    }


def parsed() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=("0.5B", "1.7B", "4B"), default=["0.5B", "4B"])
    parser.add_argument("--first-that-fits", action="store_true", help="only the first shape that the memory holds")
    parser.add_argument("--lengths", nargs="+", type=int, default=[4096, 16384], help="tokens of a training step")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 32, 256], help="samples decoded together")
    parser.add_argument("--new", type=int, default=256, help="tokens decoded of each sample")
    parser.add_argument("--peak-tflops", type=float, help="published bfloat16 peak, for cards that are not listed")
    parser.add_argument("--collective", action="store_true", help="also a sync by broadcast to another process")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: the same path, figures without meaning")
    parser.add_argument("--out", type=Path, help="file that gets every figure as it is taken")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.lengths, arguments.rows, arguments.new = [64, 128], [1, 4], 8
        arguments.shapes, arguments.collective = ["tiny"], True
    return arguments


def main() -> int:
    """Measure limits and shapes; print a table, or with `--json` one object; return 1 if a figure is missing."""
    arguments = parsed()
    figures = Figures(arguments.out)
    device = select_device(arguments.device)
    names = arguments.shapes
    if arguments.first_that_fits:
        fitting = [name for name in names if SHAPES[name].memory_bytes < total_memory_bytes(device)]
        names = fitting[:1] or names[-1:]
    figures.values["limits"] = limits_of(device, arguments)
    figures.write()
    for name in names:
        measure = Measure(name, device, arguments=arguments, figures=figures)
        with tempfile.TemporaryDirectory(prefix="gpu_benchmark_", dir=place_for(2 * measure.shape.parameters)) as place:
            figures.take(name, lambda measure=measure, place=place: measure.run(Path(place)), keep=lambda _: None)
        _free(device)
    print(json.dumps(figures.values, indent=1) if arguments.json else table(figures.values))
    return int(bool(figures.values["problems"]))


def table(result: dict[str, Any]) -> str:
    """Return the result as lines of text."""
    limits = result["limits"]
    lines = [
        f"{limits['device']}, {limits['dtype']}: copy {limits['bandwidth_bytes_s'] / 1e9:.0f} GB/s, "
        f"product {limits['product_flops'] / 1e12:.1f} TFLOP/s"
    ]
    for name, figures in result["shapes"].items():
        lines.append(f"{name}: {figures['parameters'] / 1e9:.3f} G parameters a token")
        for row in figures["decode"]:
            lines.append(
                f"  decode {row['rows']:4d} rows: {row['tokens_per_s']:10.0f} tokens/s, "
                f"{row['share_of_limit']:.2f} of the bandwidth limit {row['limit_tokens_per_s']:.0f}"
            )
        for row in figures["train"]:
            share = row["mfu_of_published"]
            published = "" if share is None else f", {share:.2f} of the data sheet's"
            lines.append(
                f"  train {row['tokens']:6d} tokens: {row['tokens_per_s']:10.0f} tokens/s, {row['tflops']:.1f} TFLOP/s"
                f", MFU {row['mfu_of_measured']:.2f} of the measured product{published}, "
                f"{row['peak_memory_gib']:.1f} GiB"
            )
        sync = figures["sync"]
        if "lent_s" in sync:
            lines.append(f"  sync: {sync['lent_s'] * 1e3:.1f} ms, with a copy held {sync['copied_s'] * 1e3:.1f} ms")
        if "collective" in sync:
            other = sync["collective"]
            lines.append(
                f"  sync by {other['backend']}: published in {other['published_s'] * 1e3:.1f} ms, "
                f"received in {other['received_s'] * 1e3:.1f} ms"
            )
    return "\n".join([*lines, *(f"not measured: {problem}" for problem in result["problems"])])


if __name__ == "__main__":
    sys.exit(main())
