"""Model configuration entries that make training forwards random."""

from __future__ import annotations

_ENDS = ("dropout", "_pdrop", "_drop", "dropout_prob", "dropout_p", "layerdrop")


def is_noise(name: str) -> bool:
    """Return whether an entry is a rate of dropout.

    A router's jitter is none: it is drawn in training mode only, which a run never enters, and some families read its
    width as a bound besides.
    """
    return name.endswith(_ENDS)
