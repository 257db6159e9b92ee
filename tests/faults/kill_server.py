"""What the server of processes for `kills` has done before it forks: the imports, and the look at a fresh process."""

from __future__ import annotations

from trinity.launch import facts, run, stage
from trinity.launch.explorer_side import ExplorerSide
from trinity.trainer import trainer

facts.compute_as_the_command()
PRELOADED = (run, stage, ExplorerSide, trainer)
