"""Whether a reader gets its batch now, gets less than it asked for, waits, or is at the end."""

from __future__ import annotations

from dataclasses import dataclass

from trinity.buffer.store import ledger
from trinity.buffer.store import reuse as replay
from trinity.buffer.store.database import Database
from trinity.buffer.store.ledger import Producers, Scope
from trinity.buffer.store.reuse import Reuse
from trinity.buffer.store.types import ConsumerToken


@dataclass(frozen=True)
class Outlook:
    """What a read does.

    Attributes:
        is_due: claim now; else wait.
        takes_less: no more can come before newer weights, or the deadline is reached.
        is_idle: the producers append nothing before newer weights, or are finished.
        is_closed: all producers are finished.
        is_over: nothing is left, and nothing will come.
    """

    is_due: bool
    takes_less: bool
    is_idle: bool
    is_closed: bool
    is_over: bool = False


def outlook(
    database: Database, token: ConsumerToken, n: int, *, version: int | None, is_last: bool, reuse: Reuse | None
) -> Outlook:
    """Return what a read of `n` rollouts does by a trainer that has published `version`.

    Raises:
        StoreError: the token is fenced (E5203), or the database cannot be used.
    """
    scope = Scope.of(token)
    with database.read() as connection:
        # The state of the producers first: what they appended before it is then all visible to the claim.
        state = ledger.producers(connection, scope, trained_version=version)
        ledger.verify_token(connection, token)
    takes_less = is_last or state.is_idle
    with database.read() as connection:
        if reuse is None:
            ready = ledger.num_claimable(connection, scope, n=n, consumer=token.consumer, max_version=version)
            return Outlook(ready >= n or takes_less, takes_less, state.is_idle, state.is_closed)
        held = replay.held(connection, scope, consumer=token.consumer, reuse=reuse, max_version=version)
    return _of_replay(held, state, n=n, is_last=is_last, reuse=reuse)


def _of_replay(held: replay.Held, state: Producers, *, n: int, is_last: bool, reuse: Reuse) -> Outlook:
    """Return what a read of a replay buffer does; at the end its rollouts are used again only by a bounded trainer."""
    ready = held.claimable
    takes_less = is_last or state.is_idle
    is_due = takes_less or (len(ready) >= n and not reuse.is_patient)
    if not state.is_closed:
        return Outlook(is_due, takes_less, state.is_idle, False)
    if not reuse.is_bounded:
        return Outlook(True, True, True, True, is_over=not any(rollout.is_new for rollout in ready))
    cools_down = bool(held.kept) and not ready
    return Outlook(is_last or not cools_down, True, True, True)
