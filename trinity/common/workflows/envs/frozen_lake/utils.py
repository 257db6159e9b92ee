"""Maps of the frozen lake, and how they are shown.

A map is a list of equally long texts of S (start), F (frozen), H (hole) and G (goal).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SHOWN = {"S": "_", "F": "_", "H": "O", "G": "G"}
PLAYER, IN_HOLE, AT_GOAL = "P", "X", "√"
_MAX_DRAWS = 10_000


def generate_random_map(
    size: int = 8, p: float = 0.8, seed: int = 0, max_steps: int = 5
) -> tuple[list[str], tuple[int, int]]:
    """Return a random map and the row and column of its goal.

    The goal can be reached in `max_steps` moves where the ice is not slippery. The same arguments give the same map.

    Args:
        size: rows and columns.
        p: probability that a tile is frozen.
        seed: of the draws.
        max_steps: longest way from start to goal.

    Raises:
        ValueError: there is no such map, or none was drawn.
    """
    if size < 2 or max_steps < 1 or not 0 <= p <= 1:
        raise ValueError(
            f"a frozen lake needs size >= 2, p from 0 to 1 and env_max_steps >= 1, got size {size}, p {p}, "
            f"env_max_steps {max_steps}"
        )
    draws = np.random.default_rng(seed)
    for _ in range(_MAX_DRAWS):
        start, goal = (divmod(int(tile), size) for tile in draws.choice(size * size, 2, replace=False))
        board = np.where(draws.random((size, size)) < p, "F", "H")
        board[start], board[goal] = "S", "G"
        rows = ["".join(row) for row in board.tolist()]
        moves = fewest_moves(rows)
        if moves is not None and moves <= max_steps:
            return rows, goal
    raise ValueError(
        f"none of {_MAX_DRAWS} maps of size {size} and p {p} has a way of {max_steps} moves; raise p or env_max_steps"
    )


def fewest_moves(rows: Sequence[str]) -> int | None:
    """Return the fewest moves from start to goal; None if there is no way."""
    tiles = {(r, c): tile for r, row in enumerate(rows) for c, tile in enumerate(row)}
    reached = {place for place, tile in tiles.items() if tile == "S"}
    edge, moves = set(reached), 0
    while edge:
        if any(tiles[place] == "G" for place in edge):
            return moves
        near = {(r + dr, c + dc) for r, c in edge for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))}
        edge = {place for place in near - reached if tiles.get(place, "H") != "H"}
        reached |= edge
        moves += 1
    return None


def checked_map(desc: Sequence[str]) -> list[str]:
    """Return a map that a user wrote.

    Raises:
        ValueError: it is no rectangle of S, F, H and G with one start and a goal.
    """
    rows = ["".join(row) for row in desc]
    tiles = "".join(rows)
    if not rows or {len(row) for row in rows} != {len(rows[0])} or set(tiles) - set("SFHG"):
        raise ValueError(f"desc must be equally long rows of S, F, H and G, got {rows}")
    if tiles.count("S") != 1 or "G" not in tiles:
        raise ValueError(f"desc must have one start S and a goal G, got {rows}")
    return rows


def render(rows: Sequence[str], player: tuple[int, int]) -> str:
    """Return a map with the player on it, one line a row."""
    shown = [[SHOWN[tile] for tile in row] for row in rows]
    row, column = player
    shown[row][column] = {"H": IN_HOLE, "G": AT_GOAL}.get(rows[row][column], PLAYER)
    return "\n".join(" ".join(line) for line in shown)
