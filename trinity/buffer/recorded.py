"""Stored experiences of another run as demonstrations.

The tokens are reused, after a check that they belong to the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trinity.buffer.formatter import TokenizedRow
from trinity.buffer.sql_tables import ExperienceTable
from trinity.common.errors import DataError
from trinity.common.models.chat_template import decode_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trinity.common.experience import Experience

NUM_COMPARED = 32


class RecordedFormatter:
    """Turns stored experiences into rows of tokens.

    The tokens that the policy of the other run produced are learned.

    Args:
        table: the experiences.
        tokenizer: of the model that is trained.
        name: of the buffer, for messages.

    Raises:
        DataError: the experiences were made with another tokenizer (E4026), or cannot be read (E4001).
    """

    kind = "plaintext"

    def __init__(self, table: ExperienceTable, tokenizer: PreTrainedTokenizerBase, *, name: str) -> None:
        self.table = table
        self.tokenizer = tokenizer
        rows = (table.row(number).values for number in range(min(len(table), NUM_COMPARED)))
        check_vocabulary((self._experience(row) for row in rows if row["size"]), tokenizer, name=name)

    def __call__(self, values: Mapping[str, Any]) -> TokenizedRow:
        """Return the tokens of a row.

        Raises:
            DataError: the payload is damaged (E5101), or nothing in it can be imitated (E4025).
        """
        return tokenized(self._experience(values), self.tokenizer)

    def _experience(self, values: Mapping[str, Any]) -> Experience:
        from trinity.common.experience import Experience  # with torch, whose import takes seconds

        return Experience.deserialize(self.table.payload(values["id"]))


def tokenized(experience: Experience, tokenizer: PreTrainedTokenizerBase) -> TokenizedRow:
    """Return the tokens of an experience, and which of them are learned.

    The tokens that its policy produced are learned.

    Raises:
        DataError: there are no such tokens, it is a pair, has images, or a token that the tokenizer does not know
            (E4025).
    """
    mask = [bool(each) for each in experience.action_mask] if experience.action_mask is not None else []
    tokens = experience.tokens.tolist()
    reason = None
    if experience.chosen is not None:
        reason = "it is a pair, not a response"
    elif experience.multi_modal_inputs:
        reason = "it has images or videos"
    elif not any(mask):
        reason = "no token of it was produced by the policy"
    elif not 0 <= min(tokens) <= max(tokens) < len(tokenizer):
        reason = f"it has the token {max(tokens)}, and the tokenizer knows {len(tokenizer)}"
    if reason is not None:
        raise DataError(
            f"experience {experience.eid.uid} cannot be trained on as a demonstration: {reason}", code="E4025"
        )
    return TokenizedRow(tokens, experience.prompt_length, mask)


def check_vocabulary(experiences: Iterable[Experience], tokenizer: PreTrainedTokenizerBase, *, name: str) -> None:
    """Check that the stored tokens belong to this tokenizer.

    They are compared with the text stored beside them. One experience that agrees is enough, since a workflow may store
    a different text; experiences without any text also pass.

    Raises:
        DataError: no text agrees with its tokens (E4026).
    """
    other = None
    for experience in experiences:
        text = (experience.response_text or "").strip()
        if not text:
            continue
        tokens = experience.tokens[experience.prompt_length :].tolist()
        known = [each for each in tokens if 0 <= each < len(tokenizer)]
        read = decode_tokens(tokenizer, known, skip_special=True).strip()
        if len(known) == len(tokens) and (text in decode_tokens(tokenizer, known) or (read and read in text)):
            return
        other = other or (text, read)
    if other is not None:
        text, read = (repr(each if len(each) <= 60 else each[:60] + "...") for each in other)
        raise DataError(
            f"buffer {name!r}: the experiences were made with another tokenizer: one whose text is {text} reads {read} "
            "with that of model.model_path; take experiences of a model with the same vocabulary, or store "
            "conversations (schema_type: sft)",
            code="E4026",
        )
