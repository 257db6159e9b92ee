"""Tokens of Ray clusters: the driver follows the cluster, and what one cluster asked for is not kept for the next."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping

import pytest

from tests.runtime.cluster_process import cluster_process
from tests.runtime.parts import Part
from tests.runtime.test_contract import started
from trinity.common.errors import EnvironmentProblem
from trinity.runtime.cluster import ClusterRequest

pytest.importorskip("ray")

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
OURS, THEIRS = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with cluster_process({MODE: "token", TOKEN: OURS}) as address:
        yield address


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[str]:
    with cluster_process({MODE: "disabled"}) as address:
        yield address


def joins(address: str, says: Mapping[str, str]) -> None:
    """Join the cluster, and call an actor of it, with an environment that says of tokens what `says` does."""
    from trinity.runtime import ray as placement

    with pytest.MonkeyPatch.context() as patch:
        for name in (MODE, TOKEN):
            patch.delenv(name, raising=False)
        for name, value in says.items():
            patch.setenv(name, value)
        before = dict(os.environ)
        try:
            placement.connect(ClusterRequest(address, "tokens", is_quiet=True))
            asyncio.run(calls_an_actor())
        finally:
            placement.disconnect()
        assert {name: os.environ.get(name) for name in (MODE, TOKEN)} == {n: before.get(n) for n in (MODE, TOKEN)}


async def calls_an_actor() -> None:
    from trinity.runtime.ray import RayRuntime

    async with started(RayRuntime("tokens")) as runtime:
        part = await runtime.start(Part, name="part")
        assert await part.environment("PATH") == os.environ["PATH"]


REFUSED = {
    "it asks for a token, and RAY_AUTH_MODE is 'disabled' here": ("guarded", {MODE: "disabled", TOKEN: OURS}),
    "it asks for no token, and RAY_AUTH_MODE is 'token' here": ("open_to_all", {MODE: "token", TOKEN: OURS}),
    "the token is missing here, or is another one": ("guarded", {TOKEN: THEIRS}),
}


@pytest.mark.nightly
def test_a_process_joins_clusters_with_and_without_a_token_in_any_order(guarded: str, open_to_all: str) -> None:
    """Each pair of neighbours is one order; the first cluster is one that Ray starts for this process, with a token."""
    joins("local", {TOKEN: OURS})
    joins(open_to_all, {})
    joins(guarded, {TOKEN: OURS})
    joins(open_to_all, {TOKEN: OURS})
    joins(guarded, {MODE: "token", TOKEN: OURS})
    joins(open_to_all, {MODE: "disabled", TOKEN: OURS})
    joins("local", {TOKEN: THEIRS})
    joins(guarded, {TOKEN: OURS})


def test_what_answers_at_the_address_and_is_no_head_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("py_gcs_connect_timeout_s", "gcs_rpc_server_connect_timeout_s"):
        monkeypatch.setenv(f"RAY_{name}", "1")  # Ray's own are 30 and 5
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(
            EnvironmentProblem, match=rf"E3409.*no Ray head at {address}: what answers there is none"
        ) as error:
            joins(address, {})
    assert error.value.exit_code == 3


@pytest.mark.parametrize("why", REFUSED)
def test_a_driver_that_does_not_agree_is_told_at_once(why: str, request: pytest.FixtureRequest) -> None:
    name, says = REFUSED[why]
    with pytest.raises(EnvironmentProblem, match=rf"(?s)E3402.*{why}"):
        joins(request.getfixturevalue(name), says)
    joins(request.getfixturevalue("open_to_all"), {})
