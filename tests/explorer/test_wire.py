"""Engine calls between programs: what travels, and what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
import torch

from trinity.common.errors import DataError, EngineError, NotAvailableError
from trinity.common.experience import Experience
from trinity.common.models.said import Said
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.isolation.child import DistantEngine
from trinity.explorer.isolation.requested import RequestedCalls
from trinity.explorer.isolation.wire import call_bytes, call_of, error_of, failure_of, result_bytes, result_of
from trinity.runtime.base import RemoteError

EXPERIENCE = Experience(tokens=[5, 6, 7], prompt_length=2, logprobs=[-0.1], info={"finish_reason": "stop"})


@pytest.mark.parametrize("value", [{"a": 3}, 7, True, None, {"x": 0.25}])
def test_plain_results_come_back(value: Any) -> None:
    assert result_of(result_bytes(4, value)) == (4, value)


def test_tensors_and_experiences_come_back_to_the_bit() -> None:
    values = torch.rand(17)
    version, tensor = result_of(result_bytes(2, values))
    assert version == 2 and torch.equal(tensor, values)
    one = result_of(result_bytes(0, EXPERIENCE))[1]
    many = result_of(result_bytes(0, [EXPERIENCE, EXPERIENCE]))[1]
    assert [each.to_dict() for each in (one, *many)] == [EXPERIENCE.to_dict()] * 3
    assert result_of(result_bytes(0, []))[1] == []


def test_a_call_comes_back_and_what_is_no_json_is_refused() -> None:
    assert call_of(call_bytes([[1, 2]], {"n": 2, "stop": None})) == ([[1, 2]], {"n": 2, "stop": None})
    said = Said(2, [3, 4, 5], 1)
    assert call_of(call_bytes([[]], {"said": said}))[1]["said"].tokens == said.tokens
    with pytest.raises(EngineError, match="must be text, numbers") as caught:
        call_bytes([object()], {})
    assert caught.value.code == "E5641"
    wrong = [b"[]", b"{}", b'{"args": 1}', b"\xff", b'{"args": [], "kwargs": [1]}', b'{"args": [], "kwargs": null}']
    wrong += [b'{"args": [], "x": 1}', b'{"args": ["\\ud800"]}', b'{"args": ' + b"[" * 100_000]
    beginnings = (5, [], [1, [2]], [1, [2, "3"], 1], [0, [2, 3], 1], [1, [2, 3], 4], list(range(9)))
    wrong += [json.dumps({"args": [], "kwargs": {"said": said}}).encode() for said in beginnings]
    for data in wrong:
        with pytest.raises(ValueError):
            call_of(data)


def test_a_damaged_result_is_refused() -> None:
    data = bytearray(result_bytes(0, EXPERIENCE))
    data[-20] ^= 1
    with pytest.raises(DataError):
        result_of(bytes(data))


@pytest.mark.parametrize("error", [EngineError("too long", code="E5608"), NotAvailableError("no such thing")])
def test_an_error_of_ours_is_itself_again(error: EngineError) -> None:
    again = error_of(failure_of(error))
    assert type(again) is type(error) and again.args == error.args
    assert isinstance(again, EngineError | NotAvailableError) and again.code == error.code


def test_another_error_says_its_kind_and_no_place_of_the_server() -> None:
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError as error:
        again = error_of(failure_of(error))
    assert isinstance(again, RemoteError) and "ZeroDivisionError: no" in str(again) and ".py" not in str(again)


def test_an_address_without_engines_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def scenario() -> None:
        calls = RequestedCalls(address, "key", timeout_s=5.0)
        try:
            await DistantEngine(calls, 0).stats()
        finally:
            await calls.close()

    async def refused() -> None:
        endpoint = Endpoint()
        try:
            calls = RequestedCalls(await asyncio.to_thread(lambda: endpoint.address), "key", timeout_s=5.0)
            await DistantEngine(calls, 0).stats()
        finally:
            await calls.close()
            endpoint.close()

    with pytest.raises(EngineError, match="refused a call with status 404"):
        asyncio.run(refused())
    with pytest.raises(EngineError, match="does not answer") as caught:
        asyncio.run(scenario())
    assert caught.value.code == "E5640" and address in str(caught.value)
