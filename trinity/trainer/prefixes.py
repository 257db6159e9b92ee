"""Prefixes that rows share, as a forest.

A prefix of several rows is in the forest once. Turns of one rollout, branches of a tree of trajectories and several
responses to one prompt are the same here: rows that have their first tokens in common. The last token of a row predicts
nothing and is left out.

Dimension key: B = rows, S = longest sequence, N = tokens of the forest, P = those of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

MIN_TOKENS = 16
"""A shorter common prefix is not shared: it may be equal by chance, and saves nothing."""
MAX_LEFT = 0.8
"""A forest is used if it leaves at most this share of the tokens: it then saves more than its bookkeeping costs."""


@dataclass(frozen=True)
class Sharing:
    """What a decoder computes once on a device.

    Attributes:
        prompts_up_to: longest row whose equal prompts are computed once without a forest; 0: none are.
        prefixes: whether a forest is computed.
    """

    prompts_up_to: int = 0
    prefixes: bool = False


NOTHING = Sharing()


@dataclass(frozen=True)
class Node:
    """Consecutive tokens that the same rows share, after those of its parent.

    Attributes:
        start: position of the first token in the rows.
        at: place of the first token in the forest's list.
        length: number of tokens.
        below: number of tokens of all descendants, which follow in the list.
        parent: index of the parent node, or -1.
    """

    start: int
    at: int
    length: int
    below: int
    parent: int


@dataclass(frozen=True)
class Forest:
    """Rows as nodes in depth-first order.

    Attributes:
        nodes: parents before children, the tokens below a node right after its own.
        leaf_of_row: the node in which each row ends.
        ends: number of tokens of each row, without the last one.
        owners: for each node, one of the rows that have its tokens.
    """

    nodes: tuple[Node, ...]
    leaf_of_row: tuple[int, ...]
    ends: tuple[int, ...]
    owners: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the list."""
        return sum(node.length for node in self.nodes)

    def places(self, row: int) -> Int[np.ndarray, "S"]:
        """Return the place in the list of each token of a row."""
        parts, number = [], self.leaf_of_row[row]
        while number >= 0:
            node = self.nodes[number]
            parts.append(np.arange(node.at, node.at + node.length))
            number = node.parent
        return np.concatenate(parts[::-1])[: self.ends[row]]

    def tokens(self) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"]]:
        """Return, for each token, a row that has it and its position there."""
        owners = torch.repeat_interleave(torch.tensor(self.owners), torch.tensor([node.length for node in self.nodes]))
        positions = [torch.arange(node.start, node.start + node.length) for node in self.nodes]
        return owners, torch.cat(positions)


@dataclass(frozen=True)
class Ordered:
    """Rows in an order in which common prefixes are neighbours.

    Attributes:
        rows: numbers of the rows.
        shared: number of tokens that each row has in common with the row before; 0 for the first.
        ends: number of tokens of each row, without the last one.
    """

    rows: tuple[int, ...]
    shared: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens if common prefixes are counted once."""
        return sum(self.ends) - sum(self.shared)

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Yield each row with its numbers of shared tokens and of all tokens."""
        return zip(self.rows, self.shared, self.ends, strict=True)


def in_order(
    tokens: Int[Tensor, "B S"], lengths: Int[Tensor, "B"], num_given: Int[Tensor, "B"], rows: Sequence[int]
) -> Ordered:
    """Return `rows` with those of common prefixes side by side.

    Two responses to one prompt are not compared: what they have in common by chance is not shared. A response is shared
    with rows that continue it without training it: the next turn of an episode, or another branch of a tree.

    Args:
        tokens: of all rows.
        lengths: of prompt and response.
        num_given: tokens before the first one that the row trains.
        rows: numbers of the rows to order.
    """
    table, ends, given = tokens.numpy(), (lengths - 1).tolist(), num_given.tolist()
    keys = {row: np.ascontiguousarray(table[row, : ends[row]]).tobytes() for row in rows}
    order = sorted(rows, key=lambda row: keys[row])
    shared = [0]
    for one, other in pairwise(order):
        most = min(ends[one], ends[other], max(given[one], given[other]))
        differ = np.flatnonzero(table[one, :most] != table[other, :most])
        common = int(differ[0]) if len(differ) else most
        shared.append(common if common >= MIN_TOKENS else 0)
    return Ordered(tuple(order), tuple(shared), tuple(ends[row] for row in order))


@dataclass(eq=False)
class _Growing:
    """A node of a forest that is being built."""

    start: int
    end: int
    owner: int
    parent: _Growing | None
    children: list[_Growing] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # rows whose last token is this node's last


def grow(ordered: Ordered) -> Forest:
    """Return the forest of rows 0 to B - 1, each of at least two tokens."""
    root = _Growing(0, 0, -1, None)
    path = [root]
    for row, shared, end in ordered.items():
        depth = _branch(path, shared)
        if end > depth:
            path.append(_Growing(depth, end, row, path[-1]))
            path[-2].children.append(path[-1])
        path[-1].ended.append(row)
    return _listed(root, ordered)


def _branch(path: list[_Growing], shared: int) -> int:
    """Cut the path where a row leaves it; return how many tokens remain.

    A node is divided only if at least `MIN_TOKENS` of its tokens remain on the path; else the whole node is cut off.
    """
    while len(path) > 1 and path[-1].start >= shared:
        path.pop()
    last = path[-1]
    if shared < last.end:
        if shared - last.start < MIN_TOKENS:
            path.pop()
            return last.start
        path[-1] = _divide(last, shared)
        return shared
    return last.end


def _divide(node: _Growing, depth: int) -> _Growing:
    """Put the tokens before `depth` into a new node above; return it."""
    parent = node.parent
    assert parent is not None, "the root has no tokens"
    upper = _Growing(node.start, depth, node.owner, parent, [node])
    parent.children[parent.children.index(node)] = upper
    node.start, node.parent = depth, upper
    return upper


def _listed(root: _Growing, ordered: Ordered) -> Forest:
    """Return the nodes below `root` in depth-first order.

    A node that is the only child of its parent is merged with it.
    """
    nodes: list[tuple[int, int, int, int]] = []  # start, end, parent, owner
    leaf_of_row: dict[int, int] = {}
    waiting = [(child, -1) for child in reversed(root.children)]
    while waiting:
        first, parent = waiting.pop()
        last, ended = first, list(first.ended)
        while len(last.children) == 1:
            last = last.children[0]
            ended += last.ended
        leaf_of_row |= dict.fromkeys(ended, len(nodes))
        waiting += [(child, len(nodes)) for child in reversed(last.children)]
        nodes.append((first.start, last.end, parent, last.owner))
    below = [0] * len(nodes)
    for number in reversed(range(len(nodes))):
        start, end, parent, _ = nodes[number]
        if parent >= 0:
            below[parent] += below[number] + end - start
    rows = sorted(ordered.rows)
    ends = dict(zip(ordered.rows, ordered.ends, strict=True))
    made, at = [], 0
    for (start, end, parent, _), rest in zip(nodes, below, strict=True):
        made.append(Node(start, at, end - start, rest, parent))
        at += end - start
    return Forest(
        nodes=tuple(made),
        leaf_of_row=tuple(leaf_of_row[row] for row in rows),
        ends=tuple(ends[row] for row in rows),
        owners=tuple(owner for *_, owner in nodes),
    )


class Cost:
    """Counts the tokens to compute, of rows added in the order of `Ordered`.

    Args:
        sharing: what the decoder computes once.
    """

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.apart, self._once, self._flat = 0, 0, 0
        self._prompts: set[bytes] = set()

    def add(self, prompt: Int[np.ndarray, "P"], *, shared: int, end: int) -> None:
        """Count a row that shares its first `shared` tokens with the one before."""
        self._once += end - (shared if self.apart else 0)
        self.apart += end
        key = prompt.tobytes()
        self._flat += end - (len(prompt) if key in self._prompts and end < self.sharing.prompts_up_to else 0)
        self._prompts.add(key)

    @property
    def is_worth_it(self) -> bool:
        """Whether a forest is computed: it must save many tokens.

        The comparison is with computing equal prompts once and nothing else.
        """
        return self.sharing.prefixes and self._once <= MAX_LEFT * self._flat

    @property
    def num_tokens(self) -> int:
        """Number of tokens that count against a limit."""
        return self._once if self.is_worth_it else self.apart
