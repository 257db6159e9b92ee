"""Descriptions of the algorithm types; imports no torch.

A description has formula, functions, defaults, sources and YAML.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm import ALGORITHM_CONTENTS
from trinity.common.config.mixture import DERIVED_ARGUMENTS
from trinity.common.config.nearest import nearest
from trinity.common.config.problems import Finding
from trinity.explain import critic
from trinity.explain.aggregation import aggregation
from trinity.explain.functions import AlgorithmFunction, functions_of, sources
from trinity.utils.formula import number

INDENT = "    "
LOSS_ROLES = {"policy_loss_fn": "P", "kl_loss_fn": "K", "entropy_loss_fn": "E", "advantage_fn": "A"}
TITLES = {
    "advantage_fn": "advantage A",
    "policy_loss_fn": "policy loss P",
    "kl_loss_fn": "KL term K",
    "kl_penalty_fn": "KL penalty in the reward",
    "entropy_loss_fn": "entropy term E",
    "sample_strategy": "sample strategy",
}


def facts(name: str) -> dict[str, Any]:
    """Return all facts about an algorithm type, ready for JSON."""
    entry, functions = ALGORITHM_CONTENTS[name], functions_of(name)
    return {
        "name": name,
        "description": entry.doc,
        "mode": entry.args["mode"],
        "repeat_times": entry.args["repeat_times"],
        "functions": {
            role: {
                "name": function.name,
                "description": function.entry.doc if function.entry is not None else "",
                "formula": function.symbols,
                "args": defaults(function),
            }
            for role, function in functions.items()
        },
        "critic": critic.in_symbols() if _reads_values(functions) else [],
        "sources": all_sources(name, functions),
        "yaml": yaml(name, functions),
    }


def all_sources(name: str, functions: dict[str, AlgorithmFunction]) -> list[str]:
    """Return each work that an algorithm type and its functions cite."""
    found = [
        *sources(ALGORITHM_CONTENTS[name]),
        *(work for function in functions.values() for work in function.sources),
    ]
    found += [critic.SOURCE] if _reads_values(functions) else []
    return [
        work for work in dict.fromkeys(found) if not any(other.startswith((f"{work},", f"{work}v")) for other in found)
    ]


def _reads_values(functions: dict[str, AlgorithmFunction]) -> bool:
    return "values" in functions["advantage_fn"].needs


def table() -> str:
    """Return one line per algorithm type, below the names of the columns."""
    rows: list[tuple[str, ...]] = [("name", "advantage", "loss", "KL", "entropy", "repeat_times", "description")]
    for name, entry in ALGORITHM_CONTENTS.items():
        functions = functions_of(name)
        chosen = (functions[role].name for role in ("advantage_fn", "policy_loss_fn", "kl_loss_fn", "entropy_loss_fn"))
        rows.append((name, *chosen, str(entry.args["repeat_times"]), entry.doc))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def page(name: str) -> str:
    """Return all facts about an algorithm type as text."""
    entry, functions = ALGORITHM_CONTENTS[name], functions_of(name)
    blocks = [f"{name}: {entry.doc}\nrepeat_times {entry.args['repeat_times']}, mode {entry.args['mode']}"]
    blocks.append("\n".join(["Formula", *(f"{INDENT}{line}" for line in _sum(functions))]))
    blocks += [_described(function) for function in functions.values() if not function.is_none]
    if _reads_values(functions):
        blocks.append(f"\n{INDENT}".join(critic.in_symbols()))
    unused = [TITLES[role] for role, function in functions.items() if function.is_none]
    if unused:
        blocks.append(f"Not used: {', '.join(unused)}")
    works = all_sources(name, functions)
    blocks.append("\n".join(["Sources", *(f"{INDENT}{work}" for work in works or ["none beside the formula"])]))
    blocks.append(f"YAML, every default written out\n\n{yaml(name, functions)}")
    return "\n\n".join(blocks)


def _sum(functions: dict[str, AlgorithmFunction]) -> list[str]:
    policy = functions["policy_loss_fn"]
    is_whole = policy.symbols[0].startswith("=")
    terms = ["P"] if is_whole else ["agg[P]"]
    terms += [] if functions["kl_loss_fn"].is_none else ["+ kl_coef agg[K]"]
    terms += [] if functions["entropy_loss_fn"].is_none else ["- agg[E]"]
    lines = [f"loss = {' '.join(terms)}"]
    if any("agg" in term for term in terms):
        mode = policy.args.get("loss_agg_mode", "token-mean")
        lines.append(f"{INDENT}agg[x] = {aggregation(mode, is_verl=policy.is_verl)} x (loss_agg_mode {mode})")
    return lines


def _described(function: AlgorithmFunction) -> str:
    lines = [f"{TITLES[function.role]}: {function.role} {function.name}"]
    if function.entry is None:
        return "\n".join([*lines, f"{INDENT}not in this version"])
    letter = LOSS_ROLES.get(function.role, "")
    first, *others = function.symbols or [""]
    if function.entry.doc != first:
        lines.append(f"{INDENT}{function.entry.doc}")
    if first:
        lines.append(f"{INDENT}{f'{letter} = ' if letter else ''}{first.removeprefix('= ')}")
    lines += [f"{INDENT}{INDENT}{line}" for line in others]
    if function.args:
        lines.append(
            f"{INDENT}defaults: {', '.join(f'{key} {shown(value)}' for key, value in defaults(function).items())}"
        )
    return "\n".join(lines)


def yaml(name: str, functions: dict[str, AlgorithmFunction]) -> str:
    """Return the YAML that selects an algorithm type with its defaults.

    Every default is written out; unused functions are left out.
    """
    entry = ALGORITHM_CONTENTS[name]
    lines = [f"mode: {entry.args['mode']}", "algorithm:", f"  algorithm_type: {name}"]
    lines.append(f"  repeat_times: {entry.args['repeat_times']}")
    for role, function in functions.items():
        if role == "advantage_fn" and function.is_none:
            continue
        lines.append(f"  {role}: {function.name}")
        if function.args and not function.is_none:
            lines.append(f"  {role}_args:")
            lines += [f"    {key}: {scalar(value)}" for key, value in defaults(function).items()]
    return "\n".join([*lines, *entry.also_needed])


def defaults(function: AlgorithmFunction) -> dict[str, Any]:
    """Return the default arguments of a function.

    Arguments that the rest of a file decides are left out.
    """
    return {name: value for name, value in function.args.items() if name not in DERIVED_ARGUMENTS}


def shown(value: Any) -> str:
    """Return a default in plain notation."""
    return number(value) if isinstance(value, float) else scalar(value)


def scalar(value: Any) -> str:
    """Return a default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    # YAML 1.1 takes 1e-06 for text: it wants a point in a number with an exponent.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def unknown(name: str) -> Finding:
    """Return the message for an unknown algorithm type."""
    near = nearest(name, list(ALGORITHM_CONTENTS))
    message = f"unknown algorithm_type `{name}`; known: {', '.join(ALGORITHM_CONTENTS)}"
    hint = f"did you mean `{near}`?" if near else "`trinity algorithms` lists all with what they are"
    return Finding("E1301", "algorithm.algorithm_type", message, suggestion=hint)
