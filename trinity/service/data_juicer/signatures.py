"""Which operators and arguments the installed Data-Juicer has.

Part of the server, and a program of its own for whoever starts none: it runs with the Python of the environment that
has `py-data-juicer`, without this package. No operator is made, so that no model is loaded.

    echo '[{"text_length_filter": {"min_len": 3}}]' | python -I signatures.py
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import typing
from difflib import get_close_matches
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)
from policy import JOINING  # noqa: E402

sys.path.remove(_HERE)


def problems_of(operators: list[Any]) -> list[dict[str, Any]]:
    """Return what is wrong with operators `{name: arguments}`.

    Each problem has the `index` of the operator, a `kind` (operators, unknown_operator, joins or arguments) and a
    `message`.
    """
    return [
        {"index": index, "kind": kind, "message": message}
        for index, entry in enumerate(operators)
        for kind, message in _of_operator(entry)
    ]


def _of_operator(entry: Any) -> list[tuple[str, str]]:
    from data_juicer.core.preflight import PipelineConfigError, pre_instantiation_check
    from data_juicer.ops import OPERATORS

    if not isinstance(entry, dict) or len(entry) != 1:
        return [("operators", f"an operator is one {{name: arguments}}, got {str(entry)[:200]}")]
    ((name, args),) = entry.items()
    known = OPERATORS.modules
    if name not in known:
        near = get_close_matches(str(name), list(known), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return [("unknown_operator", f"Data-Juicer has no operator {str(name)[:100]!r}{hint}")]
    if {base.__name__ for base in inspect.getmro(known[name])} & set(JOINING):
        return [("joins", f"{name} joins rows: what it returns is none of the rows that came")]
    try:
        pre_instantiation_check([entry])
    except PipelineConfigError as error:
        return [("arguments", str(each)) for each in error.errors]
    return [("arguments", each) for each in _of_values(name, known[name], args or {})]


def _of_values(name: str, operator: Any, args: dict[str, Any]) -> list[str]:
    """Return values outside of their range.

    Data-Juicer itself does not look at ranges.
    """
    import pydantic

    found = []
    for argument, annotation in _annotations(operator).items():
        if argument not in args or args[argument] is None:
            continue
        try:
            reader: Any = pydantic.TypeAdapter(annotation)
        except (pydantic.PydanticUserError, TypeError, NameError):
            continue  # no type that can be checked
        try:
            reader.validate_python(args[argument])
        except pydantic.ValidationError as error:
            why = error.errors()[0]["msg"]
            found.append(f"[{name}] Parameter '{argument}' is {args[argument]!r}: {why}")
    return found


def _annotations(operator: Any) -> dict[str, Any]:
    """Return the types of arguments that are a choice or have a range."""
    found: dict[str, Any] = {}
    for each in inspect.getmro(operator):
        own = vars(each).get("__init__")
        for name, parameter in inspect.signature(own).parameters.items() if inspect.isfunction(own) else ():
            annotation = parameter.annotation
            if typing.get_origin(annotation) in (typing.Annotated, typing.Literal, typing.Union):
                found.setdefault(name, annotation)
    return found


def main() -> None:
    """Read operators from the input; write what is wrong with them."""
    operators = json.load(sys.stdin)
    # What libraries print must not stand in the answer.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import data_juicer

    json.dump({"data_juicer": data_juicer.__version__, "problems": problems_of(operators)}, told)
    told.flush()


if __name__ == "__main__":
    main()
