"""What one device reaches of its limits: decoding, training, and the way of new weights to the engine.

Random models of 0.5B and 4B shape go through the engine and the trainer of a run. Limits are measured on the spot: a
copy of a large tensor for the bandwidth, a large bfloat16 product for the arithmetic. `--device cpu --tiny` takes the
same path with tiny shapes on a CPU; its figures say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import work

from trinity.common.config import Config
from trinity.common.experience import EID, Experience
from trinity.common.models.torch_engine.engine import TorchEngine
from trinity.common.models.torch_engine.settings import EngineSettings
from trinity.synchronizer.transport import MemoryTransport
from trinity.trainer.verl.worker import ActorWorker
from trinity.utils.device import compute_dtype, peak_memory_bytes, select_device, synchronize

PUBLISHED_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
"""Dense bfloat16 products of a card, from its data sheet, by a part of its name."""
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3-like model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int

    @property
    def attention_size(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of all layers."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def parameters(self) -> int:
        """Parameters that one token is multiplied with, the output layer included."""
        return self.layer_parameters + self.vocabulary * self.hidden

    def training_flops(self, tokens: int) -> float:
        """Return the arithmetic of forward and backward over one sequence: 6 a parameter and token, and attention.

        The causal half of the scores counts. What is computed twice to save memory does not.
        """
        return 6.0 * self.parameters * tokens + 6.0 * self.layers * self.attention_size * tokens**2

    def cache_bytes(self, element_size: int) -> int:
        """Return keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * element_size


SHAPES = {
    "0.5B": Shape(896, 24, 14, 2, 64, 4864, 151_936),
    "4B": Shape(2560, 36, 32, 8, 128, 9728, 151_936),
    "tiny": Shape(64, 2, 4, 2, 16, 128, 1024),
}


def write_model(shape: Shape, folder: Path, device: torch.device) -> None:
    """Write a random model of `shape`, made on `device`, with a tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    work.write_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            Qwen3ForCausalLM(config).save_pretrained(folder)
    finally:
        torch.set_default_dtype(before)


# ------------------------------------------------------------------------ limits
def seconds_of(work_: Callable[[], Any], device: torch.device, *, repeats: int = 5) -> float:
    """Return the median seconds of `work_` after one call that does not count."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        started = time.perf_counter()
        work_()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def bandwidth(device: torch.device, *, size_bytes: int) -> float:
    """Return the bytes a second that a copy reads and writes."""
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size_bytes / seconds_of(lambda: target.copy_(source), device)


def product_rate(device: torch.device, *, size: int, dtype: torch.dtype) -> float:
    """Return the operations a second of a square product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b), device)


def published_flops(device: torch.device, given: float | None) -> float | None:
    """Return the peak of the data sheet in operations a second, None if it is not known."""
    if given is not None:
        return given * 1e12
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((value * 1e12 for part, value in PUBLISHED_TFLOPS.items() if part in name), None)


# --------------------------------------------------------------------- the parts
def make_engine(folder: Path, device: torch.device, *, slots: int, length: int) -> TorchEngine:
    """Return an engine over the model in `folder`."""
    config = Config.model_validate({"model": {"model_path": str(folder), "max_model_len": length}})
    settings = EngineSettings(config.model, max_num_seqs=slots, device=device.type, memory_frac=0.5)
    return TorchEngine(settings)


async def decode(engine: TorchEngine, *, rows: int, new_tokens: int) -> dict[str, float]:
    """Return tokens and seconds of `rows` samples decoded together, the prefill of their prompt included."""
    prompt = [3 + number % 200 for number in range(PROMPT_TOKENS)]
    sizes = {"n": rows, "min_tokens": new_tokens, "max_tokens": new_tokens, "ignore_eos": True}
    await engine.generate(prompt, **(sizes | {"min_tokens": 4, "max_tokens": 4}))
    before = await engine.stats()
    samples = await engine.generate(prompt, **sizes)
    after = await engine.stats()
    assert all(sample.response_length == new_tokens for sample in samples), "every sample has its full length"
    tokens = after["generated_tokens"] - before["generated_tokens"]
    return {"tokens": tokens, "seconds": after["busy_s"] - before["busy_s"], "steps": after["steps"] - before["steps"]}


def decode_figures(
    shape: Shape, measured: dict[str, float], *, rows: int, new_tokens: int, limit_bytes_s: float, dtype: torch.dtype
) -> dict[str, float]:
    """Return tokens a second, the limit that reading weights and cache sets, and the share of it."""
    size = torch.empty((), dtype=dtype).element_size()
    cached = rows * (PROMPT_TOKENS + new_tokens / 2) * shape.cache_bytes(size)
    limit = rows * limit_bytes_s / (shape.parameters * size + cached)
    rate = measured["tokens"] / measured["seconds"]
    return {"rows": rows, "tokens_per_s": rate, "limit_tokens_per_s": limit, "share_of_limit": rate / limit}


def make_worker(folder: Path, device: torch.device, *, length: int, recompute: bool) -> ActorWorker:
    """Return a trainer back end over the model in `folder`."""
    actor = {"ppo_max_token_len_per_gpu": length}
    tree = {"actor_rollout_ref": {"model": {"enable_gradient_checkpointing": recompute}, "actor": actor}}
    values = {
        "model": {"model_path": str(folder), "max_model_len": length},
        "algorithm": {"algorithm_type": "grpo", "kl_loss_fn": "none", "optimizer": {"lr": 1e-6}},
        "trainer": {"use_dynamic_bsz": True, "trainer_config": tree},
    }
    return ActorWorker(Config.model_validate(values), tokenizer=None, total_steps=100, device=device.type)


def sequence(tokens: int) -> Experience:
    """Return a random rollout whose prompt is an eighth of it."""
    generator = torch.Generator().manual_seed(tokens)
    prompt = tokens // 8
    return Experience(
        EID(1, 0, 0),
        torch.randint(3, 200, (tokens,), generator=generator),
        prompt,
        logprobs=torch.full((tokens - prompt,), -5.0),
        advantages=torch.ones(tokens - prompt),
        reward=1.0,
        info={"model_version": 0},
    )


def train_figures(
    worker: ActorWorker, shape: Shape, *, tokens: int, rate: float, published: float | None
) -> dict[str, float | None]:
    """Return seconds a step over one sequence, and the shares of the measured and of the published peak."""
    experience = sequence(tokens)
    steps = iter(range(1, 100))
    seconds = seconds_of(lambda: worker.train_step([experience], next(steps)), worker.device, repeats=3)
    achieved = shape.training_flops(tokens) / seconds
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "tflops": achieved / 1e12,
        "mfu_of_measured": achieved / rate,
        "mfu_of_published": None if published is None else achieved / published,
        "peak_memory_gib": peak_memory_bytes(worker.device) / 2**30,
    }


async def sync_figures(engine: TorchEngine, worker: ActorWorker) -> dict[str, float]:
    """Return seconds to hold a copy of the trainer's weights and to take it into the engine, and their bytes."""
    transport, versions = MemoryTransport(), iter(range(1, 100))
    held, taken = [], []
    for _ in range(4):
        version = next(versions)
        synchronize(worker.device)
        started = time.perf_counter()
        transport.put(version, worker.weights(), copy=True)
        synchronize(worker.device)
        between = time.perf_counter()
        await engine.update_weights(transport.get(version), version=version)
        synchronize(worker.device)
        held.append(between - started)
        taken.append(time.perf_counter() - between)
        transport.drop_before(version + 1)
    size = sum(weight.numel() * weight.element_size() for weight in worker.weights().values())
    return {
        "hold_s": statistics.median(held[1:]),
        "take_s": statistics.median(taken[1:]),
        "trainer_bytes": float(size),
    }


async def engine_figures(
    engine: TorchEngine, worker: ActorWorker, shape: Shape, *, arguments: argparse.Namespace, limits: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of decoding and of weight synchronization."""
    await engine.prepare()
    decoded = []
    for rows in arguments.rows:
        measured = await decode(engine, rows=rows, new_tokens=arguments.new)
        decoded.append(
            decode_figures(
                shape,
                measured,
                rows=rows,
                new_tokens=arguments.new,
                limit_bytes_s=limits["bandwidth_bytes_s"],
                dtype=worker.dtype,
            )
        )
    sync = await sync_figures(engine, worker)
    await engine.shutdown()
    return {"decode": decoded, "sync": sync}


def measure(
    name: str, device: torch.device, *, arguments: argparse.Namespace, limits: dict[str, Any]
) -> dict[str, Any]:
    """Return all figures of one shape; the device's memory is free again afterwards."""
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory(prefix="gpu_benchmark_") as place:
        folder = Path(place)
        write_model(shape, folder, device)
        worker = make_worker(folder, device, length=max(arguments.lengths), recompute=name == "4B")
        peaks = {"rate": limits["product_flops"], "published": limits["published_flops"]}
        train = [train_figures(worker, shape, tokens=tokens, **peaks) for tokens in arguments.lengths]
        engine = make_engine(folder, device, slots=max(arguments.rows), length=PROMPT_TOKENS + arguments.new)
        figures = asyncio.run(engine_figures(engine, worker, shape, arguments=arguments, limits=limits))
    del worker, engine
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return {"parameters": shape.parameters, "train": train} | figures


def main() -> None:
    """Measure limits and shapes; print a table, or with `--json` one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=("0.5B", "4B"), default=["0.5B", "4B"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[4096, 16384], help="tokens of a training step")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 32, 256], help="samples decoded together")
    parser.add_argument("--new", type=int, default=256, help="tokens decoded of each sample")
    parser.add_argument("--peak-tflops", type=float, help="published bfloat16 peak, for cards that are not listed")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: the same path, figures without meaning")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.lengths, arguments.rows, arguments.new = [64, 128], [1, 4], 8
    device = select_device(arguments.device)
    dtype = compute_dtype("auto", device)
    limits = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "bandwidth_bytes_s": bandwidth(device, size_bytes=2**24 if arguments.tiny else 2**31),
        "product_flops": product_rate(device, size=256 if arguments.tiny else 8192, dtype=dtype),
        "published_flops": published_flops(device, arguments.peak_tflops),
    }
    names = ["tiny"] if arguments.tiny else arguments.shapes
    shapes = {name: measure(name, device, arguments=arguments, limits=limits) for name in names}
    result = {"limits": limits, "shapes": shapes}
    print(json.dumps(result, indent=1) if arguments.json else table(result))


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
        lines.append(f"  sync: hold {sync['hold_s'] * 1e3:.1f} ms, take {sync['take_s'] * 1e3:.1f} ms")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
