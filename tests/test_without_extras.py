"""Everything but what needs them works where Ray and vLLM are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun

WITHOUT = """
import importlib, importlib.machinery, pkgutil, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ("ray", "vllm") else super().find_spec(name, path, target)

sys.meta_path[:] = [Finder if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
"""
IMPORT_ALL = """
import trinity
NEED_THEM = {f"trinity.{name}" for name in ("runtime.ray", "runtime.ray_objects", "runtime.ray_token")}
NEED_THEM |= {f"trinity.engine.vllm.{name}" for name in ("worker", "reload", "image_worker", "pictures")}
# They run in the environment of Data-Juicer, which has no trinity package.
NEED_THEM |= {f"trinity.service.data_juicer.{name}" for name in ("server", "sessions", "signatures")}
for module in pkgutil.walk_packages(trinity.__path__, "trinity."):
    if module.name not in NEED_THEM and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert not {"ray", "vllm"} & sys.modules.keys()
print(len(sys.modules))
"""
RUN = """
from trinity.cli import main
sys.argv = ["trinity", *sys.argv[1:]]
main()
"""


def without(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=cwd, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def written(run: TinyRun) -> Path:
    path = run.folder / "run.yaml"
    path.write_text(yaml.safe_dump(run.tree))
    return path


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    done = without(IMPORT_ALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_run_explores_and_trains(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    config = written(run)
    done = without(RUN, "run", "--config", str(config), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert run.lines("trainer")


def test_what_needs_them_says_what_to_install(tmp_path: Path) -> None:
    config = written(TinyRun(tmp_path))
    for option, package in (("cluster.runtime=ray", "ray"), ("explorer.rollout_model.engine_type=vllm", "vllm")):
        done = without(
            RUN, "run", "--config", str(config), "--set", option, "--set", "deterministic=false", cwd=tmp_path
        )
        assert done.returncode == 3, (done.stdout, done.stderr)
        assert "E3301" in done.stderr and f"trinity-rft[{package}]" in done.stderr
