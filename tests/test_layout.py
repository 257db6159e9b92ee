"""What the package may not contain, and what starting it may not load."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import cycles, imports
from tests.yardstick import import_seconds

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
SANDBOX = "trinity/common/rewards/code_worker.py"
FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
HEAVY = ("torch", "transformers", "datasets", "ray", "vllm", "sqlalchemy", "tensorboard", "matplotlib", "pandas")
HELP_S = 0.5


def breaches(source: str) -> list[str]:
    """Return each line that runs text as code, unpickles, starts a shell or loads a checkpoint as code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        found += [f"{node.lineno} import {name}" for name in sorted(names & FORBIDDEN_MODULES)]
        if isinstance(node, ast.Call):
            found += _call_breaches(node)
    return found


def _call_breaches(node: ast.Call) -> list[str]:
    keywords = {word.arg: word.value for word in node.keywords}
    name = ast.unparse(node.func)
    found = [f"{node.lineno} {name}()"] if name in FORBIDDEN_CALLS or name in ("os.system", "os.popen") else []
    if isinstance(keywords.get("shell"), ast.Constant) and keywords["shell"].value:
        found.append(f"{node.lineno} shell=True")
    is_safe = isinstance(keywords.get("weights_only"), ast.Constant) and keywords["weights_only"].value is True
    if name == "torch.load" and not is_safe:
        found.append(f"{node.lineno} torch.load without weights_only=True")
    return found


def test_no_text_is_run_as_code() -> None:
    """But in the process that has given up its rights."""
    found = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "trinity").rglob("*.py")
        if (lines := breaches(path.read_text(encoding="utf-8")))
    }
    assert found.pop(SANDBOX) and found == {}


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "import pickle",
        "from dill import loads",
        "subprocess.run('ls', shell=True)",
        "torch.load(path)",
        "os.system('ls')",
    ],
)
def test_a_breach_is_found(source: str) -> None:
    assert len(breaches(source)) == 1


def test_tensors_may_be_loaded_and_models_may_be_put_into_eval_mode() -> None:
    assert breaches("torch.load(path, weights_only=True)\nmodel.eval()\nsubprocess.run(['ls'])") == []


def test_no_modules_import_each_other_not_even_in_functions_or_for_the_type_checker() -> None:
    assert cycles(imports(ROOT / "trinity")) == []


def test_a_cycle_by_a_function_and_for_the_type_checker_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "a.py").write_text("if TYPE_CHECKING:\n    from house.b import B\n")
    (package / "b.py").write_text("from house import c\n")
    (package / "c.py").write_text("async def f():\n    import house.a\n")
    (package / "d.py").write_text("from house.a import A\n")
    assert cycles(imports(package)) == [["house.a", "house.b", "house.c"]]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.parametrize(
    "module",
    [
        "trinity",
        "trinity.cli",
        "trinity.cli.app",
        "trinity.common.config",
        "trinity.common.models",
        "trinity.engine",
        "trinity.monitor",
        "trinity.utils.registry",
        "trinity.explorer",
        "trinity.trainer",
        "trinity.buffer",
        "trinity.algorithm",
        "trinity.preflight.machine",
        "trinity.launch.validation",
        "trinity.explain.algorithms",
        "trinity.explain.effective_loss",
    ],
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_help_is_there_within_half_a_second() -> None:
    command = ("-c", "import sys; sys.argv = ['trinity', '--help']; from trinity.cli import main; main()")
    seconds = []
    for _ in range(3):
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = python(*command)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
        assert "quickstart" in result.stdout
    # Processor time, the best of three: the limit is about the program, not about what else the machine does.
    # On a slow machine the libraries alone take longer, and the limit with them.
    assert min(seconds) <= max(HELP_S, 3.5 * import_seconds()), seconds
