"""A guessing game of five turns: a number below 32 is to be found, and each wrong guess is answered by `<` or `>`.

Most demonstrations guess at random within what is still possible; the others halve it.
"""

from __future__ import annotations

from pathlib import Path

from _tiny import tools
from _tiny.imitation import Lesson


def prepare(folder: Path) -> Lesson:
    """Write the game; return what the model imitates."""
    return tools.prepare(folder, name="guesser")
