"""Policy losses; the built-ins are listed in `trinity.algorithm.POLICY_LOSS_CONTENTS`."""

from __future__ import annotations

from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn

__all__ = ["PolicyLossFn"]
