"""Interface of the synchronizer: versions, tickets and progress.

`local.py` is the meeting point within one run, `folder.py` that of components which run apart. Every method is awaited
and its arguments are plain values, so that the object may be in this process or behind a handle. It holds no weights: a
transport on the trainer's side does, and a ticket says how to get them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trinity.common.errors import SyncError

if TYPE_CHECKING:
    from trinity.common.weights import Ticket


def not_held(version: int, versions: Sequence[int]) -> SyncError:
    """Return the error of weights that are not held (E5502).

    They are not held any more, or not yet.
    """
    held = list(versions) or "none"
    return SyncError(f"weights of version {version} are not held; versions at hand: {held}", code="E5502")


@runtime_checkable
class Synchronizer(Protocol):
    """Carries tickets from the trainer to the explorers.

    The two implementations say what each method means for them.
    """

    # ------------------------------------------------------------------ trainer
    async def is_awaited(self, version: int) -> bool:
        """Return whether `version` is awaited and live tensors may be copied."""

    async def publish(self, ticket: Ticket, *, is_live: bool = False) -> int | None:
        """Make a version available; return the oldest version still needed.

        None if live tensors were offered and no explorer was waiting.
        """

    async def wait_for_request(self, *, timeout_s: float) -> bool:
        """Wait until an explorer asks for weights; return whether one did in time."""

    async def is_requested(self) -> bool:
        """Return whether an explorer waits for its request to be acknowledged."""

    async def acknowledge(self) -> None:
        """Say that the newest version is what the trainer has."""

    async def finish_trainer(self) -> None:
        """Say that no further version will come."""

    async def explorer_state(self, explorer: str) -> dict[str, Any] | None:
        """Return an explorer's snapshot, if checkpoints keep it."""

    async def needed_versions(self, training_step: int) -> list[int]:
        """Return older versions that a checkpoint must hold for an explorer.

        These are versions before `training_step`.
        """

    async def restore(
        self,
        version: int,
        explorer_state: dict[str, Any] | None,
        *,
        tickets: Sequence[Ticket],
        explorer: str,
    ) -> None:
        """Begin, or continue from a checkpoint whose newest version is `version`."""

    async def is_explorer_expected(self) -> bool:
        """Return whether a separately run explorer is active or still starting."""

    # ----------------------------------------------------------------- explorer
    async def required_version(self) -> int:
        """Return the version that the next step of separate explorers needs.

        No explorer that runs apart may begin a further step without it.
        """

    async def wait_for_version(self, version: int, *, timeout_s: float | None = None, explorer: str) -> int:
        """Wait for `version` or a newer one; return the newest.

        The wait also ends when the trainer has finished.
        """

    async def request(self, version: int = 0, *, timeout_s: float | None = None, explorer: str) -> int:
        """Request `version` or a newer one; return the newest after the answer.

        A request for version 0 accepts any version.
        """

    async def wait_for_trainer(self, *, timeout_s: float | None = None) -> int:
        """Wait until the trainer has finished; return the last version."""

    async def fetch(self, version: int, *, explorer: str) -> Ticket:
        """Return the ticket of `version`.

        Call `release` when the engines hold their own copy.
        """

    async def release(self, version: int, *, explorer: str) -> None:
        """Record that the engines copied `version` or gave up loading it."""

    async def report_explorer(self, state: dict[str, Any], *, explorer: str) -> None:
        """Keep an explorer's snapshot after a finished step."""

    async def finish_explorer(self, *, explorer: str) -> None:
        """Say that this explorer will ask for no further version."""

    # ------------------------------------------------------------------- either
    async def newest_version(self) -> int:
        """Return the newest published version; 0 is the initial model."""

    async def newest(self) -> tuple[int, str]:
        """Return number and fingerprint of the newest version.

        The fingerprint is empty where the number identifies the version.
        """

    async def is_trainer_finished(self) -> bool:
        """Return whether the trainer will publish no further version."""
