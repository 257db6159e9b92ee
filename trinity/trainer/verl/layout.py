"""How rows are given to Hugging Face's forward without mixing them.

Rows are packed into one list with our attention if only attention lets a family's tokens see each other. Else they are
padded on the right, where no causal layer looks (recurrences, convolutions, positions in the scores). The choice is
made by trying a few short rows on the model itself, in float32: the result must be that of each row alone. A model
that fits neither is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel

from trinity.common.errors import EnvironmentProblem
from trinity.common.models.families import families
from trinity.trainer.prefixes import Node
from trinity.trainer.verl.flex import forest_works
from trinity.trainer.verl.hf_attention import NAME, NotPackable, computing, packing_problem, register
from trinity.trainer.verl.output_layer import LogitRule
from trinity.trainer.verl.packing import Block, Packed
from trinity.utils.device import is_out_of_memory
from trinity.utils.log import get_logger

logger = get_logger("trainer")

_LENGTHS = (13, 5, 9)
_KEPT = 7  # tokens of the first row, computed again without those after them
_TOLERANCE = 2e-4  # of the largest value; wrong results are off by tenths
_FACTORS = ("logit_scale", "lm_head_multiplier", "logits_scaling", "logits_mup_width_multiplier")
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError)


@dataclass(frozen=True)
class Layout:
    """How rows are given to the model.

    Attributes:
        kind: `packed` into one list, or `padded` into a rectangle.
        attention: name of the attention function in transformers.
        logits: scale and bound that the model applies to the products of its output layer.
        shares_prefixes: common prefixes of rows can be computed once.
    """

    kind: Literal["packed", "padded"]
    attention: str
    logits: LogitRule
    shares_prefixes: bool = False

    @property
    def text(self) -> str:
        """Short description for the log."""
        how = "rows packed" if self.kind == "packed" else f"rows padded ({self.attention} attention)"
        return how if self.shares_prefixes else f"{how}, what they begin with alike is computed for each of them"


def choose_layout(model: PreTrainedModel, *, has_logits: bool, may_pack: bool | None = None) -> Layout:
    """Return how `model` is given rows, and set its attention function.

    Args:
        model: in evaluation mode, but for layers that are recomputed.
        has_logits: it is a language model, whose output layer is checked, too.
        may_pack: try to pack; None: if the table of families says that it is right for long rows, too.

    Raises:
        EnvironmentProblem: the model sees later tokens or cannot be computed in either way (E3130), or its logits are
            not those of a linear layer with a scale and a bound (E3131).
    """
    rows = _rows(model)
    register()
    with torch.no_grad():
        model.set_attn_implementation("eager")
        alone = _alone(model, rows)
        logits = _logit_rule(model, rows[0], alone[0]) if has_logits else LogitRule()
        for layout in _layouts(model, logits, may_pack=_may_pack(model) if may_pack is None else may_pack):
            found = _tried(model, rows, layout)
            if found is not None and all(_is_close(a, b) for a, b in zip(found, alone, strict=True)):
                return replace(layout, shares_prefixes=layout.kind == "packed" and _shares_prefixes(model, rows, alone))
    raise EnvironmentProblem(
        f"{_name(model)} computes a row differently when it is batched with other rows, so that it cannot be trained "
        "in batches; use a model of another family",
        code="E3130",
    )


def body(model: PreTrainedModel) -> Any:
    """Return the module that computes the hidden states of a model."""
    base: Any = model.base_model
    if base is not model:
        return base
    inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    return inner[0] if len(inner) == 1 else base


def run_padded(
    model: PreTrainedModel, tokens: Int[Tensor, "B L"], is_token: Bool[Tensor, "B L"]
) -> Float[Tensor, "B L d"]:
    """Return the last hidden states of rows that are padded on the right."""
    output = body(model)(input_ids=tokens, attention_mask=is_token.long(), use_cache=False, return_dict=True)
    hidden: Tensor = output.last_hidden_state
    return hidden


def run_packed(model: PreTrainedModel, tokens: Int[Tensor, "N"], positions: Int[Tensor, "N"]) -> Float[Tensor, "N d"]:
    """Return the last hidden states of the packed list in `computing`."""
    output = body(model)(input_ids=tokens[None], position_ids=positions[None], use_cache=False, return_dict=True)
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _may_pack(model: PreTrainedModel) -> bool:
    """Return whether a family is known to be right when packed at any length."""
    kinds = {str(model.config.model_type), str(model.config.get_text_config().model_type)}
    return any(family.is_packed for kind in kinds if (family := families().get(kind)) is not None)


def _layouts(model: PreTrainedModel, logits: LogitRule, *, may_pack: bool) -> Iterator[Layout]:
    """Yield the layouts to try, the best first."""
    if may_pack and packing_problem(model) is None:
        yield Layout("packed", NAME, logits)
    yield Layout("padded", "sdpa", logits)
    yield Layout("padded", "eager", logits)


def _rows(model: PreTrainedModel) -> list[Tensor]:
    """Return rows of different lengths, of plain tokens.

    The last one has a prefix in common with the first.
    """
    table = model.get_input_embeddings().weight
    assert isinstance(table, Tensor), "token embeddings are a table"
    first = len(table) // 2
    tokens = first + (torch.arange(max(_LENGTHS)) * 7 + 3) % (len(table) - first)
    rows = [tokens[:length].roll(shift) for shift, length in enumerate(_LENGTHS)]
    rows.append(torch.cat([rows[0][:_KEPT], rows[1]]))
    return [row.to(table.device) for row in rows]


def _alone(model: PreTrainedModel, rows: Sequence[Tensor]) -> list[Tensor]:
    """Return the hidden states of each row alone, with eager attention.

    Raises:
        EnvironmentProblem: the model cannot be computed, or a token's state depends on later tokens (E3130).
    """
    try:
        alone = [run_padded(model, row[None], torch.ones_like(row[None], dtype=torch.bool))[0] for row in rows]
        start = rows[0][:_KEPT]
        begin = run_padded(model, start[None], torch.ones_like(start[None], dtype=torch.bool))[0]
    except _FAILURES as error:
        if is_out_of_memory(error):
            raise
        raise EnvironmentProblem(
            f"{_name(model)} does not compute a list of text tokens by itself ({type(error).__name__}: {error}); use "
            "a causal language model of text",
            code="E3130",
        ) from error
    if not _is_close(begin, alone[0][:_KEPT]):
        raise EnvironmentProblem(
            f"{_name(model)} is not causal: what it computes at a token depends on later tokens; use a causal language "
            "model",
            code="E3130",
        )
    return alone


def _tried(model: PreTrainedModel, rows: Sequence[Tensor], layout: Layout) -> list[Tensor] | None:
    """Return the hidden states of rows computed together; None if it fails."""
    lengths = [len(row) for row in rows]
    try:
        model.set_attn_implementation(layout.attention)
        if layout.kind == "packed":
            packed = _packed(rows)
            with computing(packed):
                return list(run_packed(model, packed.tokens, packed.positions).split(lengths))
        padded = pad_sequence(list(rows), batch_first=True)
        is_token = (
            torch.arange(max(lengths), device=padded.device) < torch.tensor(lengths, device=padded.device)[:, None]
        )
        return [row[:length] for row, length in zip(run_padded(model, padded, is_token), lengths, strict=True)]
    except (NotPackable, *_FAILURES) as error:
        if is_out_of_memory(error):
            raise
        logger.info("%s is not computed with %s attention: %s", _name(model), layout.attention, error)
        return None


def _shares_prefixes(model: PreTrainedModel, rows: Sequence[Tensor], alone: Sequence[Tensor]) -> bool:
    """Return whether rows with a common prefix are computed as if alone.

    On a GPU flex attention computes them, if it works there.
    """
    row, branch = rows[0], rows[-1]
    if row.device.type != "cpu" and not forest_works(row.device):
        return False
    rest, other = len(row) - _KEPT, len(branch) - _KEPT
    nodes = (
        Node(start=0, at=0, length=_KEPT, below=rest + other, parent=-1),
        Node(start=_KEPT, at=_KEPT, length=rest, below=0, parent=0),
        Node(start=_KEPT, at=len(row), length=other, below=0, parent=0),
    )
    packed = _packed([torch.cat([row, branch[_KEPT:]])])
    places = torch.arange(max(len(row), len(branch)), device=row.device)
    positions = torch.cat([places[: len(row)], places[_KEPT : len(branch)]])
    packed = replace(packed, positions=positions, forest=nodes)
    with computing(packed):
        found = run_packed(model, packed.tokens, packed.positions)
    states = torch.cat([found[:_KEPT], found[len(row) :]])
    return _is_close(found[: len(row)], alone[0]) and _is_close(states, alone[-1])


def _packed(rows: Sequence[Tensor]) -> Packed:
    """Return rows as one list without scored positions."""
    lengths, device = tuple(len(row) for row in rows), rows[0].device
    width, none = max(lengths), torch.empty(0, dtype=torch.long, device=device)
    positions = [torch.arange(length, device=device) for length in lengths]
    slots = torch.cat([number * width + place for number, place in enumerate(positions)])
    return Packed(
        tokens=torch.cat(list(rows)),
        positions=torch.cat(positions),
        prefix=None,
        rows=Block(0, lengths, width, slots),
        prefix_of_row=None,
        sources=none,
        labels=none,
        targets=none,
        num_rows=len(rows),
        width=0,
    )


def _logit_rule(model: PreTrainedModel, row: Tensor, hidden: Float[Tensor, "T d"]) -> LogitRule:
    """Return the rule that turns the output layer's products into logits.

    Raises:
        EnvironmentProblem: no known rule does (E3131).
    """
    layer: Any = model.get_output_embeddings()
    try:
        wanted = model(input_ids=row[None], attention_mask=torch.ones_like(row[None]), use_cache=False).logits[0]
        products = functional.linear(hidden, layer.weight, layer.bias)
    except _FAILURES as error:
        raise EnvironmentProblem(_head_problem(model), code="E3131") from error
    for rule in _logit_rules(model.config.get_text_config()):
        if products.shape == wanted.shape and _is_close(rule.apply(products.clone()), wanted):
            return rule
    raise EnvironmentProblem(_head_problem(model), code="E3131")


def _logit_rules(config: PreTrainedConfig) -> Iterator[LogitRule]:
    """Yield the rules a configuration may mean: its names are ambiguous."""
    values = config.to_dict()
    factors = [float(values[name]) for name in _FACTORS if values.get(name)]
    if values.get("dim_model_base"):
        factors.append(float(values["dim_model_base"]) / float(values["hidden_size"]))
    caps = [float(values[name]) for name in _SOFTCAPS if values.get(name)]
    for cap in (None, *caps):
        yield from (LogitRule(scale, cap) for scale in (1.0, *factors, *(1.0 / factor for factor in factors)))


def _head_problem(model: PreTrainedModel) -> str:
    return (
        f"the logits of {_name(model)} are not those of one linear layer with a scale and a bound, which is what the "
        "trainer computes; use a model of another family"
    )


def _name(model: PreTrainedModel) -> str:
    return f"the model ({type(model).__name__}, model_type {model.config.model_type})"


def _is_close(found: Tensor, wanted: Tensor) -> bool:
    """Return whether two results are the same but for rounding."""
    return bool((found - wanted).abs().max() <= _TOLERANCE * wanted.abs().max())
