"""Experience operators: what happens to the experiences of an explore step before they are stored.

The table of contents imports no torch; a class is imported when it is first asked for.
"""

from __future__ import annotations

from trinity.buffer.operators.experience_operator import ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.operators.registry import EXPERIENCE_OPERATORS, OPERATOR_CONTENTS

__all__ = ["EXPERIENCE_OPERATORS", "OPERATOR_CONTENTS", "ExperienceOperator", "ExperienceOperatorV1"]
