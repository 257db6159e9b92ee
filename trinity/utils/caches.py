"""The folder in which this user's caches are."""

from __future__ import annotations

import os
from pathlib import Path

from trinity.common.constants import CACHE_DIR_ENV_VAR

HOME_ENV_VAR = "XDG_CACHE_HOME"


def cache_dir(name: str) -> Path:
    """Return the folder of a cache, which may not be there.

    It is in `TRINITY_CACHE_DIR`, or else in `trinity` of the user's caches.
    """
    given = os.environ.get(CACHE_DIR_ENV_VAR)
    home = Path(os.environ.get(HOME_ENV_VAR) or "~/.cache").expanduser() / "trinity"
    return (Path(given).expanduser().absolute() if given else home) / name
