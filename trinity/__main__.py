"""`python -m trinity` is `trinity`."""

from trinity.cli import main

main()
