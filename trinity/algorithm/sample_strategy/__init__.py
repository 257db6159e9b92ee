"""Sample strategies.

The built-ins are listed in `trinity.algorithm.SAMPLE_STRATEGY_CONTENTS`.
"""

from __future__ import annotations

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy

__all__ = ["SAMPLE_STRATEGY", "SampleStrategy"]
