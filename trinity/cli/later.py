"""Published commands that are not here yet, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable

import typer

from trinity.common.errors import ExitCode, NotAvailableError

INSTEAD = {
    "perf": "metrics.jsonl of the job folder holds the time/ and perf/ numbers of every step",
}
ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


def add_later_commands(app: typer.Typer) -> None:
    """Give `app` a hidden command for each name in `INSTEAD`.

    The command takes any arguments and exits with code 2.
    """
    for name in (name for name in INSTEAD if " " not in name):
        app.command(name, hidden=True, context_settings=ANY_ARGUMENTS)(_refusal(name))


def _refusal(name: str) -> Callable[[], None]:
    def refused() -> None:
        refuse(name)

    refused.__doc__ = f"Not available yet: trinity {name}."
    return refused


def refuse(name: str) -> None:
    """Say that a command is not available yet, and what serves instead.

    Raises:
        typer.Exit: always.
    """
    error = NotAvailableError(f"`trinity {name}` is not available yet in this version; {INSTEAD[name]}")
    typer.echo(f"error[{error.code}]: {error.args[0]}", err=True)
    raise typer.Exit(int(ExitCode.USAGE))
