"""Published import path of the command line; its home is `trinity.cli`."""

from trinity.cli import main as main
from trinity.cli.app import app as app

__all__ = ["app", "main"]
