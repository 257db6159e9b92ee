"""CPU seconds and memory of the torch engine, beside itself without its prefix cache or beside vLLM.

Each kind of work goes through both sides, in processes of their own, in turns. CPU seconds count all threads and hardly
depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import prompts  # noqa: E402

from trinity.runtime.allocator import allocator_variables  # noqa: E402


@dataclass(frozen=True)
class Work:
    """Conversations that continue from turn to turn, all at once.

    Attributes:
        said: how it is called in the table.
        conversations: how many there are.
        first: tokens of the first prompt.
        turns: turns of each.
        samples: of each turn; the first one is continued.
        new: tokens of each sample.
        asked: tokens that are added before the next turn.
        layers: of the model.
        vocabulary: of the model; None: a small one.
    """

    said: str
    conversations: int
    first: int
    turns: int
    samples: int
    new: int
    asked: int
    layers: int = 4
    vocabulary: int | None = None


WORK = {
    "short": Work("32 prompts of 30 tokens, 8 samples", 32, 30, 1, 8, 48, 0),
    "long": Work("4 prompts of 1,500 tokens, 8 samples", 4, 1500, 1, 8, 32, 0),
    "turns": Work("8 conversations of 6 turns", 8, 200, 6, 1, 64, 60),
    "stream": Work("one stream of a 0.5B model", 1, 30, 1, 1, 64, 0, layers=24, vocabulary=151_936),
}
CACHES = ("with", "without")
ENGINES = ("with", "vllm")
FIGURES = ("cpu_s", "wall_s", "peak_mib", "process_mib")


def main() -> None:
    """Measure one cell, or all of them in processes of their own; print a table, or with `--json` one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", choices=tuple(WORK), help="all with vLLM, else all but the stream")
    parser.add_argument("--layers", type=int, help="of every model")
    parser.add_argument(
        "--hidden", type=int, default=896, help="a multiple of 448: the heads are those of a 0.5B model"
    )
    parser.add_argument("--conversations", type=int, help="of every work, instead of its own number")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--deterministic", action="store_true", help="as a run with `deterministic: true`")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vllm-python", metavar="P", help="beside vLLM's prefix cache, with this interpreter")
    parser.add_argument("--vllm-compiled", action="store_true", help="let vLLM compile the model")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each cell, in turns; the best one counts")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which a process has failed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--cell", nargs=2, metavar=("CACHE", "FOLDER"), help="measure the work in this process")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if arguments.cell:
        print(json.dumps(asyncio.run(cell(arguments))))
        return
    sides = ENGINES if arguments.vllm_python else CACHES
    chosen = arguments.work or [name for name in WORK if arguments.vllm_python or name != "stream"]
    result = {}
    with tempfile.TemporaryDirectory(prefix="engine_") as place:
        for name in chosen:
            work, folder = work_of(arguments, name), Path(place) / name
            sizes = {"hidden": arguments.hidden, "layers": arguments.layers or work.layers}
            prompts.write_model(
                folder, argparse.Namespace(**sizes, lengths=[length_of(work)], new=0), vocabulary=work.vocabulary
            )
            result[name] = measured(arguments, name, folder, sides)
            shutil.rmtree(folder)
    print(json.dumps(result, indent=1) if arguments.json else table(result))


def work_of(arguments: argparse.Namespace, name: str) -> Work:
    """Return the work of that name in the size that is asked for."""
    work = WORK[name]
    return dataclasses.replace(work, conversations=arguments.conversations or work.conversations)


def measured(arguments: argparse.Namespace, name: str, folder: Path, sides: tuple[str, str]) -> dict[str, Any]:
    """Return the best figures of both sides, what the cache found, and how far log-probabilities differ."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side in sides:
            runs[side].append(_child(arguments, name, side, folder))
    row: dict[str, Any] = {
        side: {figure: min(run[figure] for run in runs[side]) for figure in FIGURES} for side in sides
    }
    last = runs["with"][-1]
    row |= {"hit_frac": last["hit_tokens"] / last["lookup_tokens"], "cache_mib": last["cache_mib"]}
    if sides == CACHES:
        pairs = zip(*(runs[side][0]["logprobs"] for side in sides), strict=True)
        row["logprob_difference"] = max(abs(one - other) for one, other in pairs)
    return row


def _child(arguments: argparse.Namespace, name: str, side: str, folder: Path) -> dict[str, Any]:
    """Return what a process that measures one cell printed.

    Raises:
        SystemExit: it failed; with the end of its output.
    """
    how = ["--dtype", arguments.dtype, "--threads", str(arguments.threads)]
    if side == "vllm":
        work = json.dumps(dataclasses.asdict(work_of(arguments, name)))
        command = [arguments.vllm_python, str(HERE / "vllm_side.py"), str(folder), "--work", work, *how]
        command += ["--compiled"] if arguments.vllm_compiled else []
    else:
        command = [sys.executable, __file__, "--cell", side, str(folder), "--work", name, *how]
        command += ["--deterministic"] if arguments.deterministic else []
        command += ["--conversations", str(arguments.conversations)] if arguments.conversations else []
    environment = os.environ | prompts.PASSIVE | {"OMP_NUM_THREADS": str(arguments.threads)}
    environment |= {} if side == "vllm" else allocator_variables(environment)  # as `trinity run` does
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=arguments.timeout
    )
    if done.returncode:
        raise SystemExit(f"{name}, side {side}, ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


# ------------------------------------------------------------------ one cell, in its own process
def length_of(work: Work) -> int:
    """Return the tokens of the longest sequence."""
    return work.first + work.turns * work.new + (work.turns - 1) * work.asked


def text(length: int, seed: int) -> list[int]:
    """Return the tokens of a text."""
    return [3 + (number * 7919 + seed * 104_729) % 300 for number in range(length)]


async def cell(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds, memory and totals of one kind of work.

    A small request goes first. Peak memory is that of the process above what it held with the weights loaded.
    """
    import torch

    from trinity.common.config.model import ModelConfig
    from trinity.engine.settings import EngineSettings
    from trinity.engine.torch.engine import TorchEngine
    from trinity.runtime.collector import collect_seldom
    from trinity.utils.memory import keep_freed_memory

    collect_seldom()  # as in every process of a run
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    cache, folder = arguments.cell
    work = work_of(arguments, arguments.work[0])
    model = ModelConfig.model_validate({"model_path": folder, "max_model_len": length_of(work)})
    engine = TorchEngine(
        EngineSettings(
            model,
            max_num_seqs=64,
            dtype=arguments.dtype,
            device="cpu",
            is_deterministic=arguments.deterministic,
            has_prefix_cache=cache == "with",
        )
    )
    await engine.prepare()
    await engine.generate([3, 4, 5], max_tokens=2, min_tokens=2)
    Path("/proc/self/clear_refs").write_text("5")
    held, cpu, wall = prompts.memory_mib("VmRSS"), time.process_time(), time.perf_counter()
    names = [f"{number}" for number in range(work.conversations)]
    for name in names:
        await engine.join_round(name)
    found = await asyncio.gather(*(_talk(engine, work, name) for name in names))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    stats = await engine.stats()
    await engine.shutdown()
    return {
        "cpu_s": cpu,
        "wall_s": wall,
        "peak_mib": prompts.memory_mib("VmHWM") - held,
        "process_mib": prompts.memory_mib("VmHWM"),
        "hit_tokens": stats.get("prefix_hit_tokens", 0.0),
        "lookup_tokens": stats.get("prefix_lookup_tokens", 1.0),
        "cache_mib": stats.get("prefix_cache_bytes", 0.0) / 2**20,
        "logprobs": [logprob for one in found for logprob in one],
    }


async def _talk(engine: Any, work: Work, name: str) -> list[float]:
    """Return the log-probabilities of a conversation's samples, which have their full length."""
    history, logprobs = text(work.first, int(name)), []
    for turn in range(work.turns):
        ids = [f"{name}/{turn}/{index}" for index in range(work.samples)]
        sizes = {"n": work.samples, "max_tokens": work.new, "min_tokens": work.new, "ignore_eos": True}
        samples = await engine.generate(history, sample_ids=ids, participant=name, **sizes)
        logprobs += [float(value) for sample in samples for value in sample.logprobs]
        history = samples[0].tokens.tolist() + text(work.asked, 100 * turn + int(name))
    await engine.leave_round(name)
    return logprobs


# ------------------------------------------------------------------ the table
def table(result: dict[str, Any]) -> str:
    """Return the result as a Markdown table: the engine, the other side, and their ratio."""
    lines = [
        "| work | CPU s | wall s | peak MiB | process MiB | found | cache MiB | largest difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in result.items():
        other = "vllm" if "vllm" in row else "without"
        pairs = [(row["with"][figure], row[other][figure]) for figure in FIGURES]
        cells = [f"{one:.3g} / {two:.3g} = **{one / two:.2f}**" for one, two in pairs]
        difference = f"{row['logprob_difference']:.1e}" if "logprob_difference" in row else ""
        rest = f"{row['hit_frac']:.0%} | {row['cache_mib']:.3g} | {difference}"
        lines.append(f"| {WORK[name].said} | {' | '.join(cells)} | {rest} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
