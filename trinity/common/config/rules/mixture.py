"""Rules of mixing rollouts and demonstrations: strategy and buffers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.following import note_idle, set_from
from trinity.common.config.keys import ACTOR, AUXILIARY, KEYS, Key, args_of, last_part
from trinity.common.config.mixture import DERIVED_ARGUMENTS, num_expert_rows
from trinity.common.config.nearest import nearest
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import num_workers
from trinity.common.config.row_schemas import auxiliary_schemas
from trinity.common.config.rules.batches import SIZE, expert_ratio, mixes_experts, num_experts
from trinity.common.config.rules.databases import resolve_database
from trinity.common.config.rules.ranks import is_world_known
from trinity.common.config.rules.selectors import check_selector
from trinity.common.config.rules.tasksets import check_format, resolve_format

STRATEGY = KEYS.algorithm.sample_strategy
LOSS = KEYS.algorithm.policy_loss_fn
ARGS = args_of(STRATEGY)
_NAME = re.compile(r"[A-Za-z0-9_+-]{1,120}")


def check_sampling(resolution: Resolution) -> None:
    """Check strategy arguments, and that strategy, loss and algorithm fit."""
    _check_arguments(resolution)
    _check_parts(resolution)


def _check_arguments(resolution: Resolution) -> None:
    arguments = resolution.get(ARGS) or {}
    if mixes_experts(resolution):
        ratio: Any = arguments.get("expert_data_ratio")
        try:
            num_expert_rows(ratio, resolution.get(SIZE))
        except (TypeError, ValueError) as error:
            text = str(error) if isinstance(error, ValueError) else f"expert_data_ratio must be a number, got {ratio!r}"
            resolution.problem(
                "E1844",
                ARGS["expert_data_ratio"],
                f"`{ARGS}`: {text}",
                rule="0 <= ratio < 1, and at least one row of a batch is a rollout",
                involves=(SIZE, STRATEGY),
                suggestion="write `expert_data_ratio: 0.5`; to imitate only, use `algorithm_type: sft`",
            )


def _check_parts(resolution: Resolution) -> None:
    algorithm, strategy = resolution.config.algorithm.algorithm_type, resolution.get(STRATEGY)
    entry = resolution.catalogue.entry("sample_strategy", strategy)
    is_built_in = resolution.catalogue.is_built_in("sample_strategy", strategy)
    if resolution.trains_on_dataset and entry is not None and entry.of_rollouts:
        _misfit(
            resolution,
            STRATEGY,
            f"`{STRATEGY}: {strategy}` chooses among rollouts, and {algorithm} trains on a dataset",
            "remove it",
        )
        return
    for key, registry in ((LOSS, "policy_loss_fn"), (KEYS.algorithm.entropy_loss_fn, "entropy_loss_fn")):
        entry = resolution.catalogue.entry(registry, resolution.get(key))
        if entry is not None and "expert_mask" in entry.reads and is_built_in and not mixes_experts(resolution):
            _misfit(
                resolution,
                key,
                f"`{key}: {resolution.get(key)}` treats an expert's rows apart, and {STRATEGY} {strategy} has none",
                f"write `{last_part(STRATEGY)}: mix`",
            )
    if not mixes_experts(resolution):
        return
    loss = resolution.catalogue.entry("policy_loss_fn", resolution.get(LOSS))
    if not resolution.catalogue.is_built_in("policy_loss_fn", resolution.get(LOSS)):
        loss = None  # of a plugin only its author knows what it does with rows of an expert
    if loss is not None and "advantages" in loss.needs and "expert_mask" not in loss.needs:
        _misfit(
            resolution,
            STRATEGY,
            f"`{STRATEGY}: {strategy}` has rows of an expert, which have no advantage, and policy_loss_fn "
            f"{resolution.get(LOSS)} would learn nothing from them",
            "write `policy_loss_fn: mix`",
        )
    advantage = resolution.catalogue.entry("advantage_fn", resolution.config.algorithm.advantage_fn)
    if advantage is not None and "values" in advantage.reads:
        _misfit(
            resolution,
            KEYS.algorithm.advantage_fn,
            f"`algorithm.advantage_fn: {resolution.config.algorithm.advantage_fn}` needs a critic, which cannot learn "
            f"from rows of an expert: they have no reward ({STRATEGY} {strategy})",
            "write `advantage_fn: grpo`",
        )


def _misfit(resolution: Resolution, key: Key[object], message: str, suggestion: str) -> None:
    resolution.problem("E1842", key, message, involves=(STRATEGY, KEYS.algorithm.algorithm_type), suggestion=suggestion)


def resolve_mixed_loss(resolution: Resolution) -> None:
    """Fill the size arguments of mixed losses; warn about other ones."""
    loss = resolution.catalogue.entry("policy_loss_fn", resolution.get(LOSS))
    is_mixed = loss is not None and loss.args.keys() >= set(DERIVED_ARGUMENTS)
    if not is_mixed or resolution.mode not in ("both", "train") or not is_world_known(resolution):
        return
    size, num_expert, key = resolution.get(SIZE), num_experts(resolution), args_of(LOSS)
    arguments, micro = dict(resolution.get(key) or {}), ACTOR.ppo_micro_batch_size_per_gpu
    true: tuple[tuple[Any, object], ...] = (
        (resolution.get(ACTOR.use_dynamic_bsz), KEYS.trainer.use_dynamic_bsz),
        (resolution.get(ACTOR.ppo_mini_batch_size), SIZE),
        (resolution.get(micro), micro),
        (num_workers(resolution.config), "the number of trainer workers"),
        (size - num_expert, f"{SIZE} ({size}) less the {num_expert} expert rows"),
        (num_expert, f"expert_data_ratio of {SIZE} ({size}), rounded up"),
    )
    for name, (value, source) in zip(DERIVED_ARGUMENTS, true, strict=True):
        same = arguments[name] == value and isinstance(arguments[name], bool) == isinstance(value, bool)
        if resolution.is_given(key[name]) and not same:
            # The others scale veRL's micro-batches, whose size changes nothing here.
            says_batch = name in ("train_batch_size_expert", "train_batch_size_usual")
            resolution.problem(
                "E1841" if says_batch else "W1841",
                key[name],
                f"`{key[name]}` is {arguments[name]}, but it follows from {source}: {value}"
                + ("" if says_batch else ", which is used"),
                rule=f"{value}",
                involves=(SIZE, STRATEGY, ARGS, KEYS.algorithm.repeat_times, KEYS.trainer, KEYS.cluster),
                suggestion="remove it",
            )
        arguments[name] = value
    resolution.derive(key, arguments, f"sizes from {SIZE}, {STRATEGY}_args and section trainer")


def resolve_auxiliary_buffers(resolution: Resolution) -> None:
    """Fill the auxiliary buffers; check that the strategy's buffer exists."""
    buffers = resolution.get(AUXILIARY)
    mixes = mixes_experts(resolution) and not resolution.trains_on_dataset
    named = (resolution.get(ARGS) or {}).get("sft_dataset_name") if mixes else None
    read = named if expert_ratio(resolution) > 0 else None
    if read is not None and read not in buffers:
        _note_missing(resolution, str(read), buffers)
    is_plugin = resolution.get(STRATEGY) in resolution.catalogue.plugins.get("sample_strategy", ())
    for index, name in enumerate(buffers):
        if not _NAME.fullmatch(name):
            resolution.problem(
                "E1304",
                AUXILIARY,
                f"`{AUXILIARY}` has the name {name!r}",
                rule="1 to 120 letters, digits, '_', '-', '+'",
                suggestion="choose another name",
            )
        elif name == read or (is_plugin and not mixes):
            _resolve_auxiliary(resolution, name, index)
        elif resolution.is_own(AUXILIARY[name]):
            _note_unread(resolution, name, named=named, has_other=read in buffers)


def _note_missing(resolution: Resolution, read: str, buffers: Iterable[str]) -> None:
    near, name = nearest(read, buffers), ARGS["sft_dataset_name"]
    resolution.problem(
        "E1843",
        name if resolution.is_given(name) else AUXILIARY,
        f"`{STRATEGY}: {resolution.get(STRATEGY)}` reads the demonstrations of `{AUXILIARY[read]}`, which is missing; "
        f"there: {', '.join(buffers) or 'none'}",
        involves=(STRATEGY, ARGS),
        suggestion=f"did you mean `sft_dataset_name: {near}`?"
        if near
        else f"write `auxiliary_buffers: {{{read}: {{path: demonstrations.jsonl}}}}`",
    )


def _note_unread(resolution: Resolution, name: str, *, named: str | None, has_other: bool) -> None:
    """Warn about an unread dataset unless an error already names its use."""
    key, ratio = AUXILIARY[name], ARGS["expert_data_ratio"]
    if named is None:
        why, way_out = "nothing reads it", "remove it, or write `algorithm_type: mix`"
    elif named == name:
        why, way_out = f"`{ratio}` is 0", "remove it, or raise `expert_data_ratio`"
        if (resolution.get(ARGS) or {}).get("expert_data_ratio") != 0:
            return
    elif has_other:
        why, way_out = (
            f"`{STRATEGY}: {resolution.get(STRATEGY)}` reads `{named}`",
            f"remove it, or write `sft_dataset_name: {name}`",
        )
    else:
        return
    resolution.problem("W1902", key, f"`{key}` has no effect: {why}", suggestion=way_out)


def _resolve_auxiliary(resolution: Resolution, name: str, index: int) -> None:
    key = AUXILIARY[name]
    if not resolution.is_given(key.name):
        resolution.derive(key.name, name, "its key in auxiliary_buffers")
    if resolution.get(key.storage_type) is None:
        resolution.derive(key.storage_type, "file", "an auxiliary buffer is a dataset")
    kind = resolution.filled(key.storage_type)
    if not resolution.get(key.path):
        what = "a dataset" if kind == "file" else f"a database ({kind})"
        resolution.problem(
            "E1826",
            key.path,
            f"`{key.path}` is missing: an auxiliary buffer is {what}",
            suggestion="write the folder or file of the dataset"
            if kind == "file"
            else "write `path: sqlite:///experts.db`",
        )
    elif kind != "file":
        resolve_database(resolution, key.path)
    note_idle(resolution, key)
    _resolve_schema(resolution, key, kind)
    check_selector(resolution, key.data_selector)
    set_from(resolution, key.index, index, "place among the auxiliary buffers")
    set_from(resolution, key.batch_size, num_experts(resolution), "expert rows of a training batch")
    set_from(resolution, key.tokenizer_path, resolution.config.model.model_path, KEYS.model.model_path)


def _resolve_schema(resolution: Resolution, key: Key[ExperienceBufferConfig], kind: str) -> None:
    """Fill the kind of the rows, and check the named columns."""
    schemas = auxiliary_schemas(kind)
    written = resolution.get(key.schema_type) if resolution.is_given(key.schema_type) else None
    if written is not None and written not in schemas:
        resolution.problem(
            "E1816",
            key.schema_type,
            f"`{key.schema_type}` is {' or '.join(schemas)} with storage_type {kind}, got {written}",
            rule=" or ".join(schemas),
            involves=(key.storage_type,),
            suggestion=f"write `schema_type: {schemas[0]}`, or remove it",
        )
    columns = (key.format.messages_key, key.format.prompt_key, key.format.response_key)
    has_columns = any(map(resolution.is_given, columns))
    schema = "sft" if has_columns and kind == "sql" else schemas[0]
    schema = written if written in schemas else schema
    reason = "demonstrations are conversations to imitate" if schema == "sft" else "what a run has stored is imitated"
    resolution.derive(key.schema_type, schema, reason)
    if schema == "sft" and kind == "sql" and not has_columns:
        resolution.derive(columns[0], "message_list", "the column of a table of conversations")
        resolution.derive(key.format.prompt_type, "messages", "the column of a table of conversations")
    if schema == "sft":
        resolve_format(resolution, key.format)
    check_format(resolution, key.format, schema)
