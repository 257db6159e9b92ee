"""Collation of experiences, mini-batches and micro-batches.

Dimension key: B = rows (experiences), S = longest sequence (prompt and response), T = longest response.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from trinity.common.errors import DataError
from trinity.common.experience import Experience, rows_of
from trinity.trainer.batch_images import BatchImage, number_images
from trinity.trainer.prefixes import NOTHING, Cost, Ordered, Sharing, in_order

_COLUMNS = {"logprobs": "rollout_logprob"} | {
    name: name for name in ("advantages", "returns", "teacher_logprobs", "token_level_reward")
}


@dataclass(frozen=True)
class TrainBatch:
    """Rows of a training step as tensors on the CPU.

    Sequences and responses start at column 0 and are padded on the right.

    Attributes:
        uids: identities of the rows.
        tokens: token ids; 0 at padding.
        lengths: tokens of each row, prompt and response.
        prompt_lengths: tokens of each prompt, at least 1.
        action_mask: true on response tokens that the policy produced.
        columns: per-token values [B, T] by the name that losses use (`rollout_logprob`, `advantages`, ...).
        values: per-row values [B] (custom fields).
        model_versions: version of the weights that sampled each row; -1 where unknown.
        rewards: reward of each row; NaN where there is none.
        rows_per_experience: adjacent rows of one experience, never separated: 2 for pairs (chosen, rejected), else 1.
        images: the distinct images of all rows. An image takes one token per part; in `tokens` part n of all images is
            -1 - n, so that rows with equal tokens have equal images.
        rotary: positions in time, height and width [3, B, S] for the rotation; None without images.
    """

    uids: tuple[str, ...]
    tokens: Int[Tensor, "B S"]
    lengths: Int[Tensor, "B"]
    prompt_lengths: Int[Tensor, "B"]
    action_mask: Bool[Tensor, "B T"]
    columns: dict[str, Shaped[Tensor, "B T"]]
    values: dict[str, Tensor]
    model_versions: Int[Tensor, "B"]
    rewards: Float[Tensor, "B"]
    rows_per_experience: int = 1
    images: tuple[BatchImage, ...] = ()
    rotary: Int[Tensor, "3 B S"] | None = None

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def num_experiences(self) -> int:
        """Number of experiences; a pair counts as one."""
        return len(self) // self.rows_per_experience

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all rows, without padding."""
        return int(self.lengths.sum())

    @property
    def num_given(self) -> Int[Tensor, "B"]:
        """Tokens of each row before the first that it trains: all if none.

        They are more than its prompt if it continues responses that other rows train.
        """
        has_action, first = self.action_mask.max(1)
        return torch.where(has_action, self.prompt_lengths + first, self.lengths)

    @property
    def num_action_tokens(self) -> int:
        """Number of tokens that losses count."""
        return int(self.action_mask.sum())

    def select(self, rows: Sequence[int]) -> TrainBatch:
        """Return the batch of `rows`, in that order, padded to its longest row."""
        index = torch.tensor(list(rows), dtype=torch.long)
        lengths, prompt_lengths = self.lengths[index], self.prompt_lengths[index]
        width = int((lengths - prompt_lengths).max()) if len(rows) else 0
        longest = int(lengths.max()) if len(rows) else 0
        return TrainBatch(
            uids=tuple(self.uids[row] for row in rows),
            tokens=self.tokens[index, :longest],
            lengths=lengths,
            prompt_lengths=prompt_lengths,
            action_mask=self.action_mask[index, :width],
            columns={name: column[index, :width] for name, column in self.columns.items()},
            values={name: value[index] for name, value in self.values.items()},
            model_versions=self.model_versions[index],
            rewards=self.rewards[index],
            rows_per_experience=self.rows_per_experience,
            images=self.images,
            rotary=None if self.rotary is None else self.rotary[:, index, :longest],
        )

    def with_columns(self, **columns: Shaped[Tensor, "B T"]) -> TrainBatch:
        """Return the batch with further per-token columns."""
        return dataclasses.replace(self, columns=self.columns | columns)


def collate(experiences: Sequence[Experience]) -> TrainBatch:
    """Collate at least one experience into a batch.

    A pair becomes two rows, the chosen response first. A column is present if every experience has it.

    Raises:
        DataError: an experience has no response token, or a value that is not finite (E4603); pairs are mixed with
            other experiences (E4609), or have images, or images do not fit (E4033).
        ValueError: `experiences` is empty.
    """
    if not experiences:
        raise ValueError("cannot collate an empty list of experiences")
    experiences, rows_per_experience = _rows(experiences)
    _check(experiences)
    names = [f for f in _COLUMNS if all(vars(exp)[f] is not None for exp in experiences)]
    fields = {f.destination_field: f for f in experiences[0].custom_fields}
    versions = [exp.info.get("model_version") for exp in experiences]
    rewards = [float("nan") if exp.reward is None else exp.reward for exp in experiences]
    numbered = number_images(experiences)
    return TrainBatch(
        uids=tuple(exp.eid.uid for exp in experiences),
        tokens=_padded(numbered.tokens),
        lengths=torch.tensor([len(exp.tokens) for exp in experiences]),
        prompt_lengths=torch.tensor([exp.prompt_length for exp in experiences]),
        action_mask=_padded([exp.action_mask for exp in experiences if exp.action_mask is not None]),
        columns={_COLUMNS[name]: _padded([vars(exp)[name].float() for exp in experiences]) for name in names},
        values={
            name: torch.tensor([exp.info[f.source_field] for exp in experiences], dtype=f.data_type)
            for name, f in fields.items()
        },
        model_versions=torch.tensor([-1 if version is None else int(version) for version in versions]),
        rewards=torch.tensor(rewards, dtype=torch.float32),
        rows_per_experience=rows_per_experience,
        images=numbered.images,
        rotary=numbered.rotary,
    )


def _rows(experiences: Sequence[Experience]) -> tuple[list[Experience], int]:
    """Return the rows of all experiences, and the rows per experience."""
    for exp in experiences:
        if exp.multi_modal_inputs and exp.experience_type == "dpo":
            raise DataError(
                f"experience {exp.eid.uid} is a pair with images, which cannot be trained on; use pairs of text",
                code="E4033",
            )
    rows = [rows_of(exp) for exp in experiences]
    sizes = sorted({len(of_one) for of_one in rows})
    if len(sizes) > 1:
        number = sum(len(of_one) > 1 for of_one in rows)
        raise DataError(
            f"{number} of the {len(rows)} experiences of a training batch are pairs of a chosen and a rejected "
            "response; a batch holds pairs only (algorithm_type dpo) or none",
            code="E4609",
        )
    return [row for of_one in rows for row in of_one], sizes[0]


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _check(experiences: Sequence[Experience]) -> None:
    for exp in experiences:
        if exp.response_length < 1:
            raise DataError(f"experience {exp.eid.uid} has no response token and cannot be trained on", code="E4603")
    for name in ("logprobs", "advantages", "returns"):
        found = [(exp, value) for exp in experiences if (value := vars(exp)[name]) is not None]
        if not found or bool(torch.isfinite(torch.cat([value for _, value in found])).all()):
            continue
        bad = next(exp for exp, value in found if not bool(torch.isfinite(value).all()))
        raise DataError(f"experience {bad.eid.uid}: {name} holds a value that is not finite", code="E4603")


def mini_batches(
    num_experiences: int,
    *,
    size: int | None,
    generator: torch.Generator | None = None,
    rows_per_experience: int = 1,
    num_shares: int = 1,
) -> list[list[int]]:
    """Return the rows of each mini-batch (one optimizer step each).

    Args:
        num_experiences: experiences of the batch.
        size: experiences of a mini-batch; the last may be smaller; None means all.
        generator: shuffles the experiences first, if given.
        rows_per_experience: adjacent rows of each experience.
        num_shares: number of contiguous pieces of the batch; a mini-batch takes the next experiences of each piece.
    """
    total, each = num_experiences, rows_per_experience
    order = list(range(total)) if generator is None else torch.randperm(total, generator=generator).tolist()
    small, extra = divmod(total, num_shares)
    ends = [number * small + min(number, extra) for number in range(num_shares + 1)]
    pieces = [order[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    step = -(-(size or max(total, 1)) // num_shares)
    minis = [[n for piece in pieces for n in piece[start : start + step]] for start in range(0, len(pieces[0]), step)]
    return [[number * each + place for number in mini for place in range(each)] for mini in minis]


def rows_of_policy(batch: TrainBatch) -> list[int]:
    """Return the rows that are not expert data; all without `expert_mask`."""
    is_expert = batch.values.get("expert_mask")
    return list(range(len(batch))) if is_expert is None else torch.nonzero(~is_expert).flatten().tolist()


def counted_rows(batch: TrainBatch, counted: Bool[Tensor, "B T"]) -> list[int]:
    """Return the rows of experiences that have at least one counted token."""
    each = batch.rows_per_experience
    has_token = counted.any(1).view(-1, each).any(1).repeat_interleave(each)
    return torch.nonzero(has_token).squeeze(-1).tolist()


def micro_batches(
    batch: TrainBatch,
    rows: Iterable[int],
    *,
    max_tokens: int | None,
    max_rows: int | None,
    sharing: Sharing = NOTHING,
) -> list[list[int]]:
    """Split `rows` into groups that are each computed in one pass.

    Rows with the same prompt stay together as far as the limits allow, and rows of similar length share a group, which
    saves padding. Where many tokens are in prefixes that rows share, rows with the longest common ones stay together
    instead, and a prefix counts once a group. The rows of an experience are never separated; one that exceeds a limit
    is a group of its own.

    Args:
        batch: gives lengths, prompts and the rows of an experience.
        rows: rows to split, whole experiences.
        max_tokens: most tokens of a group, prompt and response.
        max_rows: most rows of a group.
        sharing: what the decoder computes once.
    """
    rows = list(rows)
    ordered = along_prefixes(batch, rows, sharing)
    if ordered is not None:
        return _cut(batch, ordered, max_tokens=max_tokens, max_rows=max_rows, sharing=sharing)
    units = _by_prompt(batch, units_of(rows, batch.rows_per_experience))
    lengths = batch.lengths.tolist()
    sizes = [sum(lengths[row] for row in unit) for unit in units]
    total = sum(sizes)
    limit = total if max_tokens is None else max_tokens
    if max_tokens is not None and total > max_tokens:
        limit = min(max_tokens, -(-total // -(-total // max_tokens)) + max(sizes))
    groups: list[list[int]] = []
    used = 0
    for unit, size in zip(units, sizes, strict=True):
        is_full = not groups or used + size > limit
        if is_full or (max_rows is not None and len(groups[-1]) + len(unit) > max_rows):
            groups.append([])
            used = 0
        groups[-1] += unit
        used += size
    return groups


def along_prefixes(batch: TrainBatch, rows: Sequence[int], sharing: Sharing) -> Ordered | None:
    """Return `rows` in the order of their common prefixes.

    None if that saves too little, and for experiences of several rows.
    """
    if not (sharing.prefixes and rows) or batch.rows_per_experience > 1:
        return None
    ordered = in_order(batch.tokens, batch.lengths, batch.num_given, rows)
    cost = Cost(sharing)
    for row, shared, end in ordered.items():
        cost.add(_prompt(batch, row), shared=shared, end=end)
    return ordered if cost.is_worth_it else None


def _cut(
    batch: TrainBatch, ordered: Ordered, *, max_tokens: int | None, max_rows: int | None, sharing: Sharing
) -> list[list[int]]:
    """Cut rows in the order of prefixes into groups; see `micro_batches`."""
    limit = total = ordered.num_tokens
    if max_tokens is not None:
        limit = min(max_tokens, -(-total // -(-total // max_tokens)) + max(ordered.ends))
    groups: list[list[int]] = []
    cost = Cost(sharing)
    for row, shared, end in ordered.items():
        cost.add(_prompt(batch, row), shared=shared, end=end)
        if not groups or cost.num_tokens > limit or len(groups[-1]) == max_rows:
            groups.append([])
            cost = Cost(sharing)
            cost.add(_prompt(batch, row), shared=0, end=end)
        groups[-1].append(row)
    return groups


def _prompt(batch: TrainBatch, row: int) -> Int[np.ndarray, "P"]:
    found: np.ndarray = batch.tokens[row, : int(batch.prompt_lengths[row])].numpy()
    return found


def units_of(rows: list[int], size: int) -> list[list[int]]:
    """Group `rows` by experience, `size` rows each."""
    units = [rows[start : start + size] for start in range(0, len(rows), size)]
    is_whole = all(unit == list(range(unit[0], unit[0] + size)) and unit[0] % size == 0 for unit in units)
    assert is_whole, f"rows of whole experiences ({size} rows each) are split, got {rows}"
    return units


def _by_prompt(batch: TrainBatch, units: list[list[int]]) -> list[list[int]]:
    """Sort `units` by length, with units of the same prompt side by side.

    The key of a unit is the length of the longest row with its prompt.
    """
    tokens, prompts, lengths = batch.tokens.numpy(), batch.prompt_lengths.tolist(), batch.lengths.tolist()
    keys = {unit[0]: tokens[unit[0], : prompts[unit[0]]].tobytes() for unit in units}
    longest: dict[bytes, int] = {}
    first: dict[bytes, int] = {}
    for position, unit in enumerate(units):
        key = keys[unit[0]]
        longest[key] = max(longest.get(key, 0), *(lengths[row] for row in unit))
        first.setdefault(key, position)
    return sorted(units, key=lambda unit: (longest[keys[unit[0]]], first[keys[unit[0]]]))
