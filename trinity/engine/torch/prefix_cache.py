"""Keys and values of token prefixes, kept for prompts that begin alike.

A tree over blocks of `BLOCK_TOKENS` tokens: a node is one block, and its path from the root is the prefix that its keys
and values belong to. Whatever memory a new block needs is taken from the leaves that were used least recently, so a
prefix is never lost before what continues it.

Dimension key: N = keys and values of all layers, H = key-value heads, D = head size, T = tokens of a block,
P = prompt tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

BLOCK_TOKENS = 32
"""Tokens of a block. A power of two that divides the chunks of a deterministic prefill."""
_READ_BLOCKS = 4
"""Blocks that are read at once: fewer reads, and little memory beside the blocks, however long a prompt is."""

_Block = tuple[int, ...]


@dataclass
class PrefixTotals:
    """Totals of a prefix cache.

    Attributes:
        lookup_tokens: tokens of the prompts that were looked up.
        hit_tokens: those of them whose keys and values were there.
        bypassed_tokens: tokens computed without a look-up: those of a model whose state is not keys and values, and of
            sequences whose log-probabilities are asked for, each of which needs a forward pass.
        evicted_blocks: blocks that were removed to make room for others.
    """

    lookup_tokens: int = 0
    hit_tokens: int = 0
    bypassed_tokens: int = 0
    evicted_blocks: int = 0


@dataclass(eq=False)
class _Node:
    """A block: keys and values [N, H, T, D], and when it was last used."""

    parent: _Node | None
    block: _Block
    states: Tensor | None
    used: int = 0
    children: dict[_Block, _Node] = field(default_factory=dict)


class PrefixCache:
    """A tree of blocks of one version of the weights.

    Not thread-safe: the engine's thread owns it.

    Args:
        max_bytes: most memory of the blocks, in bytes; less than a block keeps nothing.
        block_bytes: memory of a block, in bytes.
    """

    def __init__(self, max_bytes: int, *, block_bytes: int) -> None:
        self.max_blocks = max_bytes // block_bytes
        self.block_bytes = block_bytes
        self.num_blocks = 0
        self.totals = PrefixTotals()
        self._version: int | None = None
        self._clock = 0
        self._root = _Node(None, (), None)
        self._leaves: list[tuple[int, int, _Node]] = []
        self._pushed = 0

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return self.num_blocks * self.block_bytes

    def table(self) -> dict[str, float]:
        """Return the totals, and the memory held in bytes, by metric."""
        figures = {f"prefix_{name}": float(value) for name, value in vars(self.totals).items()}
        return figures | {"prefix_cache_bytes": float(self.num_bytes)}

    def find(self, tokens: Sequence[int], version: int) -> list[Tensor]:
        """Return the blocks [N, H, T, D] of the longest cached prefix of `tokens`.

        They are those of the weights of `version`. The last token is never among them, since its logits have to be
        computed.
        """
        self._take_version(version)
        path = self._path(tokens, (len(tokens) - 1) // BLOCK_TOKENS)
        self._touch(path)
        return [node.states for node in path if node.states is not None]

    def insert(self, tokens: Sequence[int], version: int, read: Callable[[int, int], Tensor]) -> None:
        """Keep the whole blocks of `tokens`, in order, as far as the limit allows.

        Args:
            tokens: a prefix whose keys and values are known.
            version: version of the weights that computed them.
            read: returns the keys and values [N, H, end - start, D] of the tokens from `start` to `end`, in memory of
                their own.
        """
        self._take_version(version)
        num_blocks = len(tokens) // BLOCK_TOKENS
        path = self._path(tokens, num_blocks)
        self._touch(path)
        node = path[-1] if path else self._root
        end = min(num_blocks, self.max_blocks)
        for first in range(len(path), end, _READ_BLOCKS):
            last = min(end, first + _READ_BLOCKS)
            states = read(first * BLOCK_TOKENS, last * BLOCK_TOKENS)
            for index, of_block in enumerate(states.split(BLOCK_TOKENS, 2), start=first):
                if self.num_blocks == self.max_blocks:
                    self._evict()
                block = tuple(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
                node = self._add(node, block, of_block if last - first == 1 else of_block.clone())

    def drop(self) -> None:
        """Free all blocks: the weights have changed."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            # Parent and child know each other: without this the memory would wait for the garbage collector.
            node.parent, node.states, node.children = None, None, {}
        self._leaves.clear()
        self.num_blocks = 0

    def _take_version(self, version: int) -> None:
        if version != self._version:
            self.drop()
            self._version = version

    def _path(self, tokens: Sequence[int], num_blocks: int) -> list[_Node]:
        """Return the longest path along `tokens`, at most `num_blocks` nodes."""
        path: list[_Node] = []
        node = self._root
        for index in range(num_blocks):
            child = node.children.get(tuple(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _touch(self, path: list[_Node]) -> None:
        """Mark the nodes of a path as used now, in one tick of the clock."""
        self._clock += 1
        for node in path:
            node.used = self._clock
        if path and not path[-1].children:
            self._push(path[-1])

    def _add(self, parent: _Node, block: _Block, states: Tensor) -> _Node:
        node = parent.children[block] = _Node(parent, block, states, used=self._clock)
        self.num_blocks += 1
        self._push(node)
        return node

    def _push(self, leaf: _Node) -> None:
        """Queue a leaf for eviction; entries of an earlier use are skipped later."""
        self._pushed += 1
        heapq.heappush(self._leaves, (leaf.used, self._pushed, leaf))
        if len(self._leaves) > 64 + 4 * self.num_blocks:
            self._leaves = [entry for entry in self._leaves if _is_current(entry)]
            heapq.heapify(self._leaves)

    def _evict(self) -> None:
        """Free the leaf that was used least recently.

        It was not used in this tick: the blocks that were form a path that is shorter than the limit. So a prefix does
        not evict its own beginning.
        """
        while not _is_current(self._leaves[0]):
            heapq.heappop(self._leaves)
        used, _, leaf = heapq.heappop(self._leaves)
        parent = leaf.parent
        assert used < self._clock and parent is not None, "a leaf of another path"
        del parent.children[leaf.block]
        leaf.parent = leaf.states = None
        self.num_blocks -= 1
        self.totals.evicted_blocks += 1
        if parent.parent is not None and not parent.children:
            self._push(parent)


def _is_current(entry: tuple[int, int, _Node]) -> bool:
    """Return whether an entry is of a leaf that was not used since."""
    used, _, node = entry
    return node.states is not None and not node.children and node.used == used
