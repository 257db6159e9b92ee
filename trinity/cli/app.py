"""The typer application, with one line per command."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from trinity import __version__
from trinity.cli.language import TranslatedGroup
from trinity.cli.later import add_later_commands

# In the order of the help: where each is.
COMMANDS = {
    "run": "run.run",
    "validate": "validate.validate",
    "runs": "jobs.runs",
    "status": "jobs.status",
    "log": "jobs.log",
    "stop": "jobs.stop",
    "resume": "jobs.resume",
    "doctor": "doctor.doctor",
    "estimate": "estimate.estimate",
    "explain": "explain.explain",
    "try": "try_tasks.try_tasks",
    "debug": "debug.debug",
    "env-check": "env_check.env_check",
    "view": "view.view",
    "studio": "studio.studio",
    "show": "show.show",
    "replay": "replay.replay",
    "rescore": "rescore.rescore",
    "quickstart": "quickstart.quickstart",
    "algorithms": "algorithms.algorithms",
    "config": "config.config_app",
    "convert": "convert.convert_app",
    "data": "data.data_app",
    "export": "export.export_app",
}


def application(only: str = "") -> typer.Typer:
    """Return the command line.

    Args:
        only: name of a command, of which alone the options are looked at, a tenth of the time of a short one; another
            text means all.
    """
    made = typer.Typer(
        name="trinity",
        cls=TranslatedGroup,
        help="Reinforcement fine-tuning of language models from one YAML file.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        pretty_exceptions_short=True,
    )
    made.callback()(options)
    for name in [only] if only in COMMANDS else COMMANDS:
        module, _, member = COMMANDS[name].rpartition(".")
        command = getattr(import_module(f"trinity.cli.{module}"), member)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name)(command)
    if only not in COMMANDS:
        add_later_commands(made)
    return made


def _version(value: bool) -> None:
    if value:
        typer.echo(f"trinity {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""


def __getattr__(name: str) -> typer.Typer:
    """Return `app`, the application with all commands.

    It is made when it is first asked for.
    """
    if name != "app":
        raise AttributeError(name)
    app = globals()["app"] = application()
    return app
