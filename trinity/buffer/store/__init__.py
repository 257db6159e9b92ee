"""The experience store: one transactional log in a database.

Trainers claim experiences from it and commit training steps in it.
"""

from trinity.buffer.store.backup import JSONBackup
from trinity.buffer.store.pruning import GIB
from trinity.buffer.store.replay import Replay
from trinity.buffer.store.store import ExperienceStore
from trinity.buffer.store.types import AppendResult, Batch, BufferCounts, ConsumerToken

__all__ = ["AppendResult", "Batch", "ConsumerToken", "BufferCounts", "ExperienceStore", "GIB", "JSONBackup", "Replay"]
