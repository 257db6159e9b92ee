"""How large the package is and how it hangs together: lines, files, functions, cycles of imports, hops of a run.

From the root of the repository: `python -m tools.house`, or with `--hops` for a run of two tiny steps as well, which
says through which files `trinity run` gets from the command to its first optimizer step.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import gc
import io
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.e2e.tiny_run import TinyRun
from tests.imports import cycles, imports
from trinity.utils.syntax import parsed

PACKAGE = Path(__file__).resolve().parents[1] / "trinity"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
EXPLORER = "explorer"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hops", action="store_true", help="run two tiny steps and follow them")
    is_run = parser.parse_args().hops
    sizes = {path: _size(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    packages: dict[str, Counter[str]] = {}
    for path, size in sizes.items():
        folders = path.relative_to(PACKAGE).parent.parts
        packages.setdefault("/".join(folders[:2] if folders[:1] == ("common",) else folders[:1]), Counter()).update(
            size
        )
    packages["all"] = sum(sizes.values(), Counter())
    columns = ("files", "functions", "lines", "code")
    print(f"{'package':20}" + "".join(f"{column:>10}" for column in columns))
    for package, size in packages.items():
        print(f"{package:20}" + "".join(f"{size[column]:10}" for column in columns))
    found = cycles(imports(PACKAGE))
    print(f"\ncycles of imports, those in functions and for type checkers counted: {len(found)}")
    for group in found:
        print("  " + " <-> ".join(group))
    if is_run:
        files = _hops()
        print(f"\nfiles from `trinity run` to the first optimizer step: {len(files)}")
        print("".join(f"  {number:2} {file}\n" for number, file in enumerate(files, 1)), end="")


def _size(source: str) -> Counter[str]:
    """Return files (1), functions, lines, and lines of code: without blank ones, comments and docstrings."""
    tree, code = parsed(source), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    functions = 0
    for node in ast.walk(tree):
        functions += isinstance(node, FUNCTIONS)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return Counter(files=1, functions=functions, lines=len(source.splitlines()), code=len(code))


def _hops() -> list[str]:
    """Return the package's files on the stacks that lead from the command to the first step.

    The stacks are those of the command, of the tasks that wait for the step (the explorer's aside), and of the thread
    that computes it.
    """
    import yaml
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from trinity.cli import main as command

    files: list[str] = []

    def look(*_: Any) -> None:
        if not files:
            files.extend(dict.fromkeys(_files()))

    hook = register_optimizer_step_pre_hook(look)
    with tempfile.TemporaryDirectory() as folder:
        run = TinyRun(Path(folder)).change(deterministic=True)
        run.change(checkpoint_root_dir=f"{folder}/out", model__model_path=f"{folder}/model")
        run.change(buffer__explorer_input__taskset__path=f"{folder}/train.jsonl")
        (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
        sys.argv = ["trinity", "run", "--quiet", "--config", f"{folder}/run.yaml"]
        try:
            command()
        except SystemExit as ended:
            assert not ended.code, "the run failed"
        hook.remove()
    return files


def _files() -> Iterator[str]:
    """Yield the files of the package on all stacks of now, from the command on."""
    tasks = [each for each in gc.get_objects() if type(each) is asyncio.Task and not each.done()]
    tasks.sort(key=lambda task: task.get_name())  # the numbered ones, which are the run's own, come first
    ways = [list(_stack(sys._current_frames()[threading.main_thread().ident or 0]))[::-1]]
    ways += [list(_awaited(task.get_coro())) for task in tasks if EXPLORER not in task.get_name()]
    ways += [list(_stack(sys._getframe(1)))[::-1]]
    for way in ways:
        for file in way:
            if file.startswith(f"{PACKAGE}/"):
                yield file.removeprefix(f"{PACKAGE}/")


def _stack(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _awaited(waiting: Any) -> Iterator[str]:
    """Yield the files of a coroutine and of those that it waits for."""
    while getattr(waiting, "cr_frame", None) is not None:
        yield waiting.cr_frame.f_code.co_filename
        waiting = waiting.cr_await


if __name__ == "__main__":
    main()
