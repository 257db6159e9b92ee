"""Collation of experiences, mini-batches and micro-batches.

Dimension key: B = rows (experiences), S = longest sequence (prompt and response), T = longest response.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from trinity.common.errors import DataError
from trinity.common.experience import Experience

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
        columns: per-token values [B, T] by the name a loss asks for (`rollout_logprob`, `advantages`, ...).
        values: per-row values [B] (custom fields).
        model_versions: version of the weights that sampled each row; -1 where unknown.
        rewards: reward of each row; NaN where there is none.
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

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows, padding excluded."""
        return int(self.lengths.sum())

    @property
    def num_action_tokens(self) -> int:
        """Tokens that losses count."""
        return int(self.action_mask.sum())

    def select(self, rows: Sequence[int]) -> TrainBatch:
        """Return the batch of `rows`, in that order, padded to its own longest row."""
        index = torch.tensor(list(rows), dtype=torch.long)
        lengths, prompt_lengths = self.lengths[index], self.prompt_lengths[index]
        width = int((lengths - prompt_lengths).max()) if len(rows) else 0
        return TrainBatch(
            uids=tuple(self.uids[row] for row in rows),
            tokens=self.tokens[index, : int(lengths.max()) if len(rows) else 0],
            lengths=lengths,
            prompt_lengths=prompt_lengths,
            action_mask=self.action_mask[index, :width],
            columns={name: column[index, :width] for name, column in self.columns.items()},
            values={name: value[index] for name, value in self.values.items()},
            model_versions=self.model_versions[index],
            rewards=self.rewards[index],
        )

    def with_columns(self, **columns: Shaped[Tensor, "B T"]) -> TrainBatch:
        """Return the batch with further per-token columns."""
        return dataclasses.replace(self, columns=self.columns | columns)


def collate(experiences: Sequence[Experience]) -> TrainBatch:
    """Return the batch of at least one experience.

    A column is present if every experience has it.

    Raises:
        DataError: an experience has no response token, or a value that is not finite (E4603).
        ValueError: no experience.
    """
    if not experiences:
        raise ValueError("cannot collate an empty list of experiences")
    for exp in experiences:
        _check(exp)
    names = [f for f in _COLUMNS if all(vars(exp)[f] is not None for exp in experiences)]
    fields = {f.destination_field: f for f in experiences[0].custom_fields}
    versions = [exp.info.get("model_version") for exp in experiences]
    rewards = [float("nan") if exp.reward is None else exp.reward for exp in experiences]
    return TrainBatch(
        uids=tuple(exp.eid.uid for exp in experiences),
        tokens=_padded([exp.tokens for exp in experiences]),
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
    )


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _check(exp: Experience) -> None:
    if exp.response_length < 1:
        raise DataError(f"experience {exp.eid.uid} has no response token and cannot be trained on", code="E4603")
    for name in ("logprobs", "advantages", "returns"):
        value = vars(exp)[name]
        if value is not None and not bool(torch.isfinite(value).all()):
            raise DataError(f"experience {exp.eid.uid}: {name} holds a value that is not finite", code="E4603")


def mini_batches(num_rows: int, *, size: int | None, generator: torch.Generator | None = None) -> list[list[int]]:
    """Return the rows of each mini-batch (one optimizer step each).

    Args:
        num_rows: rows of the batch.
        size: rows of a mini-batch; the last may be smaller; None means all.
        generator: shuffles the rows first, if given.
    """
    order = list(range(num_rows)) if generator is None else torch.randperm(num_rows, generator=generator).tolist()
    step = size or max(num_rows, 1)
    return [order[start : start + step] for start in range(0, num_rows, step)]


def micro_batches(
    batch: TrainBatch, rows: Iterable[int], *, max_tokens: int | None, max_rows: int | None
) -> list[list[int]]:
    """Return `rows` in groups that are computed at once.

    Rows of equal prompt stay together as far as the limits allow, and rows of like length meet, so that little is
    padded. A row longer than `max_tokens` is a group of its own.

    Args:
        batch: gives lengths and prompts.
        rows: rows to split.
        max_tokens: most tokens of a group, prompt and response.
        max_rows: most rows of a group.
    """
    ordered = _by_prompt(batch, list(rows))
    lengths = batch.lengths.tolist()
    total = sum(lengths[row] for row in ordered)
    limit = total if max_tokens is None else max_tokens
    if max_tokens is not None and total > max_tokens:
        limit = min(max_tokens, -(-total // -(-total // max_tokens)) + max(lengths[row] for row in ordered))
    groups: list[list[int]] = []
    used = 0
    for row in ordered:
        is_full = not groups or used + lengths[row] > limit or (max_rows is not None and len(groups[-1]) >= max_rows)
        if is_full:
            groups.append([])
            used = 0
        groups[-1].append(row)
        used += lengths[row]
    return groups


def _by_prompt(batch: TrainBatch, rows: list[int]) -> list[int]:
    """Return `rows` sorted by the length of the longest row with the same prompt, rows of a prompt side by side."""
    tokens, prompts, lengths = batch.tokens.numpy(), batch.prompt_lengths.tolist(), batch.lengths.tolist()
    keys = {row: tokens[row, : prompts[row]].tobytes() for row in rows}
    longest: dict[bytes, int] = {}
    first: dict[bytes, int] = {}
    for position, row in enumerate(rows):
        longest[keys[row]] = max(longest.get(keys[row], 0), lengths[row])
        first.setdefault(keys[row], position)
    return sorted(rows, key=lambda row: (longest[keys[row]], first[keys[row]]))
