"""Sudoku: generator, solver and judge, and the workflow."""
