"""Published commands that are not here yet, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from trinity.common.errors import ExitCode, NotAvailableError

INSTEAD = {
    "debug": "to see what a workflow does, run a few steps: trinity run --config FILE --set log.level=debug "
    "--set buffer.total_steps=1",
    "studio": "`trinity quickstart --prepare-only` writes a file to start from; `trinity validate` and "
    "`trinity config schema` say what its keys mean",
    "view": "the experiences lie in an SQLite database; `trinity validate` names the file",
    "convert": "`trainer.save_hf_checkpoint: always` writes Hugging Face weights with every checkpoint",
    "log": "the logs are the files of <checkpoint_job_dir>/log",
    "perf": "metrics.jsonl of the job folder holds the time/ and perf/ numbers of every step",
    "doctor": "`trinity validate --config FILE` checks this machine as well",
}
DEBUG_MODULES = ("inference_model", "workflow", "viewer")
ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


def add_later_commands(app: typer.Typer) -> None:
    """Give `app` a hidden command for each name in `INSTEAD`.

    The command takes any arguments and exits with code 2.
    """
    for name in INSTEAD:
        command = debug if name == "debug" else _refusal(name)
        app.command(name, hidden=True, context_settings=ANY_ARGUMENTS)(command)


def debug(
    module: Annotated[str | None, typer.Option("--module", "-m", help="Part to debug.")] = None,
) -> None:
    """Not available yet: run one part of a configuration by itself."""
    if module is not None and module not in DEBUG_MODULES:
        from trinity.common.config.nearest import nearest

        near = nearest(module, DEBUG_MODULES)
        hint = f"; did you mean `{near}`?" if near else ""
        typer.echo(f"error[E2001]: --module must be one of {', '.join(DEBUG_MODULES)}, got `{module}`{hint}", err=True)
    _refuse("debug")


def _refusal(name: str) -> Callable[[], None]:
    def refuse() -> None:
        _refuse(name)

    refuse.__doc__ = f"Not available yet: trinity {name}."
    return refuse


def _refuse(name: str) -> None:
    error = NotAvailableError(f"`trinity {name}` is not available yet in this version; {INSTEAD[name]}")
    typer.echo(f"error[{error.code}]: {error.args[0]}", err=True)
    raise typer.Exit(int(ExitCode.USAGE))
