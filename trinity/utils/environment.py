"""The environment of this process, changed for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block.

    At its end, all changes made in the block are undone.

    Processes that are started in the block keep the variables. Only what differs is touched: other threads read the
    environment meanwhile, and C's `setenv` moves it under those of libraries.
    """
    before = dict(os.environ)
    _change(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        _change(before)


def _change(variables: Mapping[str, str]) -> None:
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
