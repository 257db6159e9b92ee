"""Options that several commands have."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.completion import jobs, set_words, words
from trinity.common.errors import ExitCode, TrinityError
from trinity.utils.log import log_to_console, redact

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key: a.b=c or stages[1].a.b=c; may be repeated.", autocompletion=set_words),
]
PluginDirs = Annotated[
    list[Path] | None,
    typer.Option("--plugin-dir", "--plugin_dir", help="Folder of plugin modules; may be repeated."),
]
File = Annotated[
    str | None,
    typer.Argument(metavar="[FILE]", help="YAML file; the same as --config.", autocompletion=words),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[A.B=C]...", help="Overrides, as with --set; for a veRL file in Hydra's syntax.", autocompletion=words
    ),
]
Job = Annotated[Path, typer.Argument(metavar="JOB", help="Folder of a job, with its config.yaml.", autocompletion=jobs)]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")]

StageName = Annotated[str | None, typer.Option("--stage", help="Stage of the file; default: the first with tasks.")]


def chosen_file(file: str | None, config: Path | None) -> Path:
    """Return the YAML file, which is given in one of two ways.

    Raises:
        typer.BadParameter: it is given in both or in none.
    """
    if file is not None and config is not None:
        raise typer.BadParameter(f"two files are given, {file} and {config}; give one", param_hint="--config")
    given = config if file is None else Path(file)
    if given is None:
        raise typer.BadParameter("no file is given; write `--config FILE`, or the file alone", param_hint="--config")
    return given


def chosen_with_words(
    file: str | None, config: Path | None, words: list[str] | None, set_: list[str] | None
) -> tuple[Path, tuple[str, ...]]:
    """Return the YAML file, and the overrides after it and of `--set`.

    After `--config FILE` the first word is an override as well.

    Raises:
        typer.BadParameter: the file is given in both ways or in none.
    """
    overrides = [*(words or ()), *(set_ or ())]
    if file is not None and config is not None and ("=" in file or file.startswith("~")):
        return config, (file, *overrides)
    return chosen_file(file, config), tuple(overrides)


@contextmanager
def ended_with(*, shows_log: bool = True) -> Iterator[None]:
    """Turn errors of the block into a message and the exit status.

    Args:
        shows_log: warnings of the block go to standard error; otherwise errors alone.

    Raises:
        typer.Exit: the block failed, or was interrupted.
    """
    from trinity.common.config import ConfigErrors

    log_to_console(least=logging.WARNING if shows_log else logging.ERROR)
    try:
        yield
    except ConfigErrors as error:
        typer.echo(redact(error.format()), err=True)
        raise typer.Exit(int(error.exit_code)) from error
    except TrinityError as error:
        typer.echo(redact(f"error[{error.code}]: {error.args[0]}"), err=True)
        raise typer.Exit(int(error.exit_code)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from error
    except typer.Exit:
        raise
    except Exception as error:
        typer.echo(redact("".join(traceback.format_exception(error))), err=True)
        raise typer.Exit(int(ExitCode.RUNTIME)) from error
