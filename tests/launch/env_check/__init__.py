"""Tests of the checks of a workflow."""
