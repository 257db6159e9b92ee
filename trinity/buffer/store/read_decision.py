"""Decide how a read proceeds.

A reader gets its full batch, gets an incomplete batch, waits, or is at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from trinity.buffer.store import claims, ledger
from trinity.buffer.store.claims import Limits
from trinity.buffer.store.database import Database
from trinity.buffer.store.replay import Held, Replay, held, most_claimable
from trinity.buffer.store.scope import Scope
from trinity.buffer.store.types import ConsumerToken


@dataclass(frozen=True)
class ReadDecision:
    """What a read does.

    Attributes:
        is_due: claim now; false: wait.
        takes_less: claim an incomplete batch, because no more can come before newer weights or the deadline is reached.
        is_idle: the producers append nothing before newer weights, or are finished.
        is_closed: all producers are finished, and nothing is left for this step or a later one.
        is_over: nothing is left, and nothing will come.
    """

    is_due: bool
    takes_less: bool
    is_idle: bool
    is_closed: bool
    is_over: bool = False


def decide_read(
    database: Database,
    token: ConsumerToken,
    n: int,
    *,
    version: int | None,
    is_last: bool,
    replay: Replay | None,
    capacity: int | None,
) -> ReadDecision:
    """Return the decision on a read of `n` rollouts.

    The trainer has published `version`; the buffer has room for `capacity` experiences, or for any number.

    Raises:
        StoreError: the token is fenced (E5203), or the database cannot be used.
    """
    scope = Scope.of(token)
    with database.read() as connection:
        # The state of the producers is read first, so that the claim sees all that they had appended by then.
        state = ledger.producers(connection, scope, trained_version=version, capacity=capacity)
        ledger.verify_token(connection, token)
    takes_less = is_last or state.is_idle
    with database.read() as connection:
        if replay is None:
            ready = claims.num_claimable(connection, scope, n=n, consumer=token.consumer, max_version=version)
            # After going back, experiences of newer weights are left for the steps that may train them.
            is_drained = state.is_closed and not claims.num_claimable(
                connection, scope, n=1, consumer=token.consumer, max_version=None
            )
            return ReadDecision(ready >= n or takes_less, takes_less, state.is_idle, is_drained)
        if not state.is_closed:
            limits = Limits(n, max_version=version)
            is_patient = replay.is_patient and not state.unscheduled
            is_due = takes_less or (not is_patient and most_claimable(connection, token, limits, replay=replay) >= n)
            return ReadDecision(is_due, takes_less, state.is_idle, False)
        have = held(connection, scope, consumer=token.consumer, replay=replay, max_version=version)
    return _at_the_end(have, is_last=is_last, replay=replay)


def _at_the_end(held: Held, *, is_last: bool, replay: Replay) -> ReadDecision:
    """Decide on a read of a replay buffer whose producers are finished.

    Rollouts are then reused only if the trainer stops by itself (`Replay.is_bounded`).
    """
    ready = held.claimable
    if not replay.is_bounded:
        return ReadDecision(True, True, True, True, is_over=not any(rollout.is_new for rollout in ready))
    cools_down = bool(held.kept) and not ready
    return ReadDecision(is_last or not cools_down, True, True, True)
