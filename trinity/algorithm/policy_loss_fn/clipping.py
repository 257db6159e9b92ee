"""What a policy loss says of the tokens that it cuts off.

A loss notes it where it computes it, so that there is one rule; nothing is kept unless someone listens.

Dimension key: B = responses, T = response positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Clipping:
    """What a loss noted of its tokens; None where it said nothing.

    Attributes:
        ratio: what it compares with its bounds, or weights with: of the token, or of its response.
        clipped: the ratio is outside the bounds, and the advantage therefore has no gradient.
        dual: the dual clip limits the loss.
        masked: left out whatever the token's own ratio is.
        rejected: left out by rollout correction.
    """

    ratio: Float[Tensor, "B T"] | None = None
    clipped: Bool[Tensor, "B T"] | None = None
    dual: Bool[Tensor, "B T"] | None = None
    masked: Bool[Tensor, "B T"] | None = None
    rejected: Bool[Tensor, "B T"] | None = None

    @classmethod
    def together(cls, notes: Iterable[Clipping]) -> Clipping:
        """Return several notes on the same tokens as one."""
        made = cls()
        for note in notes:
            made = cls(
                ratio=note.ratio if made.ratio is None else made.ratio,
                clipped=_either(made.clipped, note.clipped),
                dual=_either(made.dual, note.dual),
                masked=_either(made.masked, note.masked),
                rejected=_either(made.rejected, note.rejected),
            )
        return made


def _either(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first | second


_LISTENER: ContextVar[list[Clipping] | None] = ContextVar("_LISTENER", default=None)


def note_clipping(
    ratio: Float[Tensor, "B T"] | None = None,
    *,
    clipped: Bool[Tensor, "B T"] | None = None,
    dual: Bool[Tensor, "B T"] | None = None,
    masked: Bool[Tensor, "B T"] | None = None,
    rejected: Bool[Tensor, "B T"] | None = None,
) -> None:
    """Tell whoever listens which tokens a loss cuts off; see `Clipping`.

    A loss may call it several times, as one that calls another does.
    """
    listener = _LISTENER.get()
    if listener is not None:
        listener.append(Clipping(None if ratio is None else ratio.detach(), clipped, dual, masked, rejected))


@contextmanager
def noted_clipping() -> Iterator[list[Clipping]]:
    """Yield a list that gets what the losses called inside note."""
    notes: list[Clipping] = []
    token = _LISTENER.set(notes)
    try:
        yield notes
    finally:
        _LISTENER.reset(token)
