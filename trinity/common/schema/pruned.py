"""What is left of an experience whose payload is gone."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience
from trinity.utils.log import get_logger

logger = get_logger("buffer")

LEFT = ("eid", "reward", "prompt_text", "response_text", "info")


class PrunedExperience(Experience):
    """Identity, reward and texts of an experience without its payload.

    Reading any other field raises an error, so that nobody takes a removed value for one that never existed.

    Args:
        uid: identity of the experience.
        reward: scalar reward, if it has one.
        prompt_text: the prompt as text.
        response_text: the response as text.
        model_version: of the weights that sampled it, if it is known; it is in `info`.
        reason: why the payload is gone, for the error.

    Raises:
        DataError: a field that was in the payload is read (E5104).
    """

    _is_told = False

    def __init__(
        self,
        uid: str,
        *,
        reward: float | None,
        prompt_text: str | None,
        response_text: str | None,
        model_version: int | None,
        reason: str,
    ) -> None:
        self._reason = reason
        self.eid, self.reward = EID.from_uid(uid), reward
        self.prompt_text, self.response_text = prompt_text, response_text
        self.info = {} if model_version is None else {"model_version": model_version}
        if not PrunedExperience._is_told:
            PrunedExperience._is_told = True
            logger.warning("%s: only identity, reward and texts are left; further ones are not reported", reason)

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={getattr(self, name)!r}" for name in LEFT)
        return f"{type(self).__name__}({known})"

    def __getattribute__(self, name: str) -> Any:
        if name in _GONE:
            raise DataError(f"{self._reason}; its {name} was in it", code="E5104")
        return super().__getattribute__(name)


_GONE = frozenset(each.name for each in fields(Experience)) - frozenset(LEFT)
