"""Scores of responses to rows of veRL's datasets, by their source."""

from trinity.common.rewards.verl.scorers import SOURCES, UnknownSourceError, score_of

__all__ = ["SOURCES", "UnknownSourceError", "score_of"]
