"""Reward models of Hugging Face: sequence classifiers with one label.

Dimension key: B = conversations, T = tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from trinity.common.config import Config
from trinity.common.config.keys import REWARD_MODEL
from trinity.common.config.resolved import filled
from trinity.common.errors import ConfigError, EnvironmentProblem, OutOfMemoryError
from trinity.common.experience import Experience
from trinity.common.models.chat_template import load_tokenizer, render_chat
from trinity.common.models.model_config import import_libraries
from trinity.common.models.reward_models.registry import REWARD_MODELS
from trinity.common.models.reward_models.reward_model import RewardModel, conversation_of
from trinity.common.models.vocabulary import known_ids
from trinity.utils.device import compute_dtype, is_out_of_memory, select_device
from trinity.utils.log import get_logger

logger = get_logger("explorer")

SECTION = str(REWARD_MODEL)


@REWARD_MODELS.register_module("sequence_classifier")
class SequenceClassifier(RewardModel):
    """Scores a conversation by the logit at its last token.

    The conversation is prompt and response. With `model.input_tokenizer`, which must be the policy's tokenizer, the
    rollout's tokens are decoded with it and tokenised again with the reward model's own chat template. Without it the
    reward model reads the tokens unchanged.

    Args:
        config: resolved configuration.

    Raises:
        EnvironmentProblem: the model cannot be loaded (E3101), has no head of one output (E3122), or does not read
            the policy's tokens (E3123).
        ConfigError: no `model.path` (E1860), an `external_lib` that cannot be imported (E1863), or an
            `input_tokenizer` that is not the policy's (E3124).
    """

    is_classifier = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        own = self.settings.model
        if own.path is None:
            raise ConfigError(f"{SECTION}.model.path is missing: give the folder of a reward model", code="E1860")
        import_libraries(own.external_lib, section=f"{SECTION}.model")
        self.device = select_device()
        dtype = compute_dtype(self.settings.dtype, self.device)
        self.path = str(Path(own.path).expanduser())
        self.model = load_classifier(self.path, self.device, dtype=dtype, trust_remote_code=own.trust_remote_code)
        self.policy_tokenizer = load_tokenizer(config.model)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        if own.input_tokenizer is not None:
            self._check_input_tokenizer(own.input_tokenizer)
            self.tokenizer = self._own_tokenizer()
        self._check_vocabulary()
        positions = getattr(self.model.config, "max_position_embeddings", None)
        limits = [limit for limit in (self.settings.max_length, positions) if limit]
        self.max_length = min(limits) if limits else None
        logger.info("reward model %s on %s in %s", self.path, self.device, str(dtype).removeprefix("torch."))

    @torch.no_grad()
    def score(self, experiences: Sequence[Experience]) -> list[float]:
        """Return the logit of each conversation.

        Tokens beyond `max_length` are cut; `num_truncated` counts the conversations cut in this call.

        Raises:
            OutOfMemoryError: a forward pass does not fit.
        """
        rows = [self._tokens(experience) for experience in experiences]
        self.num_truncated = sum(self.max_length is not None and len(row) > self.max_length for row in rows)
        rows = [row[: self.max_length] for row in rows]
        scores = [float("nan")] * len(rows)
        for places in self._micro_batches(rows):
            try:
                found = self._forward([rows[place] for place in places])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                raise OutOfMemoryError(
                    f"out of memory on {self.device} while {len(places)} conversations of at most "
                    f"{max(len(rows[place]) for place in places)} tokens were scored; lower "
                    f"{SECTION}.micro_batch_size_per_gpu or .max_length"
                ) from error
            for place, value in zip(places, found.tolist(), strict=True):
                scores[place] = value
        return scores

    def close(self) -> None:
        """Release the model's memory."""
        del self.model

    def _tokens(self, experience: Experience) -> list[int]:
        if self.tokenizer is None:
            return [int(token) for token in experience.tokens]
        messages = conversation_of(experience, self.policy_tokenizer)
        return render_chat(self.tokenizer, messages, tools=experience.tools, is_prompt=False)[0]

    def _micro_batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yield the row indices of each forward pass, grouped by length."""
        settings = self.settings
        most = filled(self.config, REWARD_MODEL.micro_batch_size_per_gpu)
        limit = settings.forward_max_token_len_per_gpu if settings.use_dynamic_bsz else None
        group: list[int] = []
        for place in sorted(range(len(rows)), key=lambda row: (len(rows[row]), row)):
            width = len(rows[place])  # rows are sorted by length, so this is the widest
            is_full = len(group) >= most if limit is None else (len(group) + 1) * width > limit
            if group and is_full:
                yield group
                group = []
            group.append(place)
        if group:
            yield group

    def _forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the scores [B] of rows of tokens, padded on the right."""
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        padded = [torch.tensor(row, dtype=torch.long) for row in rows]
        tokens = nn.utils.rnn.pad_sequence(padded, batch_first=True).to(self.device)
        mask = (torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]).long()
        head = getattr(self.model, "score", None)
        if not isinstance(head, nn.Module):  # an encoder has its own pooling
            return self.model(input_ids=tokens, attention_mask=mask).logits[:, 0].float()
        # Hugging Face takes the last token that is not padding, which is wrong if the padding token is the end token.
        hidden = self.model.base_model(input_ids=tokens, attention_mask=mask).last_hidden_state
        last = hidden[torch.arange(len(rows), device=self.device), lengths - 1]
        scores: Tensor = head(last)[:, 0].float()
        return scores

    def _own_tokenizer(self) -> PreTrainedTokenizerBase:
        model = self.config.model.model_copy(
            update={
                "model_path": self.path,
                "custom_chat_template": None,
                "chat_template_path": None,
                "trust_remote_code": self.settings.model.trust_remote_code,
            }
        )
        tokenizer = load_tokenizer(model)
        if not tokenizer.chat_template:
            raise EnvironmentProblem(
                f"the tokenizer of {SECTION}.model.path {self.path} has no chat template, which input_tokenizer asks "
                "for; add chat_template.jinja to the folder",
                code="E3107",
            )
        return tokenizer

    def _check_input_tokenizer(self, path: str) -> None:
        model = self.config.model.model_copy(
            update={
                "model_path": str(Path(path).expanduser()),
                "custom_chat_template": None,
                "chat_template_path": None,
            }
        )
        if load_tokenizer(model).get_vocab() != self.policy_tokenizer.get_vocab():
            raise ConfigError(
                f"{SECTION}.model.input_tokenizer {path} is not the tokenizer of the rollouts; write the value of "
                f"model.model_path ({self.config.model.model_path})",
                code="E3124",
            )

    def _check_vocabulary(self) -> None:
        tokenizer = self.tokenizer or self.policy_tokenizer
        table: Any = self.model.get_input_embeddings().weight
        needed = max(known_ids(tokenizer)) + 1
        if len(table) < needed:
            whose = "its own tokenizer" if self.tokenizer else "the policy's tokenizer"
            raise EnvironmentProblem(
                f"{SECTION}.model.path {self.path} has embeddings of {len(table)} tokens, {whose} has ids up to "
                f"{needed - 1}; if the vocabularies differ, set {SECTION}.model.input_tokenizer to the policy's",
                code="E3123",
            )


def load_classifier(path: str, device: torch.device, *, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    """Return the sequence classifier of the folder `path`, frozen.

    Raises:
        EnvironmentProblem: it cannot be loaded (E3101), or has no head of one output (E3122).
    """
    transformers_logging.disable_progress_bar()
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # we raise our own error for missing weights
    try:
        with torch.random.fork_rng(devices=[]):
            model, info = AutoModelForSequenceClassification.from_pretrained(
                path,
                num_labels=1,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load {SECTION}.model.path {path}: {error}", code="E3101") from error
    finally:
        transformers_logging.set_verbosity(level)
    wrong = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
    extra = sorted(name for name in info["unexpected_keys"] if name.split(".")[0] in ("score", "classifier"))
    if wrong or extra:
        raise EnvironmentProblem(
            f"{SECTION}.model.path {path} is no sequence classifier with one label: "
            f"{', '.join([f'{name} is missing or of another shape' for name in wrong] + extra)}; other kinds of reward "
            f"models are plugins, named in {SECTION}.worker",
            code="E3122",
        )
    frozen: PreTrainedModel = nn.Module.to(model, device).eval().requires_grad_(False)
    return frozen
