"""Machine code of kernels, kept on disk for further processes.

Numba keeps the code of a function as long as the file that has the function stays the same, although it holds what
other files define; and two processes that compile at once may take one file for two kinds of code. Here the folder is
named by the sources of all kernels, and one process saves at a time.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

from trinity.utils.locks import FileLock
from trinity.utils.log import get_logger

_logger = get_logger("utils.fused")


class KernelCache(FunctionCache):
    """The kept code of one kernel.

    Args:
        function: its source.

    Raises:
        RuntimeError: there is no folder that can be written.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_path: str = os.path.join(self._impl.locator.get_cache_path(), f"kernels-{sources()}")
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, source_stamp=sources())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for arguments of the types `sig`; None if there is none."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # noqa: BLE001 - a file of code may be damaged in any way
            _logger.warning("compiled kernels in %s cannot be read: %s", self._cache_path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code for arguments of the types `sig`."""
        try:
            os.makedirs(self._cache_path, exist_ok=True)
            lock = FileLock(Path(self._cache_path) / "lock")
        except BlockingIOError:  # others keep theirs; this one is compiled again
            return
        except OSError as error:
            _logger.warning("compiled kernels cannot be kept in %s: %s", self._cache_path, error)
            return
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _logger.warning("compiled kernels cannot be kept in %s: %s", self._cache_path, error)
        finally:
            lock.release()


@functools.cache
def sources() -> str:
    """Return a digest of the files that kernels are made of."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def keep(dispatcher: Any) -> Any:
    """Keep the code of what `njit` returned, where a folder can be written."""
    try:
        dispatcher._cache = KernelCache(dispatcher.py_func)
    except RuntimeError as error:
        _logger.debug("compiled kernels are not kept: %s", error)
    return dispatcher
