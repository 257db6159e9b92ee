"""Which cluster is used, and what is said where it is not there or too small."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from trinity.common.errors import EnvironmentProblem
from trinity.runtime.cluster import (
    ClusterRequest,
    Machine,
    check_cluster,
    check_found,
    check_gpus,
    death_cause,
    found_address,
    last_words,
    refusal,
)


def test_an_address_is_found_where_something_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert found_address(address) == address
        assert found_address("auto") is None and found_address("local") is None
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address + "\n")
        assert found_address("auto") == address and found_address("local") is None
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        assert found_address("auto") is None
    assert found_address(address) is None


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"E3404.*host:port"):
        found_address(address)


def test_several_machines_without_a_cluster_are_told_how_to_start_one() -> None:
    request = ClusterRequest("10.0.0.1:7000", "run", node_num=3, gpu_per_node=8)
    with pytest.raises(EnvironmentProblem, match="E3401") as error:
        check_found(request, None)
    text = str(error.value)
    assert "ray start --head --port=7000 --num-gpus=8" in text
    assert "ray start --address=10.0.0.1:7000 --num-gpus=8" in text and "does not answer" in text
    assert "~/.ray/auth_token" in text and "RAY_AUTH_MODE=token" in text
    check_found(request, "10.0.0.1:7000")
    a, b, c = (Machine(name, 8) for name in "abc")
    with pytest.raises(EnvironmentProblem, match=r"E3401.*has 2 machines \(a, b\)"):
        check_cluster(request, [a, b])
    with pytest.raises(EnvironmentProblem, match="E3202"):
        check_cluster(request, [a, b, Machine("d", 4)])
    check_cluster(request, [a, b, c])


@pytest.mark.parametrize("variable", [None, "RAY_ADDRESS"])
def test_an_address_at_which_nothing_answers_is_told_wherever_it_is(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one of this machine: another cluster is not what was asked for."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    if variable is not None:
        monkeypatch.setenv(variable, address)
    request = ClusterRequest(address if variable is None else "auto", "run")
    with pytest.raises(EnvironmentProblem, match=f"E3409.*no Ray head at {address}: nothing answers there") as error:
        check_found(request, found_address(request.address))
    assert error.value.exit_code == 3 and "cluster.ray_address=local" in str(error.value)


def test_no_address_and_one_of_a_cluster_that_has_ended_mean_a_new_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1\n")
    for address in ("auto", "local"):
        assert found_address(address) is None
        check_found(ClusterRequest(address, "run"), None)


def test_parts_that_share_the_gpus_of_a_machine_need_one_cluster() -> None:
    part = ClusterRequest("auto", "run", gpu_per_node=4, is_part=True)
    with pytest.raises(EnvironmentProblem, match=r"E3408.*the same 4 GPUs") as error:
        check_found(part, None)
    assert "\n  ray start --head --port=6379\n" in str(error.value) and error.value.exit_code == 3
    check_found(part, "127.0.0.1:6379")
    for fine in ({"address": "local"}, {"gpu_per_node": 0}, {"is_part": False}):
        check_found(replace(part, **fine), None)


def test_gpus_are_counted_in_a_table() -> None:
    check_gpus({"engines": 2, "trainer": 2}, [Machine("a", 4)])
    with pytest.raises(EnvironmentProblem, match="E3202") as error:
        check_gpus({"engines": 8, "trainer": 1}, [Machine("10.0.0.1", 8)])
    rows = [line.split() for line in str(error.value).splitlines()[1:5]]
    assert rows == [["engines", "8"], ["trainer", "1"], ["asked", "in", "all", "9"], ["have", "8"]]
    assert error.value.exit_code == 3
    two = [Machine("10.0.0.1", 4), Machine("10.0.0.2", 2)]
    with pytest.raises(EnvironmentProblem, match=r"E3202.*6 GPUs of one machine and the largest has 4"):
        check_gpus({"engine": 6}, two)
    check_gpus({"all": 6}, two, one_machine=False)


def test_gpus_of_a_cluster_that_a_run_does_not_ask_for_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "trinity"):
        check_cluster(ClusterRequest("auto", "run"), [Machine("a", 0)])
        assert caplog.text == ""
        check_cluster(ClusterRequest("auto", "run"), [Machine("a", 4)])
    assert "has 4 GPUs and the run asks for none (cluster.gpu_per_node is 0)" in caplog.text


def test_why_a_cluster_cannot_be_joined_is_told() -> None:
    text = "Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.10"
    versions = refusal(RuntimeError(text), "a:1")
    assert versions is not None and versions.code == "E3402"
    assert "Ray: 2.9 Python: 3.10" in str(versions) and "RAY_AUTH_MODE=token with" in str(versions)
    other = refusal(ConnectionError("Failed to connect to Ray cluster at a:1\nmore"), "a:1")
    assert other is not None and other.code == "E3409" and other.exit_code == 3
    assert "no Ray head at a:1: what answers there" in str(other) and "at a:1; look whether" in str(other)
    assert refusal(RuntimeError("something else"), "a:1") is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("The actor is dead because it was killed by `ray.kill`.", "killed by its runtime"),
        ("The actor is dead because its owner has died. Owner Id: 1", "the process that started it is gone"),
        ("The actor died because its node has died. Node Id: 1", "its machine is gone"),
        ("Worker exit type: SYSTEM_ERROR Worker exit detail: connection error code 2", "without a word"),
        (
            "The actor 1 is unavailable: The actor is temporarily unavailable: Socket closed",
            "the connection to its process",
        ),
        ("something else\nhappened", "something else happened"),
    ],
)
def test_the_cause_of_a_death_is_short(text: str, cause: str) -> None:
    assert cause in death_cause(text)


def test_the_last_words_are_those_of_the_process_itself(tmp_path: Path) -> None:
    file = tmp_path / "worker.err"
    file.write_text(":job_id:1\nfirst\nkilled by me\n\n:actor_name:x\n")
    assert last_words(str(file)) == "; its last line on stderr: killed by me"
    assert last_words(str(tmp_path / "none")) == "" and last_words("") == ""
