"""How token losses become one number, in words."""

from __future__ import annotations

_WORDS = {
    "token-mean": "mean over the mini-batch's tokens of",
    "token-sum": "sum over the mini-batch's tokens of",
    "seq-mean-token-sum": "mean over the mini-batch's responses of their sums over the tokens of",
    "seq-mean-token-mean": "mean over the mini-batch's responses of their means over the tokens of",
    "seq-mean-token-sum-norm": "sum over the mini-batch's tokens, divided by {divisor}, of",
}


def aggregation(
    mode: str, divisor: str = "the longest response allowed", *, is_verl: bool = False, scope: str = "mini_batch"
) -> str:
    """Return the description of a `loss_agg_mode` and a `loss_agg_scope`.

    In veRL's convention the normed sum of a mini-batch is also divided by the number of responses.
    """
    if scope == "micro_batch":
        own = _WORDS[mode].format(divisor=divisor).replace("mini-batch", "micro-batch")
        return f"mean over the micro-batches, and over workers, of the {own}"
    if mode == "seq-mean-token-sum-norm" and is_verl:
        return f"mean over the mini-batch's responses of their sums over the tokens, divided by {divisor}, of"
    return _WORDS[mode].format(divisor=divisor)
