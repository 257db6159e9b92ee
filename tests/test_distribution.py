"""What is built for users is whole: everything that the package has, from one version, and it runs on its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import trinity

ROOT = Path(__file__).resolve().parents[1]
BUILD = "from setuptools import build_meta; print(build_meta.build_{kind}({out!r}))"
NAMED = ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Dockerfile")


def sources() -> set[str]:
    """Return the files of the package, as the repository has them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "trinity"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def build(source: Path, kind: str, out: Path) -> Path:
    code = BUILD.format(kind=kind, out=str(out))
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the archive of sources, and the wheel that is built from it."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in [*sources(), *NAMED]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    sdist = build(copy, "sdist", out)
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (inner,) = unpacked.iterdir()
    return sdist, build(inner, "wheel", out)


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == sources()


def test_the_version_is_that_of_the_package(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = message_from_bytes(archive.read(name))
    assert told["Version"] == trinity.__version__
    written = re.findall(rf"\b{re.escape(trinity.__version__)}\b", (ROOT / "pyproject.toml").read_text())
    assert not written, "the version is written in trinity/__init__.py alone"
    assert trinity.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_extras_do_not_contradict_what_is_always_installed() -> None:
    """A release that everybody gets is one that an extra accepts, too, unless its comment says otherwise."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(line).name: Requirement(line) for line in project["dependencies"]}
    for extra, lines in project["optional-dependencies"].items():
        for line in lines:
            wanted, base = Requirement(line), needed.get(Requirement(line).name)
            lowest = [spec.version for spec in base.specifier if spec.operator == ">="] if base else []
            assert not base or any(wanted.specifier.contains(version) for version in lowest), (extra, line)


def test_the_image_copies_what_is_there_and_installs_extras_that_are_declared() -> None:
    image, ignored = ((ROOT / name).read_text() for name in ("Dockerfile", ".dockerignore"))
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", image, flags=re.MULTILINE) for name in line.split()]
    assert {"pyproject.toml", "trinity"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in ignored.splitlines()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for names in re.findall(r"extras=([\w,]+)", image) for name in names.split(",")]
    assert "vllm" in extras and set(extras) <= set(project["optional-dependencies"])
    for text in (image, (ROOT / "docs" / "install.md").read_text()):
        assert re.findall(r'pip install "(torch[^"]*)"', text) == [
            line for line in project["dependencies"] if Requirement(line).name == "torch"
        ]


@pytest.mark.slow
def test_the_installed_wheel_runs_the_quickstart(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In a folder of its own, without the repository; its two stages are shortened."""
    place, folder = tmp_path / "installed", tmp_path / "quickstart"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(place)]
    subprocess.run([*install, str(built[1])], check=True, timeout=300)
    environment = os.environ | {"PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}

    def trinity_command(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "trinity", *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    where = [sys.executable, "-c", "import trinity; print(trinity.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(place)
    trinity_command("quickstart", "--dir", str(folder), "--prepare-only")
    file = folder / "quickstart.yaml"
    tree = yaml.safe_load(file.read_text())
    sft, rft = tree["stages"]
    sft["trainer"]["total_steps"], rft["buffer"]["total_steps"] = 2, 1
    file.write_text(yaml.safe_dump(tree))
    trinity_command("run", "--config", str(file))
    jobs = json.loads(trinity_command("runs", str(folder), "--json"))
    assert {Path(job["job"]).name: job["status"] for job in jobs} == {"sft_warmup": "done", "rft": "done"}
