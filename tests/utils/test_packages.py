"""Packages that do not fit are named before they fail."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import EnvironmentProblem, ExitCode
from trinity.utils.packages import check_packages, explained_imports


def test_what_is_installed_here_fits() -> None:
    check_packages()


@pytest.mark.slow
def test_a_run_with_another_version_ends_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old" / "transformers-4.40.1.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.40.1\n")
    monkeypatch.setenv("PYTHONPATH", str(old.parent))
    ended = TinyRun(tmp_path / "run").finish()
    assert ended.status == ExitCode.ENVIRONMENT, ended.output
    assert "[E3302]" in ended.output and "is needed, 4.40.1 is installed" in ended.output
    assert "transformers" in ended.output and "pip install --upgrade" in ended.output


@pytest.mark.nightly
def test_a_run_beside_a_broken_flash_attn_ends_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B76."""
    package = tmp_path / "packages" / "flash_attn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import flash_attn_2_cuda\n")
    (package.parent / "flash_attn_2_cuda.py").write_text("raise ImportError('undefined symbol: _ZN3c105Error')\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    ended = TinyRun(tmp_path / "run").finish()
    assert ended.status == ExitCode.ENVIRONMENT, ended.output
    assert "[E3203]" in ended.output and "undefined symbol: _ZN3c105Error" in ended.output
    assert "pip uninstall flash-attn" in ended.output and "Traceback" not in ended.output.splitlines()[-1]


def test_another_import_that_fails_is_named() -> None:
    named = "No module named 'nothing_of_that_name'; install it"
    with pytest.raises(EnvironmentProblem, match=named) as failure, explained_imports():
        importlib.import_module("nothing_of_that_name")
    assert failure.value.code == "E3203"
