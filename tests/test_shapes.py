"""Whoever calls a function of tensors reads their shapes, in its annotations or in its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SHAPE = re.compile(r"\[[^][`]*\]|any shape|[Ss]calar")
# Tensors by name, or many of them, have no shape in common: weights, rows of a batch, gradients.
COLLECTIONS = {"dict", "OrderedDict", "Mapping", "Iterable", "Iterator", "Sequence"}


def shapeless(source: str) -> list[str]:
    """Return the public functions, nested ones and methods of private classes too, that hide a tensor's shape."""
    return [
        f"{node.lineno} {node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, FUNCTIONS)
        and (not node.name.startswith("_") or node.name == "__call__")
        and any(_is_bare(annotation) for annotation in _annotations(node))
        and not SHAPE.search(ast.get_docstring(node) or "")
    ]


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr | None]:
    given = node.args
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        yield argument and argument.annotation
    yield node.returns


def _is_bare(annotation: ast.AST | None) -> bool:
    """Return whether `annotation` has a tensor without a shape: `Tensor`, not `Float[Tensor, "B T"]`."""
    match annotation:
        case ast.Name(id="Tensor") | ast.Attribute(attr="Tensor") | ast.Constant(value="Tensor"):
            return True
        case ast.Subscript(slice=ast.Tuple(elts=[ast.Name(id="Tensor"), ast.Constant(value=str())])):
            return False
        case ast.Subscript(value=ast.Name(id=name)) if name in COLLECTIONS:
            return False
        case None:
            return False
    return any(_is_bare(child) for child in ast.iter_child_nodes(annotation))


def test_every_function_of_tensors_says_their_shapes() -> None:
    found = {
        str(path.relative_to(ROOT)): functions
        for path in sorted((ROOT / "trinity").rglob("*.py"))
        if (functions := shapeless(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_function_without_shapes_is_found() -> None:
    hidden = [
        "def f(x: Tensor) -> None: ...",
        "async def f() -> Tensor | None: ...",
        "def f(*x: torch.Tensor) -> None: ...",
        "def f(x: Callable[[int, Tensor], int]) -> None: ...",
        "class _C:\n    def f(self, *, x: 'Tensor') -> None: ...",
        "def _f():\n    def f(x: list[Tensor]) -> None: ...",
        "class C:\n    def __call__(self) -> tuple[Tensor, None]: 'Return the rows.'",
    ]
    assert [len(shapeless(source)) for source in hidden] == [1] * len(hidden)


def test_a_function_with_shapes_is_not_found() -> None:
    said = [
        'def f(x: Float[Tensor, "B T"], *rest: Int[Tensor, "B"]) -> None: ...',
        "def f(x: Tensor) -> None: 'Count the rows [N, d].'",
        "def f(x: Tensor) -> None: 'Count the numbers of a tensor of any shape.'",
        "def f(x: Mapping[str, Tensor]) -> dict[str, Tensor]: ...",
        "def _f(x: Tensor) -> None: ...",
    ]
    assert [shapeless(source) for source in said] == [[]] * len(said)
