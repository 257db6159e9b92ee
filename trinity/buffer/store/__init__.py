"""The experience store: one transactional log from which trainers claim and in which steps are committed."""

from trinity.buffer.store.backup import JSONBackup
from trinity.buffer.store.replay import Replay
from trinity.buffer.store.store import ExperienceStore
from trinity.buffer.store.types import AppendResult, Batch, ConsumerToken, Counts

__all__ = ["AppendResult", "Batch", "ConsumerToken", "Counts", "ExperienceStore", "JSONBackup", "Replay"]
