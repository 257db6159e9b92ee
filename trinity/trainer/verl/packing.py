"""Rows packed into one list of tokens, without padding.

A prompt that several rows share is in the list once. So is any other prefix, where that saves much: the list is then a
forest in depth-first order. The last token of a row predicts nothing and is left out.

Dimension key: N = packed tokens, n = those of a block or of this rank, G = shared prompts, B = rows, T = longest
response, M = positions whose next token is scored, m = those of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.trainer.batch import TrainBatch
from trinity.trainer.batch_images import PackedImages, packed_images
from trinity.trainer.prefixes import MAX_LEFT, Node, grow, in_order
from trinity.trainer.verl.parallel.ulysses import Slice


@dataclass(frozen=True)
class Block:
    """Sequences that lie one after another in a packed list.

    Attributes:
        start: index of the first token in the packed list.
        lengths: tokens of each sequence.
        width: the longest.
        slots: index of each token in the padded form [sequences x width]; None if nothing is padded.
    """

    start: int
    lengths: tuple[int, ...]
    width: int
    slots: Int[Tensor, "n"] | None

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all sequences."""
        return sum(self.lengths)

    def to(self, device: torch.device) -> Block:
        """Return the block with its tensor on `device`."""
        slots = None if self.slots is None else self.slots.to(device)
        return Block(self.start, self.lengths, self.width, slots)


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one list of tokens.

    Attributes:
        tokens: the prompts of `prefix`, then the rows.
        positions: position of each token in its sequence.
        prefix: shared prompts, or None.
        rows: the rows, without their prompt where it is shared.
        prefix_of_row: shared prompt of each row, or None.
        sources: index of the packed token whose output predicts each scored token.
        labels: the scored tokens.
        targets: index of each scored token in the padded responses [B x T].
        num_rows: B.
        width: T.
        piece: this rank's part if several share the list, else None.
        forest: the nodes of the list if it is a forest, else None; `rows` is then the list as a whole.
        images: images among the tokens, which are 0 there; None if there are none.
        rotary: positions in time, height and width of each token [3, N], if the batch has images.
    """

    tokens: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    prefix: Block | None
    rows: Block
    prefix_of_row: Int[Tensor, "B"] | None
    sources: Int[Tensor, "M"]
    labels: Int[Tensor, "M"]
    targets: Int[Tensor, "M"]
    num_rows: int
    width: int
    piece: Slice | None = None
    forest: tuple[Node, ...] | None = None
    images: PackedImages | None = None
    rotary: Int[Tensor, "3 N"] | None = None

    @property
    def own_tokens(self) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
        """The tokens that this rank computes and their positions."""
        if self.piece is None:
            return self.tokens, self.positions
        return self.piece.cut(self.tokens), self.piece.cut(self.positions)

    @property
    def own_sources(self) -> Int[Tensor, "m"]:
        """Indices of this rank's scored positions in `own_tokens`."""
        return self.sources if self.piece is None else self.sources[self.piece.scored] - self.piece.start

    @property
    def own_labels(self) -> Int[Tensor, "m"]:
        """The scored tokens of this rank."""
        return self.labels if self.piece is None else self.labels[self.piece.scored]

    def collect(self, values: Float[Tensor, "m"]) -> Float[Tensor, "M"]:
        """Return the values of all scored positions from those of this rank."""
        return values if self.piece is None else self.piece.collect(values, len(self.sources))

    def to(self, device: torch.device) -> Packed:
        """Return the micro-batch with all tensors on `device`."""
        if device.type == "cpu":
            return self
        return Packed(
            tokens=self.tokens.to(device),
            positions=self.positions.to(device),
            prefix=None if self.prefix is None else self.prefix.to(device),
            rows=self.rows.to(device),
            prefix_of_row=None if self.prefix_of_row is None else self.prefix_of_row.to(device),
            sources=self.sources.to(device),
            labels=self.labels.to(device),
            targets=self.targets.to(device),
            num_rows=self.num_rows,
            width=self.width,
            forest=self.forest,
            images=None if self.images is None else self.images.to(device),
            rotary=None if self.rotary is None else self.rotary.to(device),
        )


def pack(batch: TrainBatch, *, share_prompts: bool, share_prefixes: bool = False) -> Packed:
    """Pack `batch`; the scored tokens are those of `action_mask`.

    Args:
        batch: at least one row.
        share_prompts: put a prompt that several rows have into the list once.
        share_prefixes: do so with every prefix, if that leaves at most `MAX_LEFT` of the tokens.
    """
    flat = _pack_flat(batch, share_prompts=share_prompts)
    if not share_prefixes:
        return flat
    return _pack_forest(batch, most=MAX_LEFT * len(flat.tokens)) or flat


def _pack_forest(batch: TrainBatch, *, most: float) -> Packed | None:
    """Return the forest of all rows; None if it has more than `most` tokens."""
    ordered = in_order(batch.tokens, batch.lengths, batch.num_given, range(len(batch)))
    if ordered.num_tokens > most:
        return None
    forest = grow(ordered)
    owners, positions = forest.tokens()
    tokens, images, rotary = _seen(batch, owners, positions)
    row, column = torch.nonzero(batch.action_mask, as_tuple=True)
    predicted = batch.prompt_lengths[row] + column
    sources = torch.empty_like(row)
    for number in range(len(batch)):
        own = row == number
        sources[own] = torch.from_numpy(forest.places(number))[predicted[own] - 1]
    return Packed(
        tokens=tokens,
        positions=positions,
        prefix=None,
        rows=Block(0, (len(tokens),), len(tokens), None),
        prefix_of_row=None,
        sources=sources,
        labels=batch.tokens[row, predicted],
        targets=row * batch.action_mask.shape[1] + column,
        num_rows=len(batch),
        width=batch.action_mask.shape[1],
        forest=forest.nodes,
        images=images,
        rotary=rotary,
    )


def _pack_flat(batch: TrainBatch, *, share_prompts: bool) -> Packed:
    """Return the rows one after another, behind the prompts that they share."""
    prompts = _shared_prompts(batch) if share_prompts else None
    starts = torch.zeros_like(batch.lengths) if prompts is None else batch.prompt_lengths
    rows, row_numbers, row_positions = _block(starts, batch.lengths - 1, at=0)
    prefix, of_row, first = None, None, None
    if prompts is not None:
        of_row, owners = prompts
        ends = batch.prompt_lengths[owners]
        prefix, numbers, positions = _block(torch.zeros_like(ends), ends, at=0)
        rows = Block(prefix.num_tokens, rows.lengths, rows.width, rows.slots)
        first = (torch.cumsum(ends, 0) - 1)[of_row]
        row_numbers, row_positions = torch.cat([owners[numbers], row_numbers]), torch.cat([positions, row_positions])
    tokens, images, rotary = _seen(batch, row_numbers, row_positions)
    row, column = torch.nonzero(batch.action_mask, as_tuple=True)
    begins = rows.start + torch.cumsum(torch.tensor(rows.lengths), 0) - torch.tensor(rows.lengths)
    sources = begins[row] + batch.prompt_lengths[row] - 1 + column - starts[row]
    if first is not None:
        sources = torch.where(column == 0, first[row], sources)
    return Packed(
        tokens=tokens,
        positions=row_positions,
        prefix=prefix,
        rows=rows,
        prefix_of_row=of_row,
        sources=sources,
        labels=batch.tokens[row, batch.prompt_lengths[row] + column],
        targets=row * batch.action_mask.shape[1] + column,
        num_rows=len(batch),
        width=batch.action_mask.shape[1],
        images=images,
        rotary=rotary,
    )


def _seen(batch: TrainBatch, rows: Tensor, positions: Tensor) -> tuple[Tensor, PackedImages | None, Tensor | None]:
    """Return tokens, 0 for images, with the images and rotary positions."""
    tokens, images = packed_images(batch.tokens[rows, positions], batch.images)
    return tokens, images, None if batch.rotary is None else batch.rotary[:, rows, positions]


def _shared_prompts(batch: TrainBatch) -> tuple[Tensor, Tensor] | None:
    """Return each row's prompt [B] and the first row of each prompt [G].

    Return None if sharing saves nothing.
    """
    tokens, lengths = batch.tokens.numpy(), batch.prompt_lengths.tolist()
    known: dict[bytes, int] = {}
    of_row: list[int] = []
    owners: list[int] = []
    for row, length in enumerate(lengths):
        key = tokens[row, :length].tobytes()
        if key not in known:
            known[key] = len(owners)
            owners.append(row)
        of_row.append(known[key])
    if 2 * len(owners) > len(of_row) or int((batch.lengths - batch.prompt_lengths).min()) < 2:
        return None
    return torch.tensor(of_row), torch.tensor(owners)


def _block(starts: Tensor, ends: Tensor, *, at: int) -> tuple[Block, Tensor, Tensor]:
    """Return a block of tokens `[i, starts[i]:ends[i]]`, rows and positions."""
    lengths = ends - starts
    width = int(lengths.max())
    columns = torch.arange(width).expand(len(lengths), width)
    is_token = columns < lengths[:, None]
    positions = (columns + starts[:, None])[is_token]
    row = torch.arange(len(lengths))[:, None].expand_as(columns)[is_token]
    slots = None if bool(is_token.all()) else torch.nonzero(is_token.reshape(-1)).squeeze(-1)
    return Block(at, tuple(lengths.tolist()), width, slots), row, positions
