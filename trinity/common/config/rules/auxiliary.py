"""Auxiliary buffers: the demonstrations that a sample strategy reads beside the experience buffer."""

from __future__ import annotations

import re
from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.nearest import nearest
from trinity.common.config.rules.algorithm import check_name
from trinity.common.config.rules.buffers import AUXILIARY, absolute_url, is_database, resolve_format, set_from
from trinity.common.config.rules.formats import check_format
from trinity.common.config.rules.mixture import STRATEGY, expert_ratio, is_built_in, num_experts

_NAME = re.compile(r"[A-Za-z0-9_+-]{1,120}")
_READ_KEY = f"{STRATEGY}_args.sft_dataset_name"
_DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
_READ_WITH = {
    "split": ("file",),
    "subset_name": ("file",),
    "data_selector": ("file", "sql"),
    "max_read_timeout": ("queue",),
    "capacity": (),  # of a queue it is that of the run that fills it
}
# What the rows of a storage may be; the first is what they are where nothing is written.
SCHEMAS: dict[str, tuple[str, ...]] = {"file": ("sft",), "sql": ("experience", "sft"), "queue": ("experience",)}


def resolve_auxiliary_buffers(draft: Draft) -> None:
    """Fill the auxiliary buffers, and check that the one that the strategy reads is there."""
    buffers: dict[str, Any] = draft.get(AUXILIARY)
    mixes = is_built_in(draft, "mix") and not draft.trains_on_dataset
    named = (draft.get(f"{STRATEGY}_args") or {}).get("sft_dataset_name") if mixes else None
    read = named if expert_ratio(draft) > 0 else None
    if read is not None and read not in buffers:
        _note_missing(draft, str(read), buffers)
    is_plugin = draft.get(STRATEGY) in draft.catalogue.plugins.get("sample_strategy", ())
    for index, name in enumerate(buffers):
        if not _NAME.fullmatch(name):
            draft.problem(
                "E1304",
                AUXILIARY,
                f"`{AUXILIARY}` has the name {name!r}",
                rule="1 to 120 letters, digits, '_', '-', '+'",
                suggestion="choose another name",
            )
        elif name == read or is_plugin:
            _resolve_auxiliary(draft, name, index)
        elif draft.is_own(f"{AUXILIARY}.{name}"):
            _note_unread(draft, name, named=named, has_other=read in buffers)


def _note_missing(draft: Draft, read: str, buffers: dict[str, Any]) -> None:
    near = nearest(read, buffers)
    draft.problem(
        "E1843",
        _READ_KEY if draft.is_given(_READ_KEY) else AUXILIARY,
        f"`{STRATEGY}: mix` reads the demonstrations of `{AUXILIARY}.{read}`, which is missing; there: "
        f"{', '.join(buffers) or 'none'}",
        involves=(STRATEGY, f"{STRATEGY}_args"),
        suggestion=f"did you mean `sft_dataset_name: {near}`?"
        if near
        else f"write `auxiliary_buffers: {{{read}: {{path: demonstrations.jsonl}}}}`",
    )


def _note_unread(draft: Draft, name: str, *, named: str | None, has_other: bool) -> None:
    """Warn about a dataset that nothing reads, unless an error says already what it was meant for."""
    key, ratio = f"{AUXILIARY}.{name}", f"{STRATEGY}_args.expert_data_ratio"
    if named is None:
        why, way_out = "nothing reads it", "remove it, or write `algorithm_type: mix`"
    elif named == name:
        why, way_out = f"`{ratio}` is 0", "remove it, or raise `expert_data_ratio`"
        if (draft.get(f"{STRATEGY}_args") or {}).get("expert_data_ratio") != 0:
            return
    elif has_other:
        why, way_out = f"`{STRATEGY}: mix` reads `{named}`", f"remove it, or write `sft_dataset_name: {name}`"
    else:
        return
    draft.problem("W1902", key, f"`{key}` has no effect: {why}", suggestion=way_out)


def _resolve_auxiliary(draft: Draft, name: str, index: int) -> None:
    key = f"{AUXILIARY}.{name}"
    if not draft.is_given(f"{key}.name"):
        draft.derive(f"{key}.name", name, "its key in auxiliary_buffers")
    if draft.get(f"{key}.storage_type") is None:
        draft.derive(f"{key}.storage_type", "file", "an auxiliary buffer is a dataset")
    kind = draft.get(f"{key}.storage_type")
    if not draft.get(f"{key}.path"):
        what = "a dataset" if kind == "file" else f"a database ({kind})"
        draft.problem(
            "E1826",
            f"{key}.path",
            f"`{key}.path` is missing: an auxiliary buffer is {what}",
            suggestion="write the folder or file of the dataset"
            if kind == "file"
            else "write `path: sqlite:///experts.db`",
        )
    elif kind != "file":
        _resolve_database(draft, key)
    _note_idle(draft, key, kind)
    _resolve_schema(draft, key, kind)
    selector = f"{key}.data_selector.selector_type"
    check_name(draft, selector, "selector", draft.get(selector))
    for part, value, source in (
        ("index", index, "place among the auxiliary buffers"),
        ("batch_size", num_experts(draft), "expert rows of a training batch"),
        ("tokenizer_path", draft.get("model.model_path"), "model.model_path"),
    ):
        set_from(draft, f"{key}.{part}", value, source)


def _note_idle(draft: Draft, key: str, kind: str) -> None:
    """Warn about keys of other storages."""
    for name, storages in _READ_WITH.items():
        if kind not in storages and draft.is_own(f"{key}.{name}"):
            draft.problem(
                "W1902",
                f"{key}.{name}",
                f"`{key}.{name}` has no effect with storage_type {kind}",
                rule=f"storage_type {' or '.join(storages)}" if storages else "the run that fills a queue has it",
                suggestion="remove it",
            )


def _resolve_database(draft: Draft, key: str) -> None:
    """Make the path of a buffer in a database an absolute URL."""
    path = str(draft.get(f"{key}.path"))
    url = absolute_url(path, draft.cwd)
    if is_database(url) and not path.lower().endswith(_DATA_SUFFIXES):
        draft.derive(f"{key}.path", url, "a relative database is relative to the working directory")
        return
    draft.problem(
        "E1829",
        f"{key}.path",
        f"`{key}.path` is no database",
        rule="sqlite:///<file> or postgresql://user@host/database",
        suggestion="write `path: sqlite:///experts.db`, or `storage_type: file` for data files",
    )


def _resolve_schema(draft: Draft, key: str, kind: str) -> None:
    """Fill what the rows are, and check the columns that are named."""
    schemas = SCHEMAS[kind]
    written = draft.get(f"{key}.schema_type") if draft.is_given(f"{key}.schema_type") else None
    if written is not None and written not in schemas:
        draft.problem(
            "E1816",
            f"{key}.schema_type",
            f"`{key}.schema_type` is {' or '.join(schemas)} with storage_type {kind}, got {written}",
            rule=" or ".join(schemas),
            involves=(f"{key}.storage_type",),
            suggestion=f"write `schema_type: {schemas[0]}`, or remove it",
        )
    columns = [f"{key}.format.{name}" for name in ("messages_key", "prompt_key", "response_key")]
    has_columns = any(map(draft.is_given, columns))
    schema = "sft" if has_columns and kind == "sql" else schemas[0]
    schema = written if written in schemas else schema
    reason = "demonstrations are conversations to imitate" if schema == "sft" else "what a run has stored is imitated"
    draft.derive(f"{key}.schema_type", schema, reason)
    if schema == "sft" and kind == "sql" and not has_columns:
        draft.derive(columns[0], "message_list", "the column of a table of conversations")
        draft.derive(f"{key}.format.prompt_type", "messages", "the column of a table of conversations")
    if schema == "sft":
        resolve_format(draft, f"{key}.format")
    check_format(draft, f"{key}.format", schema)
