"""Sample strategies.

The built-ins are listed in `trinity.algorithm.SAMPLE_STRATEGY_CONTENTS`.
"""

from __future__ import annotations

from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy

__all__ = ["SampleStrategy"]
