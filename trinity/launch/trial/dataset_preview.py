"""What files to train on hold: rendered rows, lengths, bad rows.

The rows are read by the reader of the run, so that texts, cuts and what is left out are those of the run. All rows are
checked and compared; the tokens of many, evenly spaced, are counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.formatter import TokenizedRow
from trinity.buffer.quarantine import num_admitted
from trinity.buffer.rows import BadRow, DataRow
from trinity.common.config import Config
from trinity.common.config.problems import Finding
from trinity.common.config.row_schemas import SCHEMAS
from trinity.common.models.chat_template import decode_tokens, load_tokenizer
from trinity.launch.trial.bad_rows import ANY, too_many_bad
from trinity.launch.trial.overlaps import row_digests
from trinity.launch.trial.token_counts import length_ranges
from trinity.preflight.data import training_datasets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_MEASURED, LEAST_MEASURED = 2000, 200
MEASURED_CHARS = 900_000
"""Rows that are measured where nobody says how many, and the length of their texts: what takes less than a second.
Pairs, each of which is two sequences, are half as many."""


class RowPart(NamedTuple):
    """A stretch of a row.

    Attributes:
        name: `prompt`, `response`, `chosen`, `rejected` or `text`.
        is_trained: the loss counts its tokens.
        text: with its special tokens.
    """

    name: str
    is_trained: bool
    text: str


@dataclass
class DatasetPreview:
    """A dataset as it is trained on.

    Attributes:
        name: of the dataset.
        key: of its section.
        schema: `sft`, `dpo` or `cpt`.
        limit: tokens of the longest row, `model.max_model_len`; None: any number.
        num_rows: usable rows.
        num_measured: those whose tokens are counted.
        bad: rows that cannot be used, and why.
        max_bad: rows that a run leaves out at most.
        lengths: tokens of each row that is measured, before it is cut, by part.
        num_cut: of the rows that are measured, those whose end is cut to the limit.
        num_dropped: those above the limit that are left out.
        long: the first rows above the limit, with their places.
        num_images: of the rows that are measured, those with images.
        num_repeated: usable rows that an earlier row equals in all columns that are read.
        rows: the first ones that are trained on, in parts.
        ask: returns hashes of what the usable rows answer, which takes a while.
    """

    name: str
    key: str
    schema: str
    limit: int | None
    num_rows: int = 0
    num_measured: int = 0
    bad: Sequence[BadRow] = ()
    max_bad: int = 0
    lengths: dict[str, list[int]] = field(default_factory=dict)
    num_cut: int = 0
    num_dropped: int = 0
    long: list[str] = field(default_factory=list)
    num_images: int = 0
    num_repeated: int = 0
    rows: list[list[RowPart]] = field(default_factory=list)
    ask: Callable[[], frozenset[bytes]] = frozenset

    @cached_property
    def asked(self) -> frozenset[bytes]:
        """Hashes of what the usable rows answer, found when they are compared."""
        return self.ask()

    def findings(self) -> list[Finding]:
        """Return what a run refuses, and what is unusual."""
        found = []
        if len(self.bad) > self.max_bad:
            found.append(too_many_bad(self.bad, self.max_bad, key=self.key, where=f"dataset {self.name!r}"))
        if self.num_repeated:
            text = f"dataset {self.name!r}: {self.num_repeated} rows repeat an earlier row"
            found.append(Finding("W4040", self.key, text))
        return found

    def facts(self) -> dict[str, Any]:
        """Return everything in JSON types."""
        return {
            "name": self.name,
            "key": self.key,
            "schema": self.schema,
            "num_rows": self.num_rows,
            "num_measured": self.num_measured,
            "bad_rows": [str(row) for row in self.bad],
            "limit": self.limit,
            "num_cut": self.num_cut,
            "num_dropped": self.num_dropped,
            "long_rows": self.long,
            "num_images": self.num_images,
            "num_repeated": self.num_repeated,
            "findings": [f"[{each.code}] {each.message}" for each in self.findings()],
            "histograms": {
                part: [list(each) for each in length_ranges(lengths)] for part, lengths in self.lengths.items()
            },
            "rows": [[part._asdict() for part in row] for row in self.rows],
        }


def datasets_previewed(
    config: Config, *, num_shown: int, num_places: int = 5, num_measured: int | None = None
) -> list[DatasetPreview]:
    """Return what the datasets for training of a stage hold.

    Args:
        config: of the stage, whose process is ready.
        num_shown: rows of each that are shown in parts.
        num_places: rows above the limit of each whose place is reported.
        num_measured: rows of each whose tokens are counted at most; None: 2000, and fewer of pairs or where they are
            long.

    Raises:
        DataError: a dataset cannot be used (E4001 to E4062).
        EnvironmentProblem: there is no tokenizer, or no chat template (E3102, E3107, E3109).
    """
    datasets = list(training_datasets(config))
    if not datasets:
        return []
    tokenizer, found = load_tokenizer(config.model), list[DatasetPreview]()
    for key, dataset, schema in datasets:
        reader = DatasetReader(
            dataset,
            tokenizer=tokenizer,
            schema=schema or "sft",
            max_length=config.model.max_model_len,
            max_bad_row_ratio=ANY,
            model_path=config.model.model_path,
        )
        preview = DatasetPreview(dataset.name, key, reader.schema, reader.max_length)
        preview.num_repeated, num_chars = _compared(reader)
        wanted = num_measured or _num_measured(len(reader), num_chars, is_of_pairs=reader.schema == "dpo")
        stride = max(1, -(-len(reader) // wanted))
        _measure(preview, reader.rows_at(range(0, len(reader), stride)), reader, (num_shown, num_places))
        preview.ask = partial(_asked, reader)
        preview.bad = reader.quarantined
        num_rows = len(reader.table) + len(reader.table.bad)
        preview.num_rows = num_rows - len(preview.bad)
        preview.max_bad = num_admitted(num_rows, max_bad_row_ratio=config.buffer.max_bad_row_ratio)
        found.append(preview)
    return found


def _asked(reader: DatasetReader) -> frozenset[bytes]:
    return frozenset(digest for row in reader.dataset for digest in row_digests(reader, row))


def _measure(
    preview: DatasetPreview,
    rows: Iterable[tuple[DataRow, TokenizedRow]],
    reader: DatasetReader,
    numbers: tuple[int, int],
) -> None:
    """Count tokens; `numbers` are those of rows and of places to keep."""
    num_shown, num_places = numbers
    for row, tokenized in rows:
        preview.num_measured += 1
        preview.num_images += tokenized.images is not None
        for part, length in _lengths(preview.schema, tokenized):
            preview.lengths.setdefault(part, []).append(length)
        kept: TokenizedRow | None = tokenized
        if preview.limit is not None and tokenized.num_tokens > preview.limit:
            kept = tokenized.shortened(preview.limit) if reader.overlong == "truncate" else None
            preview.num_cut += kept is not None
            preview.num_dropped += kept is None
            if len(preview.long) < num_places:
                preview.long.append(f"{row.file}:{row.line}: {tokenized.num_tokens} tokens")
        if kept is not None and len(preview.rows) < num_shown:
            preview.rows.append(list(_parts(preview.schema, kept, reader.tokenizer)))


def _compared(reader: DatasetReader) -> tuple[int, int]:
    """Return how many rows repeat an earlier one, and the characters of all.

    What counts of a usable row is what is read of it.
    """
    names = dict(reader.config.format)
    read = SCHEMAS[reader.schema].forms[reader.formatter.kind]
    columns = sorted({names[key] for key in read if key.endswith("_key") and names[key] in reader.table.columns})
    known, num_chars = set[bytes](), 0
    for row in reader.dataset:
        text = repr([row.get(column) for column in columns])
        known.add(xxhash.xxh3_128_digest(text.encode("utf-8", "replace")))
        num_chars += len(text)
    return len(reader) - len(known), num_chars


def _num_measured(num_rows: int, num_chars: int, *, is_of_pairs: bool) -> int:
    """Return of how many rows the tokens are counted."""
    fitting = MEASURED_CHARS * num_rows // max(num_chars, 1)
    return min(max(fitting, LEAST_MEASURED), MOST_MEASURED // (2 if is_of_pairs else 1))


def _lengths(schema: str, row: TokenizedRow) -> Iterator[tuple[str, int]]:
    if schema == "cpt":
        yield "text", len(row.tokens)
        return
    yield "prompt", row.prompt_length
    yield "response" if row.rejected is None else "chosen", len(row.tokens) - row.prompt_length
    if row.rejected is not None:
        yield "rejected", len(row.rejected)


def _parts(schema: str, row: TokenizedRow, tokenizer: PreTrainedTokenizerBase) -> Iterator[RowPart]:
    """Yield the stretches that are trained, and those that are not."""
    begin = row.prompt_length
    yield RowPart("text" if schema == "cpt" else "prompt", False, decode_tokens(tokenizer, row.tokens[:begin]))
    for is_trained, stretch in itertools.groupby(row.action_mask):
        end = begin + sum(1 for _ in stretch)
        name = "text" if schema == "cpt" else "chosen" if row.rejected is not None else "response"
        yield RowPart(name if is_trained else "prompt", is_trained, decode_tokens(tokenizer, row.tokens[begin:end]))
        begin = end
    if row.rejected is not None:
        yield RowPart("rejected", True, decode_tokens(tokenizer, row.rejected))
