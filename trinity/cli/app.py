"""The typer application, with one line per command."""

from __future__ import annotations

from typing import Annotated

import typer

from trinity import __version__
from trinity.cli.algorithms import algorithms
from trinity.cli.config import config_app
from trinity.cli.convert import convert_app
from trinity.cli.data import data_app
from trinity.cli.debug import debug
from trinity.cli.doctor import doctor
from trinity.cli.env_check import env_check
from trinity.cli.estimate import estimate
from trinity.cli.explain import explain
from trinity.cli.export import export_app
from trinity.cli.jobs import log, resume, runs, status, stop
from trinity.cli.language import TranslatedGroup
from trinity.cli.later import add_later_commands
from trinity.cli.quickstart import quickstart
from trinity.cli.replay import replay
from trinity.cli.rescore import rescore
from trinity.cli.run import run
from trinity.cli.show import show
from trinity.cli.studio import studio
from trinity.cli.try_tasks import try_tasks
from trinity.cli.validate import validate
from trinity.cli.view import view

app = typer.Typer(
    name="trinity",
    cls=TranslatedGroup,
    help="Reinforcement fine-tuning of language models from one YAML file.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    pretty_exceptions_short=True,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"trinity {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""


app.command()(run)
app.command()(validate)
app.command()(runs)
app.command()(status)
app.command()(log)
app.command()(stop)
app.command()(resume)
app.command()(doctor)
app.command()(estimate)
app.command()(explain)
app.command("try")(try_tasks)
app.command()(debug)
app.command("env-check")(env_check)
app.command()(view)
app.command()(studio)
app.command()(show)
app.command()(replay)
app.command()(rescore)
app.command()(quickstart)
app.command()(algorithms)
app.add_typer(config_app, name="config")
app.add_typer(convert_app, name="convert")
app.add_typer(data_app, name="data")
app.add_typer(export_app, name="export")
add_later_commands(app)
