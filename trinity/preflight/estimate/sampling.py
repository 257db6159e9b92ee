"""The memory of one engine: weights, keys and values, passes.

Dimension key: S = sequences at once, P = prompt tokens, R = response tokens, V = vocabulary, b = bytes of a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trinity.common.config.resolved import num_explored
from trinity.preflight.estimate.limits import (
    BLOCK_TOKENS,
    CPU_CACHE_FRAC,
    LEAST_COMPILED,
    LEAST_VLLM_CACHE,
    MLP_ROWS,
    PREFILL_TOKENS,
    WIDTH_STEP,
    cpu_flags,
    machine_bytes,
)
from trinity.preflight.estimate.parts import BOUND, MEASURED, MemoryPart, millions, small, working
from trinity.preflight.estimate.work import engine_dtype_bytes, lengths_of, sequences_at_once, steps_of_version

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.preflight.estimate.sizes import ModelSizes

FLOAT32 = 4
LOGITS_AT_ONCE = 5  # logits, scaled, their logarithms, probabilities and their running sum
COMPILED_AT_ONCE = 2


def torch_parts(config: Config, sizes: ModelSizes, *, is_gpu: bool) -> Iterator[MemoryPart]:
    """Yield what the engine of this project holds."""
    width = engine_dtype_bytes(config.explorer.rollout_model.dtype, is_gpu=is_gpu)
    whole = lengths_of(config).whole
    rule = f"{width} bytes x {millions(sizes.num_parameters)} parameters"
    yield MemoryPart("engine weights", sizes.num_parameters * width, rule=rule)
    if sizes.is_own and sizes.is_tied and not is_gpu and _packs(width):
        rule = f"{width} bytes x {millions(sizes.embedding)}, laid out for products"
        yield working("engine output layer", sizes.embedding * width, rule)
    yield working("engine rotation tables", 2 * whole * sizes.head_size * width, "cosine and sine of every position")
    yield from _caches(config, sizes, width=width, is_gpu=is_gpu)
    yield from _passes(config, sizes, width=width, is_gpu=is_gpu)


def token_bytes(sizes: ModelSizes, *, width: int) -> int:
    """Return the bytes of the keys and values of a token."""
    return 2 * sizes.layers * sizes.key * width


def uses_kernels(config: Config, sizes: ModelSizes) -> bool:
    """Return whether compiled kernels compute with a model on a CPU."""
    return not config.deterministic and sizes.num_parameters >= LEAST_COMPILED


def _caches(config: Config, sizes: ModelSizes, *, width: int, is_gpu: bool) -> Iterator[MemoryPart]:
    lengths, (slots, rows), of_token = lengths_of(config), sequences_at_once(config), token_bytes(sizes, width=width)
    is_fixed, shares = config.deterministic, sizes.is_own and not config.deterministic
    if is_fixed:
        rows, length = slots, lengths.whole
    else:
        rows, length = _grown(rows, slots), _width(lengths.response if shares else lengths.whole, lengths.whole)
    rule = f"{rows} sequences x {length} positions x {of_token} bytes"
    yield working("KV cache", rows * length * of_token, rule, how=COMPUTED_OR_BOUND[is_fixed])
    if shares:
        prompts = min(config.buffer.batch_size, rows)
        size = prompts * lengths.prompt * of_token
        yield working(
            "KV cache of prompts", size, f"{prompts} prompts x {lengths.prompt} tokens x {of_token} bytes", how=BOUND
        )
    yield from _prefix_cache(config, sizes, of_token=of_token, slots=slots, is_gpu=is_gpu)


COMPUTED_OR_BOUND = {True: "computed", False: BOUND}


def _grown(rows: int, slots: int) -> int:
    """Return the slots that are allocated once `rows` are used.

    All rows of a step come at once, so that they are allocated at once.
    """
    return min(slots, rows)


def _width(wanted: int, most: int) -> int:
    """Return the positions that are allocated once a sequence has `wanted`."""
    width = WIDTH_STEP
    while width < min(wanted, most):
        needed = max(width + 1, width + width // 2)
        width = -(-needed // WIDTH_STEP) * WIDTH_STEP
    return min(width, most)


def _prefix_cache(
    config: Config, sizes: ModelSizes, *, of_token: int, slots: int, is_gpu: bool
) -> Iterator[MemoryPart]:
    rollout, lengths = config.explorer.rollout_model, lengths_of(config)
    if not rollout.enable_prefix_caching or not sizes.is_own:
        return
    limit = rollout.prefix_cache_bytes
    if limit is None:
        room = int(machine_bytes() * CPU_CACHE_FRAC) if not is_gpu else None
        limit = slots * lengths.whole * of_token
        limit = limit if room is None else max(0, min(limit, room // 4, room - limit))
    steps = steps_of_version(config)
    of_prompt = lengths.prompt // BLOCK_TOKENS
    of_answer = 0 if config.deterministic else (lengths.whole - 1) // BLOCK_TOKENS - of_prompt
    blocks = steps * (config.buffer.batch_size * of_prompt + num_explored(config) * of_answer)
    size = blocks * BLOCK_TOKENS * of_token
    rule = f"{steps} explore step{'s' if steps > 1 else ''} until new weights, at most {limit} bytes"
    yield working("prefix cache", min(limit, size), rule, how=BOUND)


def _passes(config: Config, sizes: ModelSizes, *, width: int, is_gpu: bool) -> Iterator[MemoryPart]:
    lengths, (slots, rows) = lengths_of(config), sequences_at_once(config)
    rows = slots if config.deterministic else rows
    is_compiled = sizes.is_own and not is_gpu and uses_kernels(config, sizes)
    copies = COMPILED_AT_ONCE if is_compiled else LOGITS_AT_ONCE
    rule = f"{copies} x {rows} x {sizes.vocabulary} in float32"
    size = copies * rows * sizes.vocabulary * FLOAT32
    yield working("logits of a decoding step", size, rule, how=BOUND, small_bytes=small([(size // copies, copies)]))
    prompts = min(config.buffer.batch_size, slots)
    tokens = min(prompts * lengths.prompt, max(PREFILL_TOKENS, lengths.prompt))
    of_token = 4 * sizes.hidden + 3 * (sizes.query + 2 * sizes.key)
    inner = min(tokens, MLP_ROWS) * 3 * sizes.feed_forward
    size = width * (tokens * of_token + inner) + 2 * prompts * sizes.vocabulary * FLOAT32
    yield working("prefill", size, f"{tokens} prompt tokens in a pass", how=BOUND, small_bytes=size)


def _packs(width: int) -> bool:
    """Return whether weights are held in oneDNN's own layout."""
    flags = cpu_flags()
    return bool({"avx512_bf16", "amx_bf16"} & flags) if width == 2 else False


def vllm_parts(
    config: Config, sizes: ModelSizes, *, is_gpu: bool, card_bytes: int | None, libraries: int = 0
) -> Iterator[MemoryPart]:
    """Yield what an engine of vLLM holds on each of its devices.

    Args:
        config: resolved configuration of the stage.
        sizes: of the model.
        is_gpu: it computes on GPUs.
        card_bytes: memory of a GPU; None: not known.
        libraries: memory of vLLM itself.
    """
    rollout = config.explorer.rollout_model
    width = engine_dtype_bytes(rollout.dtype, is_gpu=is_gpu)
    over = max(1, rollout.tensor_parallel_size * rollout.pipeline_parallel_size)
    weights = sizes.num_parameters * width // over
    shared = f" / {over} GPUs" if over > 1 else ""
    rule = f"{width} bytes x {millions(sizes.num_parameters)} parameters{shared}"
    yield MemoryPart("engine weights", weights, rule=rule)
    if libraries:
        yield MemoryPart("vLLM and its libraries", libraries, MEASURED)
    of_token = max(1, token_bytes(sizes, width=width) // over)
    whole, (slots, _) = lengths_of(config).whole, sequences_at_once(config)
    if not is_gpu:
        room, wanted = int(machine_bytes() * CPU_CACHE_FRAC), of_token * (whole + BLOCK_TOKENS) * (slots + 1)
        size = max(LEAST_VLLM_CACHE, min(room, wanted))
        yield working("KV cache", size, f"{slots + 1} sequences x {whole} tokens x {of_token} bytes, reserved")
    elif card_bytes:
        share = int(card_bytes * rollout.gpu_memory_utilization)
        tokens = (share - weights) // of_token
        rule = f"the rest of gpu_memory_utilization {rollout.gpu_memory_utilization:g}: {tokens} tokens"
        yield working("KV cache and work of vLLM", max(share - weights, of_token * whole), rule)
    else:
        rule = f"one sequence of {whole} tokens at least; vLLM takes gpu_memory_utilization of the card"
        yield working("KV cache", of_token * whole, rule, how=BOUND)
