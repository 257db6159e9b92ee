"""The `trinity` command; each subcommand is a file with lazy imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit with the status of the command."""
    from trinity.runtime.allocator import begin_again
    from trinity.runtime.collector import collect_seldom, collecting_nothing

    begin_again()
    collect_seldom()
    with collecting_nothing():
        from trinity.cli.app import application
        from trinity.runtime.process_exit import leave
        from trinity.utils.streams import steady_output

    steady_output()
    try:
        application(sys.argv[1] if len(sys.argv) > 1 else "")(prog_name="trinity")
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        status = end.code or 0
    leave(status)
