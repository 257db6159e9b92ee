"""Machine code of kernels on disk: never that of other sources, and never a condition of a run."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trinity
from trinity.utils.fused import choice
from trinity.utils.locks import FileLock

pytest.importorskip("numba")
PACKAGE = Path(trinity.__file__).parent
CODE = """
import torch
from trinity.utils.fused import decoding
x, y = torch.full((1, 2), 2.0), torch.empty(1, 1)
decoding.gate(x.data_ptr(), y.data_ptr(), 1, 1, decoding.F0)
print(float(y), len(decoding.gate.stats.cache_hits))
"""


def run(folder: Path) -> tuple[float, int]:
    """Return silu(2) * 2 by the package in `folder`, and how many kernels came from the disk."""
    variables = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "kept")}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    value, hits = done.stdout.split()
    return float(value), int(hits)


@pytest.mark.slow
def test_a_change_in_another_file_is_compiled_again(tmp_path: Path) -> None:
    """The kernel is in decoding.py, and what it calls in machine.py."""
    shutil.copytree(PACKAGE, tmp_path / "trinity", ignore=shutil.ignore_patterns("__pycache__"))
    first = run(tmp_path)
    assert first == (pytest.approx(4 / (1 + 2.718281828**-2), rel=1e-6), 0)
    assert run(tmp_path) == (first[0], 1)
    machine = tmp_path / "trinity" / "utils" / "fused" / "machine.py"
    text = machine.read_text()
    assert "p = p * r * r + r + np.float32(1.0)" in text
    machine.write_text(text.replace("p = p * r * r + r + np.float32(1.0)", "p = p * r * r + r + np.float32(2.0)"))
    value, hits = run(tmp_path)
    assert (value != pytest.approx(first[0], rel=1e-3), hits) == (True, 0)


def twice(x: int) -> int:
    return 2 * x


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return importlib.import_module("trinity.utils.fused.kernel_cache")


def compiled(module: ModuleType) -> Any:
    from numba import njit

    return module.keep(njit(twice))


def test_one_process_saves_at_a_time_and_the_others_go_on(module: ModuleType, tmp_path: Path) -> None:
    one = compiled(module)
    folder = Path(one._cache._cache_path)
    folder.mkdir(parents=True)
    lock = FileLock(folder / "lock")
    assert one(3) == 6 and not list(folder.glob("*.nb?"))
    lock.release()
    assert compiled(module)(3) == 6 and {path.suffix for path in folder.glob("*.nb?")} == {".nbi", ".nbc"}
    again = compiled(module)
    assert again(3) == 6 and sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("kind", ["unwritable", "truncated"])
def test_a_folder_that_cannot_be_used_costs_a_warning(
    kind: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = compiled(module)
    folder = Path(one._cache._cache_path)
    if kind == "unwritable":
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("a file where the folder would be")
    else:
        assert one(3) == 6
        for path in folder.glob("*.nbc"):
            path.write_bytes(path.read_bytes()[:10])
    assert compiled(module)(3) == 6
    assert f"{folder}" in caplog.text


def test_without_any_folder_kernels_are_compiled_in_each_process(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, __: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(module.FunctionCache, "__init__", refuse)
    assert compiled(module)(3) == 6


# --------------------------------------------------------------------------------------- whether kernels are used
@pytest.fixture
def asked() -> Iterator[None]:
    choice._can_compile.cache_clear()
    yield
    choice._can_compile.cache_clear()


def is_used() -> bool:
    return choice.uses_kernels(choice.LEAST_ELEMENTS, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.usefixtures("asked")
def test_a_numba_that_cannot_be_imported_is_left_alone_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        raise ImportError("Numba needs NumPy 2.3 or less")

    torch.set_num_threads(1)
    monkeypatch.setattr(choice.importlib, "import_module", refuse)
    assert not is_used() and not is_used()
    assert caplog.text.count("ImportError: Numba needs NumPy 2.3 or less") == 1


@pytest.mark.usefixtures("asked")
def test_a_processor_without_vector_products_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(choice.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    assert not is_used()
