"""Matrix products, for processors whose libraries reach less.

MKL takes twice the time with few rows on processors that are not Intel's, and a tenth more with many.

Dimension key: N = rows, I = inputs, O = outputs, W = `vectors.WIDTH`.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from trinity.utils.fused.machine import exact_kernel
from trinity.utils.fused.tile import multiply
from trinity.utils.fused.vectors import WIDTH

ROWS, TERMS = 192, 512
"""Rows and terms of a block: its part of the input, 400 KB, stays in the second cache."""


def can_multiply(num_inputs: int, num_outputs: int) -> bool:
    """Return whether `linear` serves a weight of these sizes."""
    return num_inputs > 0 and num_outputs > 0 and num_outputs % WIDTH == 0


def packed(weight: Float[Tensor, "O I"]) -> Float[Tensor, "panels I W"]:
    """Return the weight in panels of W outputs."""
    return weight.view(len(weight) // WIDTH, WIDTH, -1).transpose(1, 2).contiguous()


def unpacked(panels: Float[Tensor, "panels I W"]) -> Float[Tensor, "O I"]:
    """Return the weight of panels, in rows."""
    return panels.transpose(1, 2).reshape(-1, panels.shape[1])


def linear(
    x: Float[Tensor, "*shape I"], panels: Float[Tensor, "panels I W"], bias: Tensor | None = None
) -> Float[Tensor, "*shape O"]:
    """Return x W^T + b without a gradient.

    Args:
        x: float32.
        panels: W, see `packed`.
        bias: b [O].
    """
    num_outputs = panels.shape[0] * WIDTH
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = x.new_empty(*x.shape[:-1], num_outputs)
    if bias is not None:
        out.copy_(bias.expand_as(out))
    sizes = (len(rows), rows.shape[1], num_outputs)
    _linear(rows.data_ptr(), rows.stride(0), panels.data_ptr(), out.data_ptr(), sizes, bias is not None)
    return out


@exact_kernel
def _linear(x: int, of_x: int, panels: int, out: int, sizes: tuple[int, int, int], adds: bool) -> None:
    num_rows, num_inputs, num_outputs = sizes
    num_panels = num_outputs // WIDTH
    for first in range(0, num_rows, ROWS):
        rows = min(ROWS, num_rows - first)
        for start in range(0, num_inputs, TERMS):
            terms = min(TERMS, num_inputs - start)
            for number in range(num_panels):
                panel = panels + 4 * WIDTH * (number * num_inputs + start)
                following = panel + 4 * WIDTH * num_inputs
                if number + 1 == num_panels:
                    following = panels + 4 * WIDTH * (start + terms)
                multiply(
                    x + 4 * (first * of_x + start),
                    (of_x, 1),
                    panel,
                    out + 4 * (first * num_outputs + number * WIDTH),
                    (WIDTH, num_outputs),
                    rows,
                    terms,
                    adds or start > 0,
                    following,
                )
