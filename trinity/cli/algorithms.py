"""`trinity algorithms`: list and explain algorithm types, without torch."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trinity.cli.completion import algorithm_names
from trinity.common.errors import ExitCode


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(help="Algorithm type to explain; default: list all.", autocompletion=algorithm_names),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the algorithm types, or explain one.

    The explanation has the formula, functions, defaults, sources and YAML.
    """
    from trinity.algorithm import ALGORITHM_CONTENTS
    from trinity.explain.algorithms import facts, page, table, unknown

    if name is not None and name not in ALGORITHM_CONTENTS:
        typer.echo(unknown(name).render(), err=True)
        raise typer.Exit(int(ExitCode.USAGE))
    if as_json:
        found = facts(name) if name is not None else [facts(each) for each in ALGORITHM_CONTENTS]
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        typer.echo(table() if name is None else page(name))
