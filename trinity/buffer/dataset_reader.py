"""Read a dataset as tokenised training input that resumes exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trinity.buffer.checks import feature_fault, missing_columns, missing_features
from trinity.buffer.data_files import one_place
from trinity.buffer.dataset import Table, check_unchanged, fingerprint, load_table
from trinity.buffer.formatter import Formatter, TokenizedRow, make_formatter
from trinity.buffer.image_rows import image_fault, with_image_bytes
from trinity.buffer.prepared_images import open_images
from trinity.buffer.quarantine import MAX_BAD_ROW_RATIO, admit, write_quarantine
from trinity.buffer.recorded import RecordedFormatter
from trinity.buffer.rows import BadRow, DataRow
from trinity.buffer.selector.data_source import SelectedRows
from trinity.buffer.selector.selection import Selection, number_columns
from trinity.buffer.sql_tables import ExperienceTable, SQLTable, load_sql_table
from trinity.buffer.training_rows import decoded, form_of, training_row_faults
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.row_schemas import SCHEMAS
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.images.reading import UnreadableImage
from trinity.common.models.chat_template import check_template
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trinity.common.experience import Experience

OverlongPolicy = Literal["drop", "truncate", "error"]
MAX_CACHED_BYTES = 512 * 1024 * 1024
# Errors that leave out a single row: no response, turns that cannot be joined, equal responses, too few tokens, nothing
# to imitate, unusable images, a damaged payload, an error of the chat template.
ROW_CODES = ("E4020", "E4021", "E4022", "E4024", "E4025", "E4031", "E4032", "E4035", "E5101", "E3109")

_logger = get_logger("buffer")


class DatasetReader:
    """Reads the rows of a dataset for training as experiences.

    The experiences have no reward and no log-probabilities.

    For `sft` an experience is a conversation to imitate, for `dpo` a pair of responses to one prompt, for `cpt` a text,
    for `experience` a response that a run has stored in a database, to imitate. Rows are tokenised when first read. In
    place of the selector `sequential`, which is the default, `shuffle` is used: every epoch is a new permutation. Any
    other selector is used as configured.

    Args:
        config: the dataset (`storage_type: file` or `sql`).
        tokenizer: with its chat template.
        schema: `sft`, `dpo`, `cpt` or `experience`; in a database `sft` or `experience`.
        seed: of the permutation, unless `config.data_selector` has its own.
        max_length: longest row in tokens; None: no limit.
        overlong: what happens to longer ones: `drop` (skip and count), `truncate` (cut the response and count;
            skip where the prompt alone is too long) or `error`; None: `truncate` for texts, else `drop`.
        shuffle: false keeps the selector `sequential`, that is the order of the dataset.
        total_epochs: passes over the rows, 0 without end; None: of `config` (without end if it has `total_steps`).
        max_bad_row_ratio: more bad rows are an error; in [0, 1].
        model_path: folder of the model, which says how images become tokens; None: that of the tokenizer.

    Raises:
        DataError: the dataset cannot be read or used (E4001 to E4062).
        ConfigError: another schema (E1613).
        EnvironmentProblem: the chat template of the format has a syntax error (E3109).
    """

    def __init__(
        self,
        config: ExperienceBufferConfig,
        *,
        tokenizer: PreTrainedTokenizerBase,
        schema: str = "sft",
        seed: int | None = None,
        max_length: int | None = None,
        overlong: OverlongPolicy | None = None,
        shuffle: bool = True,
        total_epochs: int | None = None,
        max_bad_row_ratio: float = MAX_BAD_ROW_RATIO,
        model_path: str | None = None,
    ) -> None:
        self.config = config
        self.schema = schema
        self.max_length = max_length
        self.overlong = overlong or ("truncate" if schema == "cpt" else "drop")
        if config.format.chat_template is not None:
            check_template(config.format.chat_template, source=f"format.chat_template of buffer {config.name!r}")
        self.tokenizer = tokenizer
        folder = model_path or tokenizer.name_or_path
        self._images = open_images(folder) if folder and schema == "sft" else None
        self._max_bad_row_ratio = max_bad_row_ratio
        self._order = seed, shuffle
        self._open(self._load())
        self.total_epochs = (0 if config.total_steps else config.total_epochs) if total_epochs is None else total_epochs
        self.num_overlong = 0

    def __len__(self) -> int:
        """Return the number of usable rows.

        Over-long rows are found when they are read.
        """
        return len(self._rows)

    @property
    def dataset_size(self) -> int:
        """The number of usable rows, for selectors."""
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """Hash of all rows, made when it is first asked for."""
        return self._fingerprint()

    @property
    def dataset(self) -> SelectedRows:
        """The usable rows, for selectors."""
        return SelectedRows(self.table, self._rows)

    def read(self, n: int) -> list[Experience]:
        """Return the next `n` rows as experiences.

        Fewer are returned at the end of the last epoch, none after it.

        Raises:
            DataError: a whole epoch without a usable row, or an over-long row with the policy `error` (E4014).
        """
        experiences: list[Experience] = []
        misses = 0
        while len(experiences) < n and not self._is_at_end():
            position = self._selection.num_read
            (number,) = self._selection.take(1)
            tokenized = self._tokenized_row(number)
            if tokenized is not None:
                experiences.append(self._experience(tokenized, number, epoch=position // len(self) + 1))
                misses = 0
                continue
            misses += 1
            if misses > len(self):
                raise DataError(
                    f"buffer {self.config.name!r}: no row fits into {self.max_length} tokens; raise "
                    "model.max_model_len",
                    code="E4014",
                )
        return experiences

    def rows_at(self, places: Iterable[int]) -> Iterator[tuple[DataRow, TokenizedRow]]:
        """Yield the usable rows `places` with their tokens, not truncated.

        A place is the number of a row among the usable ones, 0-based. Rows that prove unusable are skipped and added to
        `quarantined`. The position of `read` does not change.
        """
        for place in places:
            tokenized = self._format(place)
            if tokenized is not None:
                yield self.table.row(self._rows[place]), tokenized

    def skip(self, n: int) -> None:
        """Leave out the next `n` rows, or those until the end."""
        rest = self.total_epochs * len(self) - self._selection.num_read if self.total_epochs else n
        self._selection.take(max(0, min(n, rest)))

    async def read_async(self, n: int) -> list[Experience]:
        """Return what `read` returns."""
        return self.read(n)

    def commit(self, step: int, uids: Sequence[str]) -> None:
        """Nothing to record: the checkpoint holds the position."""

    def close(self) -> None:
        """Nothing to release."""

    def metrics(self) -> dict[str, float]:
        """Return how many rows were left out and how many were too long so far."""
        return {
            "sample/quarantined_row_count": float(len(self.quarantined)),
            "sample/overlong_count": float(self.num_overlong),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, JSON-able."""
        return {
            "fingerprint": self.fingerprint,
            "num_rows": self._num_rows,
            "selector_type": type(self._selection.selector).__name__,
            **self._selection.state_dict(),
            "num_overlong": self.num_overlong,
            "refused": [[number, asdict(row)] for number, row in self._refused.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Where a table of a database has grown since, the reader continues over the rows that it had before.

        Raises:
            CheckpointError: the dataset or the selector changed (E7005).
        """
        self.return_to(state)
        self._selection.load_state_dict(state)
        self.num_overlong = int(state["num_overlong"])
        for number, row in state.get("refused", []):
            self._refuse(number, BadRow(**row))

    def return_to(self, state: dict[str, Any]) -> None:
        """Use the dataset as it was at a `state_dict`, without rows added since.

        Raises:
            CheckpointError: the dataset or the selector changed (E7005).
        """
        num_rows = state.get("num_rows", len(self.table))
        if isinstance(self.table, SQLTable) and num_rows < len(self.table):
            self._open(self.table.first(num_rows))
        own = {"fingerprint": self.fingerprint, "selector_type": type(self._selection.selector).__name__}
        check_unchanged(f"buffer {self.config.name!r}", own, state)

    def write_quarantine(self, folder: Path) -> Path | None:
        """Write the rows that are left out to `<folder>/<buffer>.jsonl`.

        Return the file, or None if no row is left out.
        """
        return write_quarantine(self.quarantined, folder, name=self.config.name)

    def _load(self) -> Table:
        config = self.config
        try:
            if config.storage_type == "sql":
                return load_sql_table(one_place(config.path), name=config.name, schema=self.schema)
            return load_table(config.path, split=config.split, subset_name=config.subset_name)
        except DataError as error:
            raise DataError(f"buffer {config.name!r}: {error.args[0]}", code=error.code) from error

    def _open(self, table: Table) -> None:
        """Read the rows of `table` from now on."""
        self.table = table
        self.quarantined: list[BadRow] = list(table.bad)
        self.formatter = self._make_formatter()
        self._rows = self._check_rows()
        self._num_rows = len(table) + len(table.bad)
        self._admit()
        self._fingerprint = cache(partial(fingerprint, table))
        seed, shuffle = self._order
        self._selection = Selection(self, self.config.data_selector, seed=seed, shuffle=shuffle)
        self._refused: dict[int, BadRow] = {}
        self._cache: dict[int, TokenizedRow | None] = {}
        self._cached_bytes = 0

    def _make_formatter(self) -> Formatter:
        config, schema = self.config, self.schema
        if schema == "experience" and isinstance(self.table, ExperienceTable):
            return RecordedFormatter(self.table, self.tokenizer, name=config.name)
        kind = form_of(schema, config.format, self.table.columns)
        return make_formatter(schema, config.format, self.tokenizer, kind=kind, images=self._images)

    def _is_at_end(self) -> bool:
        return self.total_epochs > 0 and self._selection.num_read >= self.total_epochs * len(self)

    def _check_rows(self) -> list[int]:
        fmt, kind = self.config.format, self.formatter.kind
        features, columns = number_columns(self.config.data_selector), self.table.columns
        faults = missing_columns(fmt, columns, needs=SCHEMAS[self.schema].needed) + missing_features(features, columns)
        if faults and len(self.table):
            reasons = "; ".join(fault.reason for fault in faults)
            raise DataError(f"buffer {self.config.name!r}: {reasons}", code="E4004")
        good = []
        for number in range(len(self.table)):
            row = self.table.row(number)
            fault = next(training_row_faults(self.schema, fmt, decoded(fmt, row.values, kind=kind), kind=kind), None)
            fault = fault or feature_fault(features, row.values) or image_fault(fmt, row, kind=kind)
            if fault is None:
                good.append(number)
            else:
                self.quarantined.append(BadRow(row.file, row.line, fault.key, fault.reason, fault.code))
        return good

    def _admit(self) -> None:
        ratio, name = self._max_bad_row_ratio, self.config.name
        admit(self.quarantined, num_rows=self._num_rows, max_bad_row_ratio=ratio, name=name)

    def _tokenized_row(self, number: int) -> TokenizedRow | None:
        """Return the tokens of usable row `number`.

        Return None if they are too many or the row proves unusable.
        """
        if number in self._cache:
            tokenized = self._cache[number]
        else:
            tokenized = self._format(number)
            size = tokenized.num_bytes if tokenized is not None else 0
            if tokenized is None or self._cached_bytes + size <= MAX_CACHED_BYTES:
                self._cache[number] = tokenized
                self._cached_bytes += size
        if tokenized is None or self.max_length is None or tokenized.num_tokens <= self.max_length:
            return tokenized
        self.num_overlong += 1
        return self._shorten(tokenized, number, self.max_length)

    def _format(self, number: int) -> TokenizedRow | None:
        row, fmt = self.table.row(self._rows[number]), self.config.format
        try:
            return self.formatter(with_image_bytes(decoded(fmt, row.values, kind=self.formatter.kind), fmt, row))
        except UnreadableImage as error:
            raise DataError(f"{row.file}:{row.line}: {error}; the file has changed since", code="E4031") from error
        except (DataError, EnvironmentProblem) as error:
            if error.code not in ROW_CODES:
                raise
            self._refuse(number, BadRow(row.file, row.line, "", str(error.args[0]), error.code))
            self._admit()
            return None

    def _refuse(self, number: int, row: BadRow) -> None:
        """Leave usable row `number` out from here on."""
        self._refused[number] = row
        self.quarantined.append(row)
        self._cache[number] = None

    def _shorten(self, tokenized: TokenizedRow, number: int, limit: int) -> TokenizedRow | None:
        row = self.table.row(self._rows[number])
        text = f"{row.file}:{row.line}: the row has {tokenized.num_tokens} tokens, more than {limit}"
        if self.overlong == "error":
            raise DataError(f"buffer {self.config.name!r}: {text}; raise model.max_model_len", code="E4014")
        if self.num_overlong == 1:
            _logger.warning("buffer %r: %s; policy: %s", self.config.name, text, self.overlong)
        return None if self.overlong == "drop" else tokenized.shortened(limit)

    def _experience(self, tokenized: TokenizedRow, number: int, *, epoch: int) -> Experience:
        import torch  # takes seconds to import, and who only looks at rows needs no experience

        from trinity.common.experience import EID, Experience

        prompt, response = tokenized.tokens[: tokenized.prompt_length], tokenized.tokens[tokenized.prompt_length :]
        is_pair = tokenized.rejected is not None
        return Experience(
            eid=EID(batch=f"{self.config.name}/{epoch}", task=number),
            tokens=torch.tensor(prompt if is_pair else tokenized.tokens, dtype=torch.long),
            prompt_length=tokenized.prompt_length,
            action_mask=None if is_pair else torch.tensor(tokenized.action_mask, dtype=torch.bool),
            chosen=torch.tensor(response, dtype=torch.long) if is_pair else None,
            rejected=torch.tensor(tokenized.rejected, dtype=torch.long) if is_pair else None,
            truncate_status="response_truncated" if tokenized.is_truncated else None,
            multi_modal_inputs=tokenized.images,
            info={"dataset": self.config.name, "index": number, "epoch": epoch},
            prompt_text=str(self.tokenizer.decode(prompt)),
            response_text=str(self.tokenizer.decode(response)),
        )
