"""Decoding, training and weight synchronization of a random model on one device, measured."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import work
from gpu_limits import Shape, seconds_of

from trinity.catalogue import BUILT_IN
from trinity.common.config import Config
from trinity.common.config.resolve import resolve
from trinity.common.config.tree import Tree
from trinity.common.experience import EID, Experience
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.synchronizer.broadcast import BroadcastTransport
from trinity.synchronizer.transport import MemoryTransport
from trinity.trainer.verl.worker import ActorWorker
from trinity.utils.device import peak_memory_bytes, synchronize

PROMPT_TOKENS = 64
REPEATS = 4


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


# --------------------------------------------------------------------- decoding
def make_engine(folder: Path, device: torch.device, *, slots: int, length: int) -> TorchEngine:
    """Return an engine over the model in `folder`."""
    config = Config.model_validate({"model": {"model_path": str(folder), "max_model_len": length}})
    settings = EngineSettings(config.model, max_num_seqs=slots, device=device.type, memory_frac=0.5)
    return TorchEngine(settings)


async def decode(engine: TorchEngine, *, rows: int, new_tokens: int) -> dict[str, float]:
    """Return tokens and seconds of `rows` samples decoded together, the prefill of their prompt included."""
    prompt = [3 + number % 200 for number in range(PROMPT_TOKENS)]
    sizes = {"n": rows, "ignore_eos": True}
    await engine.generate(prompt, **sizes, min_tokens=4, max_tokens=4)
    started = time.perf_counter()
    samples = await engine.generate(prompt, **sizes, min_tokens=new_tokens, max_tokens=new_tokens)
    seconds = time.perf_counter() - started
    assert all(sample.response_length == new_tokens for sample in samples), "every sample has its full length"
    return {"tokens": float(rows * new_tokens), "seconds": seconds}


def decode_figures(
    shape: Shape, measured: dict[str, float], *, rows: int, new_tokens: int, limit_bytes_s: float, dtype: torch.dtype
) -> dict[str, float]:
    """Return tokens a second, the limit that reading weights and cache sets, and the share of it."""
    size = torch.empty((), dtype=dtype).element_size()
    cached = rows * (PROMPT_TOKENS + new_tokens / 2) * shape.cache_bytes(size)
    limit = rows * limit_bytes_s / (shape.parameters * size + cached)
    rate = measured["tokens"] / measured["seconds"]
    return {"rows": rows, "tokens_per_s": rate, "limit_tokens_per_s": limit, "share_of_limit": rate / limit}


# --------------------------------------------------------------------- training
def make_worker(folder: Path, device: torch.device, *, length: int, recompute: bool) -> ActorWorker:
    """Return a trainer back end over the model in `folder`."""
    actor = {"ppo_max_token_len_per_gpu": length}
    tree = {"actor_rollout_ref": {"model": {"enable_gradient_checkpointing": recompute}, "actor": actor}}
    values = {
        "mode": "train",
        "model": {"model_path": str(folder), "max_model_len": length},
        "buffer": {"train_batch_size": 8},
        "algorithm": {"algorithm_type": "grpo", "kl_loss_fn": "none", "optimizer": {"lr": 1e-6}},
        "trainer": {"use_dynamic_bsz": True, "trainer_config": tree},
    }
    config, _, _ = resolve(Config.model_validate(values), Tree(values), catalogue=BUILT_IN, cwd=folder)
    return ActorWorker(config, tokenizer=None, total_steps=100, device=device.type)


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
    if worker.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(worker.device)
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


# ------------------------------------------------------------------ weight sync
async def memory_sync(engine: TorchEngine, worker: ActorWorker) -> dict[str, float]:
    """Return seconds until the engine has taken the trainer's live weights, and to hold a copy of them first.

    A run in one process lends the live weights; a copy is held where the engine may ask for them later.
    """
    found: dict[str, float] = {}
    for name, is_copied in (("lent_s", False), ("copied_s", True)):
        transport, seconds = MemoryTransport(), []
        for version in range(1, REPEATS + 1):
            synchronize(worker.device)
            started = time.perf_counter()
            transport.put(version, worker.weights(), copy=is_copied)
            await engine.update_weights(transport.get(version), version=version)
            synchronize(worker.device)
            seconds.append(time.perf_counter() - started)
            transport.drop_before(version + 1)
        found[name] = statistics.median(seconds[1:])
        found["trainer_bytes"] = float(sum(w.numel() * w.element_size() for w in worker.weights().values()))
    return found


@contextmanager
def receiver(device: torch.device) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that receives what it is told to, and the back end: NCCL where it has a GPU of its own."""
    has_two = device.type == "cuda" and torch.cuda.device_count() > 1
    env = dict(os.environ)
    if has_two:
        shown = env.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        env["CUDA_VISIBLE_DEVICES"] = shown[1]
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("gpu_receiver.py"))],
        env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process, "nccl" if has_two else "gloo"
    finally:
        process.kill()
        process.wait()


def collective_sync(worker: ActorWorker) -> dict[str, Any]:
    """Return seconds to publish a version for a broadcast, and until another process has received it."""
    with receiver(worker.device) as (process, backend):
        assert process.stdin is not None and process.stdout is not None
        transport = BroadcastTransport("benchmark", backend=backend)
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the receiving process did not start")
            started = time.perf_counter()
            ticket = transport.put(1, worker.weights(), copy=True)
            published_s = time.perf_counter() - started
            process.stdin.write(ticket.as_json() + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            transport.close()
    if not answer:
        raise RuntimeError("the receiving process ended without an answer")
    return {"backend": backend, "published_s": published_s, "bytes": ticket.num_bytes} | json.loads(answer)
