"""Names that plugin files register, read from their source: nothing is imported or executed."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trinity.common.config.problems import Finding
from trinity.utils.plugin_loader import plugin_files

REGISTRY_NAMES = {
    "ALGORITHM_TYPE": "algorithm_type",
    "ADVANTAGE_FN": "advantage_fn",
    "POLICY_LOSS_FN": "policy_loss_fn",
    "KL_FN": "kl_fn",
    "ENTROPY_LOSS_FN": "entropy_loss_fn",
    "SAMPLE_STRATEGY": "sample_strategy",
    "WORKFLOWS": "workflow",
    "REWARD_FUNCTIONS": "reward_fn",
    "REWARD_MODELS": "reward_model",
    "EXPERIENCE_OPERATORS": "operator",
    "SELECTORS": "selector",
    "PRIORITY_FUNC": "priority_fn",
    "MONITOR": "monitor",
}
MAX_FILE_BYTES = 4 << 20


@dataclass
class PluginScan:
    """What plugin files register.

    Attributes:
        names: registry name to the names registered in it.
        problems: files that cannot be read (errors), names that only the run can know (warnings).
        has_unknown: a name is computed, so that an unknown name may still turn out to be registered.
    """

    names: dict[str, frozenset[str]] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    has_unknown: bool = False


def scan_plugins(dirs: Iterable[Path]) -> dict[str, frozenset[str]]:
    """Return the names that the plugin files of `dirs` register, by registry name."""
    return read_plugins(dirs).names


def read_plugins(dirs: Iterable[Path]) -> PluginScan:
    """Return the names that the plugin files of `dirs` register, and what is wrong with the files."""
    scan = PluginScan()
    for folder in dirs:
        if not folder.is_dir():
            scan.problems.append(
                Finding(
                    "E3901",
                    "--plugin-dir",
                    f"plugin folder {folder} {'is a file' if folder.exists() else 'does not exist'}",
                    value=str(folder),
                    suggestion="give an existing folder",
                )
            )
            continue
        for path in plugin_files(folder):
            _read_file(path, scan)
    return scan


def _read_file(path: Path, scan: PluginScan) -> None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        source = path.read_bytes()
        tree = ast.parse(source, filename=str(path))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        column = error.offset if isinstance(error, SyntaxError) else None
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        scan.problems.append(
            Finding(
                "E3901",
                "--plugin-dir",
                f"plugin {path} cannot be read: {what}",
                file=str(path),
                line=line,
                column=column,
            )
        )
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _read_call(node, path, scan)


def _read_call(node: ast.Call, path: Path, scan: PluginScan) -> None:
    function = node.func
    if not isinstance(function, ast.Attribute) or function.attr != "register_module":
        return
    owner = function.value
    word = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    registry = REGISTRY_NAMES.get(word)
    if registry is None:
        return
    arguments = [*node.args[:1], *(k.value for k in node.keywords if k.arg in ("name", "module_name"))]
    name = arguments[0] if arguments else None
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        scan.names[registry] = scan.names.get(registry, frozenset()) | {name.value}
        return
    scan.has_unknown = True
    scan.problems.append(
        Finding(
            "W3905",
            "--plugin-dir",
            f"{path.name} registers a computed name in {word}; it is checked when the run starts",
            file=str(path),
            line=node.lineno,
            column=node.col_offset + 1,
        )
    )
