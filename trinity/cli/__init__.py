"""The `trinity` command. Each command lives in a file of its own and imports what it needs when it runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with the exit status of the command."""
    from trinity.cli.app import app

    sys.exit(app())
