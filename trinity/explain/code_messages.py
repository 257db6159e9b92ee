"""What each code says, read from the places that raise it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trinity
from trinity.common import codes
from trinity.utils.syntax import parsed

ROOT = Path(trinity.__file__).resolve().parent
CODE = re.compile(r"[EW]\d{4}")
# Files that name codes and raise none.
_TABLES = ("codes.py",)


@dataclass(frozen=True)
class Raised:
    """A place that raises a code, or names it.

    Attributes:
        code: such as `E1203`.
        text: its message, with … for what is filled in; of a place that only names the code, the summary of what it is
            in.
        is_message: the text is a message.
        way_out: the suggestion, with … for what is filled in; empty: it is in the message, or made elsewhere.
        place: file, below the package, and line.
    """

    code: str
    text: str
    is_message: bool
    way_out: str
    place: str


@cache
def messages() -> dict[str, str]:
    """Return what each code says, by code."""
    found, summaries = dict[str, str](), dict[str, str]()
    for each in _raised(_files()):
        table = found if each.is_message else summaries
        table[each.code] = table.get(each.code) or each.text
    said = summaries | {code: text for code, text in found.items() if text} | codes.MESSAGES
    return dict(sorted(said.items()))


def raised_at(code: str) -> list[Raised]:
    """Return the places of a code, those with a message first."""
    files = [file for file in _files() if code in file.read_text(encoding="utf-8")]
    return sorted((each for each in _raised(files) if each.code == code), key=lambda each: not each.is_message)


def message_of(raised: list[Raised]) -> str:
    """Return what a code says, of its places as `raised_at` gives them."""
    (code,) = {each.code for each in raised}
    texts = [each.text for each in raised if each.is_message and each.text] + [each.text for each in raised]
    return codes.MESSAGES.get(code) or next(text for text in texts if text)


def all_codes() -> list[str]:
    """Return all codes that the source names, without reading what they say."""
    texts = (file.read_text(encoding="utf-8") for file in _files())
    return sorted({code for text in texts for code in re.findall(r'"([EW]\d{4})"', text)})


def _files() -> list[Path]:
    return [file for file in sorted(ROOT.rglob("*.py")) if file.name not in _TABLES]


def _raised(files: list[Path]) -> Iterator[Raised]:
    for file in files:
        yield from _of_tree(parsed(file.read_text(encoding="utf-8")), file.relative_to(ROOT.parent).as_posix())


def _of_tree(tree: ast.Module, file: str) -> Iterator[Raised]:
    """Yield each code of a file with its message, or with a summary."""
    scopes: list[ast.AST] = [tree]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    scopes += [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for scope in reversed(scopes):
        values = {
            node.targets[0].id: node.value
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(scope):
            if isinstance(node, ast.Call):
                for code in _codes(node):
                    message, way_out = _message(node, values), _way_out(node, values)
                    yield Raised(code, message, True, way_out, f"{file}:{node.lineno}")
        for node in ast.walk(scope):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                yield Raised(node.value, _summary(scope) or _summary(tree), False, "", f"{file}:{node.lineno}")


def _way_out(call: ast.Call, values: dict[str, ast.expr]) -> str:
    named = [word.value for word in call.keywords if word.arg in ("suggestion", "way_out")]
    return next((text for text in (_given(node, values) for node in named) if text), "")


def _given(node: ast.expr, values: dict[str, ast.expr]) -> str:
    return _text(values.get(node.id, node) if isinstance(node, ast.Name) else node)


def _codes(call: ast.Call) -> list[str]:
    given = [*call.args, *(word.value for word in call.keywords)]
    strings = [arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return [text for text in strings if CODE.fullmatch(text)]


def _message(call: ast.Call, values: dict[str, ast.expr]) -> str:
    named = [word.value for word in call.keywords if word.arg == "message"]
    texts = [_given(arg, values) for arg in [*named, *call.args]]
    texts = [text for text in texts if " " in text]
    return texts[0] if texts else ""


def _text(node: ast.expr) -> str:
    """Return a string of the source, with … for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + (_text(node.right) or "…")
    return ""


def _summary(scope: ast.AST) -> str:
    has_doc = isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
    return ((ast.get_docstring(scope) or "").split("\n")[0].rstrip(".")) if has_doc else ""  # type: ignore[arg-type]
