"""Sudoku: generator and solver, and attempts of a scripted policy."""

from __future__ import annotations

import pytest

from tests.common.workflows.envs.policy import Script, attempt, said
from trinity.common.errors import WorkflowError
from trinity.common.workflows.envs.sudoku.board import SudokuGenerator, checked_board, is_solved, solutions

PUZZLE = [[1, 2, 3, 0], [3, 4, 1, 2], [2, 1, 4, 3], [0, 3, 2, 1]]


@pytest.mark.parametrize(("size", "difficulty"), [(4, "hard"), (9, "easy"), (9, "medium"), (9, "hard")])
def test_a_puzzle_has_one_solution_and_follows_its_seed(size: int, difficulty: str) -> None:
    puzzle, solution = SudokuGenerator(size, seed=5).generate(difficulty)
    assert (puzzle, solution) == SudokuGenerator(size, seed=5).generate(difficulty)
    assert puzzle != SudokuGenerator(size, seed=6).generate(difficulty)[0]
    assert is_solved(solution) and not is_solved(puzzle)
    assert solutions(puzzle) == [solution]


def test_steps_are_experiences_with_their_own_reward() -> None:
    model = Script(["0 3 4", " 3  0 4 \n"])
    made = attempt("sudoku_workflow", model, {"puzzle": PUZZLE})
    assert [(one.reward, one.eid.step, said(one)) for one in made] == [(0.0, 0, "0 3 4|"), (1.0, 1, " 3  0 4 \n|")]
    assert [one.info["step_reward"] for one in made] == [0.0, 1.0]
    assert made[0].info["env_state_hash"] == "1 2 3 0\n3 4 1 2\n2 1 4 3\n0 3 2 1"
    assert made[1].info["env_state_hash"].startswith("1 2 3 4\n")
    assert {(one.metrics["sudoku_steps"], one.metrics["sudoku_solved"]) for one in made} == {(2.0, 1.0)}
    assert PUZZLE[0][3] == 0  # the row is not written to: another attempt finds the puzzle
    assert "4 rows and 4 columns" in model.asked[0][0]["content"] and "step 2 of 20" in model.asked[1][0]["content"]
    assert model.arguments[0] == {"temperature": 0.7, "n": 1}


@pytest.mark.parametrize(
    "answer",
    ["", "0 3", "zero 3 4", "4 0 1", "0 3 5", "0 3 0", "0 0 1", "0 3 1", "0 3 4\n0 3 4", "0 3 4\n3 0 4\n1 1 1"],
)
def test_what_cannot_be_read_or_breaks_a_rule_ends_the_attempt(answer: str) -> None:
    (made,) = attempt("sudoku_workflow", Script([answer]), {"puzzle": PUZZLE}, max_moves_per_step=2)
    assert (made.reward, made.metrics["sudoku_solved"]) == (-1.0, 0.0)


def test_a_cut_answer_is_wrong_even_if_it_can_be_read() -> None:
    (made,) = attempt("sudoku_workflow", Script(["0 3 4"], cut=0), {"puzzle": PUZZLE})
    assert (made.reward, made.truncate_status) == (-1.0, "response_truncated")


def test_the_last_step_ends_the_attempt_without_a_reward() -> None:
    (made,) = attempt("sudoku_workflow", Script(["0 3 4"]), {"puzzle": PUZZLE}, max_steps=1)
    assert (made.reward, made.metrics["sudoku_solved"]) == (0.0, 0.0)


@pytest.mark.difference("A Sudoku that is solved")
def test_any_solution_counts() -> None:
    puzzle = [[1, 2, 0, 0], [3, 4, 0, 0], [2, 1, 0, 0], [4, 3, 0, 0]]
    every = solutions(puzzle, most=9)
    assert len(every) > 1
    for solved in every:
        lines = "\n".join(f"{r} {c} {solved[r][c]}" for r in range(4) for c in (2, 3))
        row = {"puzzle": puzzle, "solution": every[0]}
        (made,) = attempt("sudoku_workflow", Script([lines]), row, max_moves_per_step=8)
        assert made.reward == 1.0


def test_a_generated_puzzle_is_solved_by_its_solution() -> None:
    def solver(messages: list[dict[str, str]]) -> str:
        rows = messages[0]["content"].split("\n\n")[1].splitlines()
        board = checked_board([line.split() for line in rows])
        (solved,) = solutions(board)
        empty = [(r, c) for r, row in enumerate(board) for c, cell in enumerate(row) if not cell][:5]
        return "\n".join(f"{r} {c} {solved[r][c]}" for r, c in empty)

    made = attempt("sudoku_workflow", Script(solver), {"seed": 1}, difficulty="easy")
    again = attempt("sudoku_workflow", Script(solver), {"seed": 1}, difficulty="easy")
    assert [one.reward for one in made] == [0.0] * (len(made) - 1) + [1.0] and len(made) == 6
    assert [one.tokens.tolist() for one in made] == [one.tokens.tolist() for one in again]


@pytest.mark.parametrize(
    ("puzzle", "says"),
    [
        ([[1, 1, 0, 0], [0] * 4, [0] * 4, [0] * 4], "none twice"),
        ([[1, 2, 3]] * 3, "square of 4, 9 or 16 rows"),
        ([[0, 2, 3, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 4]], "no solution"),
    ],
)
def test_a_puzzle_that_is_none_is_a_failure(puzzle: list, says: str) -> None:
    with pytest.raises(WorkflowError, match=f"E5132.*{says}"):
        attempt("sudoku_workflow", Script([]), {"puzzle": puzzle})
