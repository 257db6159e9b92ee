"""Rows that share prefixes become a forest in which every token stands once, and stay together in micro-batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.conftest import make_branches, make_episodes, make_experiences
from trinity.common.experience import EID, Experience
from trinity.trainer.batch import TrainBatch, along_prefixes, collate, micro_batches
from trinity.trainer.prefixes import MAX_LEFT, MIN_TOKENS, Forest, Sharing, grow, in_order
from trinity.trainer.verl.packing import pack
from trinity.trainer.verl.parallel.balance import split_work

SHARING = Sharing(prefixes=True)


@st.composite
def families_of_rows(draw: st.DrawFn, *, longest: int = 60) -> list[Experience]:
    """Return rows that grow out of each other: each begins with a part of an earlier row, or again."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    tokens: list[torch.Tensor] = []
    experiences = []
    for number in range(draw(st.integers(1, 9))):
        origin = draw(st.integers(-1, len(tokens) - 1))
        kept = 0 if origin < 0 else draw(st.integers(0, len(tokens[origin])))
        begin = tokens[origin][:kept] if origin >= 0 else torch.zeros(0, dtype=torch.long)
        added = draw(st.integers(0, longest))
        row = torch.cat([begin, torch.randint(3, 6, (added,), generator=generator)])
        row = torch.cat([row, torch.randint(3, 6, (max(0, 2 - len(row)),), generator=generator)])
        prompt = draw(st.integers(1, len(row) - 1))
        mask = torch.rand(len(row) - prompt, generator=generator) < 0.7
        first = draw(st.one_of(st.just(0), st.integers(0, len(mask) - 1)))
        mask[:first], mask[first] = False, True
        experiences.append(Experience(EID(1, 0, number), row, prompt, action_mask=mask))
        tokens.append(row)
    return experiences


def forest_of(batch: TrainBatch) -> Forest:
    return grow(in_order(batch.tokens, batch.lengths, batch.num_given, range(len(batch))))


@settings(max_examples=300)
@given(families_of_rows())
def test_every_row_is_the_path_to_its_leaf(rows: list[Experience]) -> None:
    batch = collate(rows)
    forest = forest_of(batch)
    owners, positions = forest.tokens()
    tokens = batch.tokens[owners, positions]
    assert len(tokens) == forest.num_tokens <= int((batch.lengths - 1).sum())
    for row, length in enumerate((batch.lengths - 1).tolist()):
        places = torch.from_numpy(forest.places(row))
        assert tokens[places].tolist() == batch.tokens[row, :length].tolist()
        assert positions[places].tolist() == list(range(length))


@settings(max_examples=300)
@given(families_of_rows())
def test_what_lies_below_a_node_follows_it_in_the_list(rows: list[Experience]) -> None:
    nodes = forest_of(collate(rows)).nodes
    at = 0
    for number, node in enumerate(nodes):
        assert node.at == at and node.length > 0
        at += node.length
        above = set()
        place = node.parent
        while place >= 0:
            above.add(place)
            place = nodes[place].parent
        assert node.start == sum(nodes[place].length for place in above)
        covering = {
            place
            for place, other in enumerate(nodes[:number])
            if other.at + other.length <= node.at < other.at + other.length + other.below
        }
        assert covering == above


def test_turns_of_an_episode_are_one_sequence_and_samples_branch_off() -> None:
    batch = collate(make_episodes(episodes=1, turns=3))
    assert len(forest_of(batch).nodes) == 1
    assert forest_of(batch).num_tokens == int(batch.lengths.max()) - 1
    group = make_experiences(1, tasks=1, repeats=3)
    base = torch.randint(3, 20, (MIN_TOKENS,))
    rows = [Experience(e.eid, torch.cat([base, e.tokens]), len(base) + e.prompt_length) for e in group]
    lengths = [node.length for node in forest_of(collate(rows)).nodes]
    assert lengths[0] == rows[0].prompt_length and len(lengths) == 4


def test_branches_of_a_tree_are_shared_up_to_where_they_part() -> None:
    rows = make_branches(rollouts=1, branches=4)
    batch, root = collate(rows), rows[0]
    common = rows[1].info["shared_tokens"]
    assert root.prompt_length < common < len(root.tokens) and root.action_mask is not None and root.action_mask[0]
    assert batch.num_given[1:].min() > common, "the common response is trained by the first alone"
    nodes = forest_of(batch).nodes
    assert [node.length for node in nodes] == [common, *(len(nodes_of) for nodes_of in own_parts(rows, common))]
    assert along_prefixes(batch, range(4), SHARING) is not None


def own_parts(rows: list[Experience], common: int) -> list[torch.Tensor]:
    """Return what each row has after the common tokens, in the order of the forest, without the last token."""
    parts = sorted(exp.tokens[:-1].numpy().tobytes() for exp in rows)
    return [torch.frombuffer(bytearray(part), dtype=torch.long)[common:] for part in parts]


def test_responses_that_begin_alike_by_chance_are_not_shared() -> None:
    prompt, answer = torch.arange(40), torch.arange(40, 80)
    rows = [Experience(EID(1, 0, run), torch.cat([prompt, answer]), 40) for run in range(2)]
    assert [node.length for node in forest_of(collate(rows)).nodes] == [40, 39, 39]


def test_prefixes_that_save_little_are_not_shared() -> None:
    rows = make_experiences(1, tasks=3)  # prompts of a few tokens
    assert pack(collate(rows), share_prompts=False, share_prefixes=True).forest is None
    assert pack(collate(rows), share_prompts=True, share_prefixes=True).prefix is not None
    episodes = collate(make_episodes())
    packed = pack(episodes, share_prompts=True, share_prefixes=True)
    assert packed.forest is not None and len(packed.tokens) <= MAX_LEFT * int(episodes.lengths.sum())
    assert pack(episodes, share_prompts=True).forest is None


@settings(max_examples=200)
@given(families_of_rows(), st.sampled_from([None, 30, 90, 200]), st.sampled_from([None, 1, 3]))
def test_micro_batches_hold_every_row_once_and_keep_the_limits(
    rows: list[Experience], max_tokens: int | None, max_rows: int | None
) -> None:
    batch = collate(rows)
    groups = micro_batches(batch, range(len(rows)), max_tokens=max_tokens, max_rows=max_rows, sharing=SHARING)
    assert sorted(sum(groups, [])) == list(range(len(rows)))
    for group in groups:
        packed = pack(batch.select(group), share_prompts=False, share_prefixes=True)
        slack = MIN_TOKENS * len(group)  # a branch right after another one begins at that one
        assert max_rows is None or len(group) <= max_rows
        assert max_tokens is None or len(group) == 1 or len(packed.tokens) <= max_tokens + slack


def test_a_limit_counts_tokens_after_sharing_and_rows_stay_with_their_episode() -> None:
    batch = collate(make_episodes(episodes=4, turns=4))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).tolist()
    limit = max(int(batch.lengths[4 * episode : 4 * episode + 4].max()) for episode in range(4))
    groups = micro_batches(batch, order, max_tokens=limit, max_rows=None, sharing=SHARING)
    assert sorted(sorted(group) for group in groups) == [list(range(4 * e, 4 * e + 4)) for e in range(4)]
    assert len(micro_batches(batch, order, max_tokens=limit, max_rows=None)) > 4


def test_without_much_to_share_micro_batches_are_what_they_are_without_sharing() -> None:
    batch = collate(make_experiences(1, tasks=5, repeats=3))
    for sharing in (SHARING, Sharing(prompts_up_to=512, prefixes=True)):
        assert along_prefixes(batch, range(15), sharing) is None
        limits = {"max_tokens": 40, "max_rows": None}
        assert micro_batches(batch, range(15), **limits, sharing=sharing) == micro_batches(batch, range(15), **limits)


@pytest.mark.parametrize("num_shares", [1, 2, 3])
@pytest.mark.parametrize("max_rows", [None, 2])
def test_shares_of_ranks_keep_episodes_and_hold_every_row_once(num_shares: int, max_rows: int | None) -> None:
    batch = collate(make_episodes(episodes=6, turns=4))
    limits = {"max_tokens": None if max_rows else 150, "max_rows": max_rows}
    shares = [
        split_work(batch, range(24), index=index, num_shares=num_shares, is_balanced=True, **limits, sharing=SHARING)
        for index in range(num_shares)
    ]
    assert len({len(share) for share in shares}) == 1
    rows = [row for share in shares for work in share if not work.is_filler for row in work.rows]
    assert sorted(rows) == list(range(24))
    episodes = [{row // 4 for work in share if not work.is_filler for row in work.rows} for share in shares]
    assert sum(len(of_share) for of_share in episodes) <= 6 + num_shares - 1
