"""Collation, splitting and packing."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.conftest import make_experiences
from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience
from trinity.trainer.batch import collate, micro_batches, mini_batches
from trinity.trainer.verl.packing import pack


def test_collated_rows_start_at_column_zero() -> None:
    first = Experience(EID(1, 0, 0), [5, 6, 7, 8], 2, logprobs=[-1.0, -2.0], reward=1.0, info={"model_version": 4})
    second = Experience(EID(1, 0, 1), [5, 9, 9, 9, 9], 1, logprobs=[-1.0] * 4, action_mask=[True, False, True, True])
    batch = collate([first, second])
    assert batch.uids == ("1/0/0/0/", "1/0/1/0/")
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 0], [5, 9, 9, 9, 9]]
    assert batch.action_mask.tolist() == [[True, True, False, False], [True, False, True, True]]
    assert batch.columns["rollout_logprob"].tolist() == [[-1.0, -2.0, 0.0, 0.0], [-1.0] * 4]
    assert batch.model_versions.tolist() == [4, -1] and batch.num_tokens == 9 and batch.num_action_tokens == 5
    assert batch.rewards[0] == 1.0 and torch.isnan(batch.rewards[1])


def test_column_is_present_only_if_every_row_has_it() -> None:
    experiences = make_experiences(1)
    experiences[2].logprobs = None
    assert set(collate(experiences).columns) == {"advantages"}


def test_selected_rows_are_padded_to_their_own_longest() -> None:
    experiences = make_experiences(1)
    batch = collate(experiences)
    part = batch.select([3, 1])
    assert part.uids == (experiences[3].eid.uid, experiences[1].eid.uid)
    longest = max(len(experiences[i].tokens) for i in (1, 3))
    assert part.tokens.shape == (2, longest)
    assert part.tokens[0, : len(experiences[3].tokens)].tolist() == experiences[3].tokens.tolist()


def test_response_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="1/0/0/0/ has no response token"):
        collate([Experience(EID(1, 0, 0), [1, 2], 2)])


def test_mini_batches_cover_every_row_once() -> None:
    assert mini_batches(5, size=2) == [[0, 1], [2, 3], [4]] and mini_batches(3, size=None) == [[0, 1, 2]]
    shuffled = mini_batches(5, size=2, generator=torch.Generator().manual_seed(1))
    assert sorted(sum(shuffled, [])) == [0, 1, 2, 3, 4] and shuffled != mini_batches(5, size=2)


@pytest.mark.parametrize("max_tokens", [1, 20, 40, 100, None])
@pytest.mark.parametrize("max_rows", [1, 3, None])
def test_micro_batches_keep_the_limits(max_tokens: int | None, max_rows: int | None) -> None:
    batch = collate(make_experiences(1, tasks=5, repeats=3))
    groups = micro_batches(batch, range(15), max_tokens=max_tokens, max_rows=max_rows)
    assert sorted(sum(groups, [])) == list(range(15))
    for group in groups:
        assert max_rows is None or len(group) <= max_rows
        assert max_tokens is None or len(group) == 1 or int(batch.lengths[group].sum()) <= max_tokens


def test_micro_batches_keep_rows_of_a_prompt_together() -> None:
    batch = collate(make_experiences(1, tasks=4, repeats=4, ragged=False))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).tolist()
    groups = micro_batches(batch, order, max_tokens=None, max_rows=4)
    assert all(len({row // 4 for row in group}) == 1 for group in groups)


def test_packed_tokens_leave_out_padding_last_tokens_and_repeated_prompts() -> None:
    prompt = [5, 6, 7]
    rows = [Experience(EID(1, 0, i), prompt + response, 3) for i, response in enumerate(([8, 9], [1, 2, 3], [4, 4]))]
    batch = collate(rows)
    apart = pack(batch, share_prompts=False)
    assert apart.tokens.tolist() == [5, 6, 7, 8, 5, 6, 7, 1, 2, 5, 6, 7, 4]
    assert apart.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert apart.sources.tolist() == [2, 3, 6, 7, 8, 11, 12] and apart.labels.tolist() == [8, 9, 1, 2, 3, 4, 4]
    shared = pack(batch, share_prompts=True)
    assert shared.tokens.tolist() == [5, 6, 7, 8, 1, 2, 4]
    assert shared.positions.tolist() == [0, 1, 2, 3, 3, 4, 3]
    assert shared.sources.tolist() == [2, 3, 2, 4, 5, 2, 6] and shared.labels.tolist() == apart.labels.tolist()
    assert shared.targets.tolist() == apart.targets.tolist() == [0, 1, 3, 4, 5, 6, 7]


def test_prompts_that_differ_are_not_shared() -> None:
    batch = collate(make_experiences(1, tasks=6, repeats=1))
    assert pack(batch, share_prompts=True).prefix is None
