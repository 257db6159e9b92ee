"""Seconds and memory of the engine's fast path and of its fallback, from short prompts to long ones.

A group of samples of one prompt goes through each path, in a process of its own, in turns. CPU seconds count all
threads and hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
PASSIVE = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
PATHS = ("fast", "fallback")
LENGTHS = (64, 256, 1024, 4096, 8192, 16384)
FIGURES = {"prefill_s": "prefill s", "token_ms": "ms a token", "cache_mib": "cache MiB", "peak_mib": "peak MiB"}


def main() -> None:
    """Measure one cell, or all of them in processes of their own; print a table, or with `--json` one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), help="tokens of the prompt")
    parser.add_argument("--samples", type=int, default=8, help="of the prompt, decoded together")
    parser.add_argument("--new", type=int, default=32, help="tokens of each sample")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument(
        "--hidden", type=int, default=896, help="a multiple of 448: the heads are those of a 0.5B model"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each cell, in turns; the best one counts")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which a process has failed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--cell", nargs=2, metavar=("PATH", "FOLDER"), help="measure this path in this process")
    arguments = parser.parse_args()
    if min(arguments.lengths) < 1 or arguments.new < 2 or arguments.rounds < 1 or arguments.samples < 1:
        parser.error("--lengths, --rounds and --samples must be at least 1, --new at least 2")
    if arguments.cell:
        print(json.dumps(cell(arguments)))
        return
    with tempfile.TemporaryDirectory(prefix="prompts_") as place:
        write_model(Path(place), arguments)
        result = measured(arguments, Path(place))
    print(json.dumps(result, indent=1) if arguments.json else table(result))


def write_model(folder: Path, arguments: argparse.Namespace, *, vocabulary: int | None = None) -> None:
    """Write a random Qwen2 with the heads of the 0.5B model and, unless told otherwise, a small vocabulary."""
    import torch
    import work
    from transformers import Qwen2Config, Qwen2ForCausalLM

    work.write_tokenizer(folder)
    heads = arguments.hidden // 64
    config = Qwen2Config(
        vocab_size=vocabulary or work.VOCABULARY,
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 7,
        intermediate_size=arguments.hidden * 38 // 7,
        max_position_embeddings=2 * max(arguments.lengths) + arguments.new,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)


def measured(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return one row a length: the figures of both paths, and those of the fast path over the fallback's."""
    rows = []
    for length in arguments.lengths:
        runs: dict[str, list[dict[str, float]]] = {path: [] for path in PATHS}
        for _ in range(arguments.rounds):
            for path in PATHS:
                runs[path].append(_child(arguments, path, folder, length))
        best = {path: {name: min(run[name] for run in runs[path]) for name in FIGURES} for path in PATHS}
        ratios = {name: best["fast"][name] / best["fallback"][name] for name in FIGURES}
        difference = max(abs(a - b) for a, b in zip(*(runs[path][0]["first_logprobs"] for path in PATHS), strict=True))
        rows.append({"length": length, **best, "ratio": ratios, "first_logprob_difference": difference})
    return rows


def _child(arguments: argparse.Namespace, path: str, folder: Path, length: int) -> dict[str, Any]:
    """Return what a process that measures one cell printed.

    Raises:
        SystemExit: it failed; with the end of its output.
    """
    names = ("samples", "new", "dtype", "threads")
    sizes = [word for name in names for word in (f"--{name}", str(getattr(arguments, name)))]
    command = [sys.executable, __file__, "--cell", path, str(folder), "--lengths", str(length), *sizes]
    environment = os.environ | PASSIVE | {"OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=arguments.timeout
    )
    if done.returncode:
        raise SystemExit(f"{path} at {length} tokens ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


# ------------------------------------------------------------------ one cell, in its own process
class Watch:
    """CPU seconds of the engine's prefills and steps, and the largest cache that it held."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.cache_bytes = 0

    def wrap(self, owner: type, name: str) -> None:
        """Count the CPU time inside `owner.name`; look at the cache after it."""
        inner: Callable[..., Any] = vars(owner)[name]

        @functools.wraps(inner)
        def timed(batch: Any, *args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            try:
                return inner(batch, *args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - started
                self.cache_bytes = max(self.cache_bytes, batch.cache.num_bytes)

        setattr(owner, name, timed)


def cell(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and memory of one path at one length.

    A small group goes first. Peak memory is that of the process above what it held with the weights loaded.
    """
    import torch

    from trinity.engine.torch.batch import RunningBatch
    from trinity.utils.memory import keep_freed_memory

    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    watch = Watch()
    for name in ("admit", "step"):
        watch.wrap(RunningBatch, name)
    return asyncio.run(_generate(arguments, watch))


async def _generate(arguments: argparse.Namespace, watch: Watch) -> dict[str, Any]:
    from trinity.common.config.model import ModelConfig
    from trinity.engine.settings import EngineSettings
    from trinity.engine.torch.engine import TorchEngine

    path, folder = arguments.cell
    length = arguments.lengths[0]
    model = ModelConfig.model_validate({"model_path": folder, "max_model_len": length + arguments.new})
    settings = EngineSettings(
        model,
        max_num_seqs=arguments.samples,
        dtype=arguments.dtype,
        device="cpu",
        is_fast_allowed=path == "fast",
    )
    engine = TorchEngine(settings)
    await engine.prepare()
    sizes = {"n": arguments.samples, "ignore_eos": True, "sample_ids": [str(n) for n in range(arguments.samples)]}
    await engine.generate([3, 4, 5], max_tokens=2, min_tokens=2, **sizes)
    steps = (await engine.stats())["steps"]
    watch.seconds.clear()
    watch.cache_bytes = 0
    Path("/proc/self/clear_refs").write_text("5")
    held = memory_mib("VmRSS")
    prompt = [3 + (number * 7919) % 300 for number in range(length)]
    samples = await engine.generate(prompt, max_tokens=arguments.new, min_tokens=arguments.new, **sizes)
    assert all(sample.response_length == arguments.new for sample in samples), "every sample has its full length"
    steps = (await engine.stats())["steps"] - steps
    await engine.shutdown()
    return {
        "prefill_s": watch.seconds["admit"],
        "token_ms": 1e3 * watch.seconds["step"] / steps / arguments.samples,
        "cache_mib": watch.cache_bytes / 2**20,
        "peak_mib": memory_mib("VmHWM") - held,
        "first_logprobs": [float(sample.logprobs[0]) for sample in samples],
    }


def memory_mib(name: str) -> float:
    """Return a figure of the kernel about this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table: fast path, fallback, and the ratio."""
    lines = [f"| prompt | {' | '.join(FIGURES.values())} | worst ratio |", "|---" * (len(FIGURES) + 2) + "|"]
    for row in rows:
        cells = [
            f"{row['fast'][name]:.3g} / {row['fallback'][name]:.3g} = **{row['ratio'][name]:.2f}**" for name in FIGURES
        ]
        lines.append(f"| {row['length']} | {' | '.join(cells)} | {max(row['ratio'].values()):.2f} |")
    middle = statistics.median(max(row["ratio"].values()) for row in rows)
    return "\n".join([*lines, "", f"median of the worst ratios {middle:.2f}"])


if __name__ == "__main__":
    main()
