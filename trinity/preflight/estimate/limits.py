"""Limits of trainer and engine, and facts of this machine.

The limits stand where they are used, in modules that import PyTorch; a test compares them.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

MIB = 2**20
LOGIT_CHUNK = {"cpu": 32 * MIB, "cuda": 512 * MIB}
"""Bytes of the float32 logits of a chunk: `trainer.verl.logprob.CHUNK_BYTES`."""
PROMPTS_UP_TO = 512
"""Longest row whose prompt is computed once on a CPU: `trainer.verl.attention.BLOCKWISE_MAX_LENGTH`."""
MOST_LEFT = 0.8
"""Share of tokens up to which a forest is used: `trainer.prefixes.MAX_LEFT`."""
MOST_SLOTS = 256
"""Sequences of an engine by default: `engine.settings.MAX_DEFAULT_SLOTS`."""
CPU_CACHE_FRAC = 0.4
"""Share of a machine's memory for keys and values: `engine.torch.engine._CPU_CACHE_FRAC`, and vLLM's."""
LEAST_VLLM_CACHE = 64 * MIB
"""`engine.vllm.settings._MIN_CACHE_BYTES`."""
BLOCK_TOKENS = 32
"""Tokens of a block of the prefix cache: `engine.torch.prefix_cache.BLOCK_TOKENS`."""
WIDTH_STEP = 32
"""Positions by which the cache of a sequence grows: `engine.torch.kv_cache._WIDTH_STEP`."""
PREFILL_TOKENS = 4096
"""Most tokens of a prefill: `engine.torch.prefill._MAX_TOKENS`."""
MLP_ROWS = 512
"""Tokens whose feed-forward part is in memory at once: `engine.torch.fast_decoder._MLP_ROWS`."""
LEAST_COMPILED = 1_000_000
"""Parameters from which compiled kernels compute with a model: `utils.fused.choice.LEAST_ELEMENTS`."""
ENGINE_SHARE = 0.5
"""Share of a single GPU that engines have: `engine.create.SHARE_OF_ENGINES`."""
LARGEST_PIECE = 32 * MIB
"""Bytes from which the C library gives freed memory back at once: `utils.memory._LARGEST_MMAP_THRESHOLD`."""
_FAST = {"avx512_bf16", "amx_bf16"}


@cache
def cpu_flags() -> frozenset[str]:
    """Return the names of this processor's instruction sets; empty: unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def has_bf16_units() -> bool:
    """Return whether this processor multiplies bfloat16 in hardware."""
    return bool(_FAST & cpu_flags())


def machine_bytes() -> int:
    """Return the memory of this machine, or a container's limit if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
