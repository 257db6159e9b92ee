"""Sudoku boards: lists of rows of numbers, 0 where a cell is empty.

Their side is the square of a block's.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from trinity.utils.nested import as_written

Board = list[list[int]]
HOLES = {"easy": 1 / 3, "medium": 1 / 2, "hard": 2 / 3}
_MAX_TRIES = 200_000


def checked_board(value: Any) -> Board:
    """Return a board of a row of data: a list of rows, or its JSON.

    Raises:
        ValueError: it is no square of numbers whose side is 4, 9, 16 or another square, or it breaks a rule.
    """
    rows = as_written(value)
    size = len(rows) if isinstance(rows, Sequence) else 0
    block = math.isqrt(size)
    if block < 2 or block * block != size or any(len(row) != size for row in rows):
        raise ValueError(f"a Sudoku board must be a square of 4, 9 or 16 rows, got {value!r}")
    board = [[int(cell) for cell in row] for row in rows]
    if any(not 0 <= cell <= size for row in board for cell in row) or not is_valid(board):
        raise ValueError(f"cells must be 0 to {size} and none twice in a row, column or block, got {board}")
    return board


def is_valid(board: Board) -> bool:
    """Return whether no number is twice in a row, column or block."""
    return all(len(set(unit)) == len(unit) for unit in _units(board))


def is_solved(board: Board) -> bool:
    """Return whether a board is full and valid."""
    return all(all(row) for row in board) and is_valid(board)


def solutions(board: Board, most: int = 2) -> list[Board]:
    """Return up to `most` solutions.

    Raises:
        ValueError: the search takes too long.
    """
    size, block = len(board), math.isqrt(len(board))
    own, found, tries = [row[:] for row in board], [], 0
    # Bit n of a unit: the number n stands there.
    rows, columns, blocks = ([0] * size for _ in range(3))
    empty = []
    for r, c in ((r, c) for r in range(size) for c in range(size)):
        rows[r] |= 1 << own[r][c]
        columns[c] |= 1 << own[r][c]
        blocks[r // block * block + c // block] |= 1 << own[r][c]
        if not own[r][c]:
            empty.append((r, c, r // block * block + c // block))
    every = (1 << size + 1) - 2

    def search() -> bool:
        nonlocal tries
        tries += 1
        if tries > _MAX_TRIES:
            raise ValueError(f"no solution was found in {_MAX_TRIES} tries, of {board}")
        if not empty:
            found.append([row[:] for row in own])
            return len(found) == most
        free = [every & ~(rows[r] | columns[c] | blocks[b]) for r, c, b in empty]
        at = min(range(len(empty)), key=lambda index: free[index].bit_count())
        r, c, b = empty.pop(at)
        for number in range(1, size + 1):
            bit = 1 << number
            if free[at] & bit:
                own[r][c], rows[r], columns[c], blocks[b] = number, rows[r] | bit, columns[c] | bit, blocks[b] | bit
                if search():
                    return True
                rows[r], columns[c], blocks[b] = rows[r] & ~bit, columns[c] & ~bit, blocks[b] & ~bit
        own[r][c] = 0
        empty.insert(at, (r, c, b))
        return False

    search()
    return found


@functools.lru_cache(maxsize=1024)
def puzzle_of(size: int, seed: int, difficulty: str) -> tuple[tuple[int, ...], ...]:
    """Return the rows of the puzzle of a seed, which all rollouts share."""
    return tuple(map(tuple, SudokuGenerator(size, seed).generate(difficulty)[0]))


def _units(board: Board) -> Iterator[list[int]]:
    """Yield the numbers of every row, column and block."""
    size, block = len(board), math.isqrt(len(board))
    for row in board:
        yield [cell for cell in row if cell]
    for column in range(size):
        yield [row[column] for row in board if row[column]]
    for top in range(0, size, block):
        for left in range(0, size, block):
            lines = board[top : top + block]
            yield [cell for line in lines for cell in line[left : left + block] if cell]


class SudokuGenerator:
    """Makes puzzles with one solution.

    Args:
        size: rows of a board, a square number.
        seed: of the draws; None: another puzzle each time.
    """

    def __init__(self, size: int = 9, seed: int | None = None) -> None:
        self.size, self.block = size, math.isqrt(size)
        if self.block < 2 or self.block * self.block != size:
            raise ValueError(f"the size of a Sudoku must be 4, 9 or another square, got {size}")
        self.draws = random.Random(seed)

    def generate(self, difficulty: str = "medium") -> tuple[Board, Board]:
        """Return a puzzle and its solution.

        Args:
            difficulty: `easy` clears a third of the cells, `medium` half and `hard` two thirds, fewer where another
                one would allow a second solution.
        """
        solution = self._filled()
        puzzle = [row[:] for row in solution]
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        self.draws.shuffle(cells)
        holes = int(self.size * self.size * HOLES[difficulty])
        for row, column in cells:
            if holes == 0:
                break
            puzzle[row][column] = 0
            if len(solutions(puzzle)) == 1:
                holes -= 1
            else:
                puzzle[row][column] = solution[row][column]
        return puzzle, solution

    def _filled(self) -> Board:
        """Return a full board: a regular one with numbers and lines shuffled."""
        size, block, draw = self.size, self.block, self.draws
        numbers = draw.sample(range(1, size + 1), size)
        rows, columns = (
            [
                band * block + line
                for band in draw.sample(range(block), block)
                for line in draw.sample(range(block), block)
            ]
            for _ in range(2)
        )
        return [[numbers[(block * (r % block) + r // block + c) % size] for c in columns] for r in rows]
