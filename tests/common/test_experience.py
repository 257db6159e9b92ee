"""Experiences: identity, payload and batch."""

from __future__ import annotations

import pickle
import random
import struct

import pytest
import torch
import xxhash

from trinity.common import payload
from trinity.common.errors import DataError
from trinity.common.experience import EID, CustomField, Experience, Experiences, group_by


def example() -> Experience:
    return Experience(
        eid=EID(batch="3/gsm8k", task=1, run=2, step=4, suffix="x"),
        tokens=torch.tensor([5, 6, 7, 8, 9]),
        prompt_length=2,
        logprobs=torch.tensor([-0.5, -1.25, -3.0]),
        reward=0.75,
        token_level_reward=torch.tensor([0.0, 0.25, 0.5]),
        advantages=torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
        action_mask=torch.tensor([True, False, True]),
        truncate_status="response_truncated",
        info={"model_version": 7, "nested": {"list": [1, "two", None, True]}},
        metrics={"accuracy": 1.0, "undefined": float("nan")},
        prompt_text="two words\ud800",
        response_text="日本\0語",
        messages=[{"role": "user", "content": "hi"}],
        tools=[{"name": "search"}],
        teacher_logprobs=torch.tensor([-1.0, -2.0, -3.0]),
        routed_experts=torch.arange(8).view(4, 1, 2),
        multi_modal_inputs={"pixels": torch.ones(2, 2)},
        custom_fields=[CustomField("model_version", "version", torch.int64)],
    )


def test_what_was_serialised_comes_back() -> None:
    before = example()
    after = Experience.deserialize(before.serialize())
    for name in vars(before):
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, torch.Tensor):
            assert torch.equal(old, new) and old.dtype == new.dtype, name
        elif name == "multi_modal_inputs":
            assert torch.equal(old["pixels"], new["pixels"])
        elif name == "metrics":
            assert new["accuracy"] == 1.0 and new["undefined"] != new["undefined"]
        else:
            assert old == new, name
    assert after.serialize() == before.serialize()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("other", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_tensors_of_every_type_and_form_come_back(dtype: torch.dtype, other: torch.dtype) -> None:
    tensors = {
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.ones((0, 3), dtype=other),
        "odd": torch.arange(5).to(dtype),
        "view": torch.arange(12).reshape(3, 4).t()[1:].to(other),
        "数": torch.arange(7)[::2].to(other),
    }
    header, found = payload.decode(payload.encode({"a": 1}, tensors))
    assert header == {"a": 1} and found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_a_tensor_that_is_not_stored_is_named() -> None:
    with pytest.raises(DataError, match=r"E5102.*experience\.x must be a tensor of float64, .*got torch\.complex64"):
        payload.encode({}, {"x": torch.zeros(2, dtype=torch.complex64)})


def test_views_of_one_tensor_are_stored_apart() -> None:
    tokens = torch.arange(100)
    after = Experience.deserialize(Experience(tokens=tokens[10:20], prompt_length=10, info={}).serialize())
    assert after.tokens.tolist() == list(range(10, 20))
    assert after.response_length == 0


@pytest.mark.difference("Stored experiences")
def test_every_flipped_bit_is_detected() -> None:
    data = example().serialize()
    generator = random.Random(0)
    places = {*range(0, 26 * 8), *generator.sample(range(len(data) * 8), 1000)}
    for place in places:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(DataError, match="E5101"):
            Experience.deserialize(bytes(damaged))


def test_every_truncation_and_any_tail_is_detected() -> None:
    data = example().serialize()
    for size in [*range(0, 64), *range(64, len(data), 37), len(data) - 1]:
        with pytest.raises(DataError, match="E5101"):
            Experience.deserialize(data[:size])
    with pytest.raises(DataError, match="truncated or padded"):
        Experience.deserialize(data + b"\0")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (RuntimeError, ("the pickle was executed",))


@pytest.mark.difference("Stored experiences")
def test_a_pickle_is_refused_and_not_executed() -> None:
    """B112, X12."""
    for data in (pickle.dumps(Bomb()), b"TREX" + pickle.dumps(Bomb()) + bytes(64)):
        with pytest.raises(DataError, match="E5101"):
            Experience.deserialize(data)


def test_another_version_is_refused() -> None:
    """B112."""
    data = bytearray(example().serialize())
    struct.pack_into("<H", data, 4, 3)
    data[-16:] = xxhash.xxh3_128_digest(bytes(data[:-16]))
    with pytest.raises(DataError, match="version 3, this program reads 1 and 2"):
        Experience.deserialize(bytes(data))


def test_an_oversize_payload_is_refused() -> None:
    """B112."""
    data = example().serialize()
    with pytest.raises(DataError, match=f"{len(data)} bytes, more than 100"):
        Experience.deserialize(data, max_bytes=100)


def test_a_valid_envelope_around_another_content_is_refused() -> None:
    data = example().serialize()
    end = 18 + struct.unpack_from("<I", data, 14)[0]
    for header in (b"[1]", b"{}", b"not json"):
        total = 18 + len(header) + len(data) - end
        body = struct.pack("<4sHQI", b"TREX", 1, total, len(header)) + header + data[end:-16]
        with pytest.raises(DataError, match="E5101"):
            Experience.deserialize(body + xxhash.xxh3_128_digest(body))


@pytest.mark.parametrize(
    "entry",
    [
        b'{"dtype":"I64","shape":[3],"data_offsets":[0,16]}',
        b'{"dtype":"I64","shape":[2],"data_offsets":[8,24]}',
        b'{"dtype":"I64","shape":[-2],"data_offsets":[16,0]}',
        b'{"dtype":"I64","shape":[2.0],"data_offsets":[0,16]}',
        b'{"dtype":"X9","shape":[2],"data_offsets":[0,16]}',
        b'{"dtype":"I64","shape":[2]}',
        b"[]",
    ],
)
def test_tensors_outside_of_their_bytes_are_refused(entry: bytes) -> None:
    def enveloped(entries: bytes, length: int | None = None) -> bytes:
        block = struct.pack("<Q", len(entries) if length is None else length) + entries + bytes(16)
        total = 18 + 2 + len(block) + 16
        body = struct.pack("<4sHQI", b"TREX", 1, total, 2) + b"{}" + block
        return body + xxhash.xxh3_128_digest(body)

    right = b'{"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}'
    assert payload.decode(enveloped(right))[1]["x"].tolist() == [0, 0]
    for data in (enveloped(b'{"x":' + entry + b"}"), enveloped(b"[1]"), enveloped(right, 2**40)):
        with pytest.raises(DataError, match="E5101"):
            payload.decode(data)


def test_tensors_of_one_payload_can_be_changed_apart() -> None:
    first = {"x": torch.arange(3), "y": torch.zeros(0, 4), "z": torch.tensor(1.5)}
    found = payload.decode(payload.encode({}, first))[1]
    found["x"][:] = -1
    assert found["z"].shape == () and float(found["z"]) == 1.5 and found["y"].shape == (0, 4)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"when": object()}, r"info\.when must be JSON-able .* got object"),
        ({"many": [1, {2}]}, r"info\.many\[1\] must be JSON-able .* got set"),
        ({1: "one"}, "the key 1 must be text, got int"),
        ({"tensor": torch.ones(2)}, "got Tensor"),
    ],
)
def test_info_that_json_cannot_hold_is_named(info: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Experience(tokens=[1, 2], prompt_length=1, info=info).serialize()


def test_endless_nesting_is_refused() -> None:
    info: dict = {}
    info["self"] = info
    with pytest.raises(DataError, match="nested deeper than 32 levels"):
        Experience(tokens=[1], prompt_length=1, info=info).serialize()


def test_scalar_tensors_in_metrics_become_numbers() -> None:
    experience = Experience(tokens=[1], prompt_length=1, metrics={"a": torch.tensor(0.5), "b": torch.tensor(2)})
    assert Experience.deserialize(experience.serialize()).metrics == {"a": 0.5, "b": 2}


@pytest.mark.parametrize(
    "values",
    [
        {"tokens": None},
        {"tokens": [1, 2], "prompt_length": 0},
        {"tokens": [1, 2], "prompt_length": 3},
        {"tokens": [[1, 2]], "prompt_length": 1},
        {"tokens": [1, 2, 3], "prompt_length": 1, "logprobs": [0.0]},
        {"tokens": [1, 2, 3], "prompt_length": 1, "action_mask": [True] * 4},
        {"tokens": [1, 2, 3], "prompt_length": 3, "chosen": [4]},
    ],
)
def test_lengths_that_do_not_fit_are_refused(values: dict) -> None:
    with pytest.raises(DataError, match="E5102"):
        Experience(**values)


def test_a_number_as_advantage_is_spread_over_the_response() -> None:
    assert Experience(tokens=[1, 2, 3], prompt_length=1, advantages=0.5).advantages.tolist() == [0.5, 0.5]


def test_identities_name_turn_group_and_rollout() -> None:
    eid = EID(batch=12, task=3, run=1, step=2)
    assert (eid.uid, eid.sid, eid.rid, eid.tid) == ("12/3/1/2/", "12/3/2", "12/3/1", "12/3")
    for one in (eid, EID("4/eval set", 0, 5, 0, "b"), EID("", "007", 0, 0)):
        assert EID.from_uid(one.uid) == one
    with pytest.raises(DataError, match="batch/task/run/step/suffix"):
        EID.from_uid("1/2/x/4/")


def test_grouping_keeps_the_order_of_appearance() -> None:
    ids = [(1, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 0)]
    rows = [Experience(eid=EID(b, t, r, 0), tokens=[1], prompt_length=1) for b, t, r in ids]
    assert {key: len(group) for key, group in group_by(rows, "task").items()} == {"1/1": 2, "1/0": 1, "2/0": 1}
    assert list(group_by(rows, "run")) == ["1/1/0", "1/0/0", "1/1/1", "2/0/0"]
    assert group_by(rows, "step")["1/1/0"] == [rows[0], rows[2]]
    with pytest.raises(ValueError, match="task, run or step"):
        group_by(rows, "batch")  # type: ignore[arg-type]


def test_gathering_pads_prompts_left_and_responses_right() -> None:
    long = Experience(tokens=[1, 2, 3, 4], prompt_length=3, logprobs=[-1.0], reward=2.0, action_mask=[False])
    short = Experience(tokens=[5, 6, 7], prompt_length=1, logprobs=[-2.0, -3.0], token_level_reward=[0.5, 0.0])
    batch = Experiences.gather([long, short], pad_token_id=9)
    assert batch.prompt_length == 3 and batch.batch_size == 2
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 9], [9, 9, 5, 6, 7]]
    assert batch.attention_masks.int().tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert batch.action_masks.int().tolist() == [[0, 0], [1, 1]]
    assert batch.token_level_rewards.tolist() == [[2.0, 0.0], [0.5, 0.0]]
    assert batch.logprobs is not None and batch.logprobs.tolist() == [[-1.0, 0.0], [-2.0, -3.0]]
    assert batch.advantages is None
    assert batch.rewards[0] == 2.0 and bool(batch.rewards[1].isnan())


def test_a_preference_pair_is_two_rows_and_custom_fields_become_tensors() -> None:
    pair = Experience(
        tokens=[1, 2],
        prompt_length=2,
        chosen=[3, 4],
        rejected=[5],
        info={"margin": 0.5},
        custom_fields=[CustomField("margin", "margins")],
    )
    batch = Experiences.gather([pair])
    assert batch.tokens.tolist() == [[1, 2, 3, 4], [1, 2, 5, 0]]
    assert batch.custom_tensors["margins"].tolist() == [0.5, 0.5]
    assert pair.experience_type == "dpo"
    with pytest.raises(ValueError, match="empty list"):
        Experiences.gather([])
