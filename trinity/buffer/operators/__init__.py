"""Operators that process experiences before they are stored.

They run once per explore step. The table of contents imports no torch; a class is imported on first access.
"""

from __future__ import annotations

from trinity.buffer.operators.experience_operator import (
    ExperienceOperator,
    ExperienceOperatorV1,
    build_operators,
    create_operators,
)
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS, OPERATOR_CONTENTS

__all__ = [
    "EXPERIENCE_OPERATORS",
    "OPERATOR_CONTENTS",
    "ExperienceOperator",
    "ExperienceOperatorV1",
    "build_operators",
    "create_operators",
]
