"""The page of public import paths: `docs/api.md`."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

from tools.reference.public_paths import PUBLIC
from tools.reference.signatures import called, summary
from tools.reference.text import ROOT, code, finished, head, table
from trinity.utils.registry import Registry
from trinity.utils.syntax import parsed

NAME = "api"
TEXTS = {
    "en": {
        "title": "Python interface",
        "intro": """
The import paths that plugins and scripts may rely on, made from the source by `python -m tools.reference`; a test holds that they
are there. What no table has may change. [From Python](python.md) shows the functions of `trinity` at work, and
[Registries and base classes](plugin-classes.md) has the methods of what plugins derive from.""",
        "head": ("Name", "What it is"),
        "registry": "Registry of {kind} classes",
        "constant": "Constant {value}",
    },
    "zh": {
        "title": "Python 接口",
        "intro": """
插件和脚本可以依赖的导入路径，由 `python -m tools.reference` 从源码生成；有测试保证它们存在。表中没有的可能会变。
[在 Python 中使用](python.zh.md)展示 `trinity` 的各个函数，[注册表与基类](plugin-classes.zh.md)有插件所继承的类的方法。
说明取自源码文档字符串的第一行。""",
        "head": ("名字", "是什么"),
        "registry": "{kind} 类的注册表",
        "constant": "常量 {value}",
    },
}


def page(language: str) -> str:
    """Return the page in `en` or `zh`."""
    text = TEXTS[language]
    lines = head(NAME, language, text["title"], text["intro"])
    for module, names in names_by_module().items():
        loaded = importlib.import_module(module)
        rows = [(name, getattr(loaded, name)) for name in names]  # some modules import lazily
        lines += ["", f"## `{module}`"]
        lines += table(text["head"], ((code(called(name, value)), _what(value, language)) for name, value in rows))
    return finished(lines)


def names_by_module() -> dict[str, list[str]]:
    """Return the public names by the module that they are imported from, `trinity` itself first."""
    stub = parsed((ROOT / "trinity" / "__init__.pyi").read_text(encoding="utf-8"))
    offered = [
        each.asname or each.name for node in stub.body if isinstance(node, ast.ImportFrom) for each in node.names
    ]
    return {"trinity": offered} | {module: names.split() for module, names in PUBLIC.items() if module != "trinity"}


def _what(value: Any, language: str) -> str:
    text = TEXTS[language]
    if isinstance(value, Registry):
        return text["registry"].format(kind=code(value.kind))
    if inspect.isclass(value) or inspect.isroutine(value):
        return summary(value, language)
    return text["constant"].format(value=code(value)) if isinstance(value, str | int | float) else ""
