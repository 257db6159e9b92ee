"""The base class of reward models, and experiences as conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.common.models.chat_template import decode_tokens
from trinity.utils.declaration import Declared

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RewardModel(Declared, ABC):
    """Scores the experiences of an explore step, in its own thread.

    Attributes:
        is_classifier: `model.path` is the folder of a Hugging Face sequence classifier, which is checked first.

    Args:
        config: resolved configuration; `trainer.trainer_config.reward_model` is the section.

    A subclass gets `reward_model.worker_args` as keyword arguments.
    """

    kind = "reward_model"
    is_classifier: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings = config.trainer.trainer_config.reward_model
        self.num_truncated = 0

    @abstractmethod
    def score(self, experiences: Sequence[Experience]) -> Sequence[float]:
        """Return one score per experience, in order; NaN if scoring failed."""

    def close(self) -> None:
        """Release what the constructor acquired."""


def conversation_of(experience: Experience, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return an experience as messages, with its response as the last.

    An experience without messages becomes two: the text of its prompt tokens and of its response tokens.

    Args:
        experience: a rollout.
        tokenizer: the tokenizer that made its tokens.
    """
    if experience.messages:
        return [dict(message) for message in experience.messages]
    tokens, cut = experience.tokens.tolist(), experience.prompt_length
    return [
        {"role": "user", "content": decode_tokens(tokenizer, tokens[:cut], skip_special=True)},
        {"role": "assistant", "content": decode_tokens(tokenizer, tokens[cut:], skip_special=True)},
    ]
