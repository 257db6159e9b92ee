"""The training loop and its back ends.

One step of the loop (`trainer.py`):

    sample ----> train ----> commit ----> publish -----> save
    (source)   (backend)    (ledger)   (synchronizer)  (checkpoint)
       ^                                                  |
       +------------------- next step <-------------------+

Publish and save run only at their intervals. The loop ends after the planned steps, at the end of
the data, or after a stop request, and then saves a last checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.trainer.latest import get_latest_hf_checkpoint_path

__all__ = ["get_latest_hf_checkpoint_path"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trinity.trainer import latest

        return getattr(latest, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
