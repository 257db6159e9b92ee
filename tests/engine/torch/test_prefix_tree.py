"""The tree of the prefix cache against a list of what it must hold."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trinity.engine.torch.prefix_cache import BLOCK_TOKENS, PrefixCache

BLOCK_BYTES = 4 * 2 * BLOCK_TOKENS * 3 * 4

Key = tuple[int, ...]


def tokens_of(key: Key) -> list[int]:
    """Return a block of tokens for each number, the first of which tells it from others."""
    return [token for number in key for token in [number] * BLOCK_TOKENS]


def states_of(key: Key) -> Tensor:
    """Return the one right content of the block at the end of a path."""
    return torch.full((4, 2, BLOCK_TOKENS, 3), float(hash(key) % 100_003))


def reader(key: Key) -> tuple[list[int], Callable[[int, int], Tensor]]:
    def read(start: int, end: int) -> Tensor:
        assert 0 < end - start <= 4 * BLOCK_TOKENS, "a long prompt is not copied as a whole"
        return torch.cat([states_of(key[: n + 1]) for n in range(start // BLOCK_TOKENS, end // BLOCK_TOKENS)], 2)

    return tokens_of(key), read


class Reference:
    """What the cache must hold: paths with the time of their last use."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.used: dict[Key, int] = {}
        self.clock = 0
        self.evicted = 0

    def touch(self, key: Key) -> int:
        """Mark the known beginning of a path as used; return its blocks."""
        self.clock += 1
        known = next((n for n in range(len(key), -1, -1) if n == 0 or key[:n] in self.used), 0)
        self.used |= {key[:n]: self.clock for n in range(1, known + 1)}
        return known

    def insert(self, key: Key) -> None:
        for n in range(self.touch(key) + 1, min(len(key), self.max_blocks) + 1):
            if len(self.used) == self.max_blocks:
                leaves = [k for k in self.used if not any(other[:-1] == k for other in self.used)]
                oldest = min(self.used[k] for k in leaves)
                assert oldest < self.clock
                (one,) = [k for k in leaves if self.used[k] == oldest]  # a tick uses one path, which has one leaf
                del self.used[one]
                self.evicted += 1
            self.used[key[:n]] = self.clock


def held(cache: PrefixCache) -> dict[Key, Tensor]:
    """Return the blocks of the tree by path."""
    found: dict[Key, Tensor] = {}
    waiting: list[tuple[Key, Any]] = [((), cache._root)]
    while waiting:
        key, node = waiting.pop()
        for block, child in node.children.items():
            path = (*key, block[0])
            found[path] = child.states
            waiting.append((path, child))
    return found


keys = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
actions = st.one_of(
    st.tuples(st.just("insert"), keys), st.tuples(st.just("find"), keys), st.tuples(st.just("version"), st.just(()))
)


@settings(max_examples=150)
@given(st.integers(0, 9), st.lists(actions, max_size=60))
def test_any_schedule_holds_the_paths_of_the_reference(max_blocks: int, schedule: list[tuple[str, Key]]) -> None:
    cache = PrefixCache(max_blocks * BLOCK_BYTES + BLOCK_BYTES - 1, block_bytes=BLOCK_BYTES)
    wanted, version = Reference(max_blocks), 0
    for action, key in schedule:
        if action == "version":
            version += 1
            wanted.used.clear()
            cache.find([1], version)
            wanted.clock += 1
        elif action == "insert":
            tokens, read = reader(key)
            cache.insert([*tokens, 9], version, read)
            wanted.insert(key)
        else:
            blocks = cache.find([*tokens_of(key), 9], version)
            assert len(blocks) == wanted.touch(key)
            for index, block in enumerate(blocks):
                assert torch.equal(block, states_of(key[: index + 1]))
        found = held(cache)
        assert found.keys() == wanted.used.keys()
        sizes = {id(states): states.untyped_storage().nbytes() for states in found.values()}
        assert cache.num_bytes == sum(sizes.values()) == len(found) * BLOCK_BYTES <= max_blocks * BLOCK_BYTES
        assert cache.totals.evicted_blocks == wanted.evicted


def test_eviction_takes_the_end_that_was_used_least_recently() -> None:
    cache = PrefixCache(4 * BLOCK_BYTES, block_bytes=BLOCK_BYTES)
    for key in ((0, 1), (0, 2), (3,)):
        tokens, read = reader(key)
        cache.insert(tokens, 0, read)
    assert len(cache.find([*tokens_of((0, 1)), 9], 0)) == 2
    tokens, read = reader((4,))
    cache.insert(tokens, 0, read)
    assert set(held(cache)) == {(0,), (0, 1), (3,), (4,)}
    tokens, read = reader((5, 6, 7, 8, 9))
    cache.insert(tokens, 0, read)
    assert set(held(cache)) == {(5,), (5, 6), (5, 6, 7), (5, 6, 7, 8)}, "as much of the beginning as fits"
    assert cache.totals.evicted_blocks == 5


def test_memory_of_dropped_blocks_is_free_at_once() -> None:
    cache = PrefixCache(9 * BLOCK_BYTES, block_bytes=BLOCK_BYTES)
    gc.disable()
    try:
        tokens, read = reader((1, 2, 3))
        cache.insert(tokens, 0, read)
        seen = [weakref.ref(states) for states in held(cache).values()]
        assert all(one() is not None for one in seen) and len(seen) == 3
        cache.find([1], 1)
        assert all(one() is None for one in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize("length", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS])
def test_short_prompts_have_nothing_to_find(length: int) -> None:
    cache = PrefixCache(9 * BLOCK_BYTES, block_bytes=BLOCK_BYTES)
    tokens, read = reader((1,))
    cache.insert(tokens, 0, read)
    assert cache.find(tokens[:length], 0) == []
    assert len(cache.find([*tokens, 1], 0)) == 1
