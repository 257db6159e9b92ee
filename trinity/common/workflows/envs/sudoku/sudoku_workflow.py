"""The workflow of Sudoku.

An answer fills some cells, and is an experience with its own reward.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trinity.common.workflows.envs.episode import OfEnvironment, failures_named
from trinity.common.workflows.envs.sudoku.board import (
    HOLES,
    checked_board,
    is_solved,
    is_valid,
    puzzle_of,
    solutions,
)
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.step_wise_workflow import StepWiseRewardWorkflow

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.workflows.task import Task

PROMPT = """\
Fill in this Sudoku of {size} rows and {size} columns. Each of the numbers 1 to {size} stands once in every row, in \
every column and in every block of {block} by {block} cells. 0 is an empty cell, and only those may be filled.

{board}

Write up to {most} cells, one a line, and nothing else: row, column and number, where rows and columns count from 0. \
A line `0 2 4` puts 4 into the third cell of the first row. This is step {step} of {steps}."""
SOLVED, GOES_ON, WRONG = 1.0, 0.0, -1.0


@WORKFLOWS.register_module("sudoku_workflow")
class SudokuWorkflow(OfEnvironment, StepWiseRewardWorkflow):
    """A Sudoku, filled in over several steps, each with its own reward.

    1 for the step that solves it, 0 for one that continues, and -1 for one that cannot be read or breaks a rule, which
    ends the rollout. The puzzle is the row's column `puzzle`; without one it is made from the row's `seed`, the size
    and the difficulty. A full board that breaks no rule is a solution.
    """

    arguments = {"max_steps": 20, "max_moves_per_step": 5, "size": 9, "difficulty": "medium"}
    ranges = {
        "max_steps": "[1, inf]", "max_moves_per_step": "[1, inf]", "size": "[4, inf]", "difficulty": tuple(HOLES),
    }  # fmt: skip

    def reset(self, task: Task) -> None:
        """Prepare for another task; the board is made when it is attempted."""
        super().reset(task)
        self.max_moves_per_step = int(self.workflow_args["max_moves_per_step"])
        self.step_reward = GOES_ON

    @property
    def max_step_num(self) -> int:
        """Most steps of a rollout."""
        return int(self.workflow_args["max_steps"])

    def run(self) -> list[Experience]:
        """Return the experiences of the steps, in order.

        Raises:
            WorkflowError: the row's puzzle cannot be read or has no solution (E5132).
        """
        with failures_named(self):
            self.board = self._puzzle()
        experiences = super().run()
        for experience in experiences:
            experience.metrics |= {
                "sudoku_steps": float(len(experiences)),
                "sudoku_solved": float(is_solved(self.board)),
            }
        return experiences

    def _puzzle(self) -> list[list[int]]:
        given = self.raw_task.get("puzzle")
        if given is None:
            seed = int(self.value("seed", 42))
            made = puzzle_of(int(self.workflow_args["size"]), seed, self.workflow_args["difficulty"])
            return [list(row) for row in made]
        board = checked_board(given)
        if not solutions(board, most=1):
            raise ValueError(f"the puzzle has no solution: {board}")
        return board

    def step(self, step_num: int) -> bool:
        """Ask for cells and fill them in; return whether the rollout continues."""
        before = self.render_board()
        size = len(self.board)
        prompt = PROMPT.format(
            size=size,
            block=int(size**0.5),
            board=before,
            most=self.max_moves_per_step,
            step=step_num + 1,
            steps=self.max_step_num,
        )
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        (answer,) = self.model.chat(messages, **(self.rollout_args | {"n": 1}))
        answer.info["env_state_hash"] = before
        moves = None if answer.truncate_status else self.parse_action(answer.response_text or "")
        is_wrong = moves is None or not self._fill(moves)
        self.step_reward = WRONG if is_wrong else SOLVED if is_solved(self.board) else GOES_ON
        return self.step_reward == GOES_ON

    def reward(self, exps: list[Experience], step_num: int) -> float:
        """Return the reward of the step that was done last."""
        return self.step_reward

    def render_board(self) -> str:
        """Return the board, one line a row."""
        return "\n".join(" ".join(map(str, row)) for row in self.board)

    def parse_action(self, text: str) -> list[tuple[int, int, int]] | None:
        """Return row, column and number of each line; None where one is none."""
        size, moves = len(self.board), []
        for line in filter(None, map(str.strip, text.splitlines())):
            found = re.fullmatch(r"([0-9]{1,3})\s+([0-9]{1,3})\s+([0-9]{1,3})", line)
            if found is None:
                return None
            row, column, number = map(int, found.groups())
            if row >= size or column >= size or not 1 <= number <= size:
                return None
            moves.append((row, column, number))
        return moves if 0 < len(moves) <= self.max_moves_per_step else None

    def _fill(self, moves: list[tuple[int, int, int]]) -> bool:
        """Fill cells; return whether all were empty and no rule is broken."""
        for row, column, number in moves:
            if self.board[row][column]:
                return False
            self.board[row][column] = number
        return is_valid(self.board)
