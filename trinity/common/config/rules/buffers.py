"""Tasksets and experience buffers: storage, places, names, workflows and formats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.draft import Draft, path_of
from trinity.common.config.rules.components import check_name
from trinity.common.config.rules.formats import MULTI_TURN, check_format, check_multi_turn
from trinity.common.config.rules.lengths import tasksets
from trinity.common.constants import BENCH, TRAINER, Mode

TASKSET = "buffer.explorer_input.taskset"
EVALUATED = "buffer.explorer_input.eval_tasksets"
OUTPUT = "buffer.trainer_input.experience_buffer"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
_BACKUP_SUFFIXES = (".json", ".jsonl")


def resolve_tasksets(draft: Draft) -> None:
    """Fill what tasksets inherit, and check that the explorer has tasks."""
    explorer_input = draft.get("buffer.explorer_input")
    if explorer_input["taskset"] and explorer_input["tasksets"]:
        draft.problem(
            "E1806",
            "buffer.explorer_input.tasksets",
            "`buffer.explorer_input.tasksets` and taskset exclude each other",
            suggestion="keep one of them",
        )
    has_tasks = explorer_input["taskset"] or explorer_input["tasksets"]
    is_misfit = draft.trains_on_dataset  # E1807 says that the mode is train
    if draft.mode in ("both", "explore") and not has_tasks and not is_misfit:
        draft.problem(
            "E1809",
            TASKSET,
            f"mode {draft.mode} needs `{TASKSET}`",
            involves=("mode",),
            suggestion="write `buffer: {explorer_input: {taskset: {name: train, path: data.jsonl}}}`",
        )
    if draft.mode == "bench" and not explorer_input["eval_tasksets"]:
        draft.problem(
            "E1845",
            EVALUATED,
            f"mode bench needs `{EVALUATED}`",
            involves=("mode",),
            suggestion="write `buffer: {explorer_input: {eval_tasksets: [{name: test, path: test.jsonl}]}}`",
        )
    if not draft.explores:
        return
    for index, key in enumerate(tasksets(draft)):
        _resolve_taskset(draft, key, index)


def _resolve_taskset(draft: Draft, key: str, index: int) -> None:
    is_eval = "eval_tasksets" in key
    if not draft.is_given(f"{key}.name") and is_eval:
        draft.derive(f"{key}.name", f"eval_taskset_{path_of(key)[-1]}", "place in eval_tasksets")
    if not draft.get(f"{key}.path"):
        draft.problem("E1827", f"{key}.path", f"`{key}.path` is missing", suggestion="write where the tasks are")
    _resolve_repeats(draft, key, is_eval=is_eval)
    _resolve_workflow(draft, key, is_eval=is_eval)
    resolve_format(draft, f"{key}.format")
    check_multi_turn(draft, f"{key}.format")
    if draft.is_given(f"{key}.task_selector"):
        draft.problem(
            "W1301",
            f"{key}.task_selector",
            f"`{key}.task_selector` is deprecated since Trinity-RFT 0.6",
            suggestion="write `data_selector`",
        )
        draft.derive(f"{key}.data_selector", draft.get(f"{key}.task_selector"), "task_selector, its older name")
    selector = f"{key}.data_selector.selector_type"
    check_name(draft, selector, "selector", draft.get(selector))
    for name, value, reason in (
        ("index", index, "place among the tasksets"),
        ("is_eval", is_eval, "listed in eval_tasksets"),
        ("batch_size", draft.get("buffer.batch_size"), "buffer.batch_size"),
        ("total_epochs", 1 if is_eval else draft.get("buffer.total_epochs"), "buffer.total_epochs"),
        ("total_steps", None if is_eval else draft.get("buffer.total_steps"), "buffer.total_steps"),
        ("ray_namespace", draft.get("ray_namespace"), "ray_namespace"),
    ):
        set_from(draft, f"{key}.{name}", value, reason)


def _resolve_repeats(draft: Draft, key: str, *, is_eval: bool) -> None:
    if draft.get(f"{key}.repeat_times") is not None:
        return
    if is_eval:
        draft.derive(f"{key}.repeat_times", 1, "evaluation tasksets are run once")
    else:
        draft.derive(f"{key}.repeat_times", draft.get("algorithm.repeat_times") or 1, "algorithm.repeat_times")


def _resolve_workflow(draft: Draft, key: str, *, is_eval: bool) -> None:
    section = "buffer.explorer_input"
    sources = ["default_eval_workflow_type"] if is_eval else []
    sources.append("default_workflow_type")
    for source in sources:
        value = draft.get(f"{section}.{source}")
        if draft.get(f"{key}.default_workflow_type") is None and value is not None:
            draft.derive(f"{key}.default_workflow_type", value, f"{section}.{source}")
    reward = draft.get(f"{section}.default_reward_fn_type")
    if draft.get(f"{key}.default_reward_fn_type") is None and reward is not None:
        draft.derive(f"{key}.default_reward_fn_type", reward, f"{section}.default_reward_fn_type")
    workflow = draft.get(f"{key}.default_workflow_type")
    if workflow is None and not draft.get(f"{key}.format.workflow_key"):
        known = ", ".join(draft.catalogue.names("workflow"))
        draft.problem(
            "E1828",
            f"{key}.default_workflow_type",
            f"`{key}.default_workflow_type` is missing; known: {known}",
            involves=(section,),
            suggestion="write `default_workflow_type: math_workflow`",
        )
    check_name(draft, _home(draft, key, "default_workflow_type", sources), "workflow", workflow)
    check_name(
        draft,
        _home(draft, key, "default_reward_fn_type", ["default_reward_fn_type"]),
        "reward_fn",
        draft.get(f"{key}.default_reward_fn_type"),
    )


def _home(draft: Draft, key: str, name: str, sources: list[str]) -> str:
    """Return the key where a workflow or reward name was written: the taskset's own, or the shared one."""
    for place in (f"{key}.{name}", *(f"buffer.explorer_input.{source}" for source in sources)):
        if draft.is_given(place):
            return place
    return f"{key}.{name}"


def set_from(draft: Draft, key: str, value: Any, source: str) -> None:
    """Fill a key that follows from others; one that was written must be the same (E1816)."""
    written = draft.get(key)
    if draft.is_own(key) and written != value:
        draft.problem(
            "E1816",
            key,
            f"`{key}` is set from {source} ({value}), got {written}",
            rule=f"{value}",
            involves=("algorithm.algorithm_type", "mode"),
            suggestion="remove it" if " " in source else f"remove it, or write `{source}`",
        )
    draft.derive(key, value, source)


def resolve_format(draft: Draft, key: str) -> None:
    """Fill the form of the rows from the columns that are named; if that is open, the reader looks at the rows."""
    if draft.get(f"{key}.prompt_type") is not None:
        return
    has_messages = draft.is_given(f"{key}.messages_key") or draft.get(f"{key}.{MULTI_TURN}")
    has_text = draft.is_given(f"{key}.prompt_key") or draft.is_given(f"{key}.response_key")
    if has_messages and not has_text:
        draft.derive(f"{key}.prompt_type", "messages", "messages_key or several turns are given")
    elif has_text and not has_messages:
        draft.derive(f"{key}.prompt_type", "plaintext", "prompt_key or response_key is given")


def resolve_experience_buffer(draft: Draft) -> None:
    """Fill storage type and place of the experience buffer, and check that the mode can use it."""
    algorithm = draft.get("algorithm.algorithm_type")
    trains_on_data = draft.trains_on_dataset
    if draft.get(OUTPUT) is None:
        if draft.mode == "train" and trains_on_data:
            draft.problem(
                "E1809",
                OUTPUT,
                f"`{OUTPUT}` is missing: {algorithm} trains on a dataset",
                involves=("algorithm.algorithm_type",),
                suggestion="write `buffer: {trainer_input: {experience_buffer: {path: data.jsonl}}}`",
            )
            return
        draft.get("buffer.trainer_input")["experience_buffer"] = _default_buffer()
    if draft.get(f"{OUTPUT}.storage_type") is None:
        kind = "file" if trains_on_data else "queue"
        draft.derive(
            f"{OUTPUT}.storage_type",
            kind,
            f"{algorithm} trains on a dataset" if trains_on_data else "experiences come from an explorer",
        )
    _check_storage(draft, draft.get(f"{OUTPUT}.storage_type"), trains_on_data=trains_on_data)
    _resolve_place(draft, draft.get(f"{OUTPUT}.storage_type"))
    resolve_format(draft, f"{OUTPUT}.format")
    if trains_on_data:
        check_format(draft, f"{OUTPUT}.format", draft.schema)
    else:
        check_multi_turn(draft, f"{OUTPUT}.format")
    selector = f"{OUTPUT}.data_selector.selector_type"
    check_name(draft, selector, "selector", draft.get(selector))
    for name, value, reason in (
        ("schema_type", draft.schema, "algorithm_type"),
        ("tokenizer_path", draft.get("model.model_path"), "model.model_path"),
        ("total_epochs", draft.get("buffer.total_epochs"), "buffer.total_epochs"),
        ("total_steps", draft.get("trainer.total_steps"), "trainer.total_steps"),
        ("batch_size", draft.get("buffer.train_batch_size"), "buffer.train_batch_size"),
    ):
        set_from(draft, f"{OUTPUT}.{name}", value, reason)


def _default_buffer() -> dict[str, Any]:
    return ExperienceBufferConfig().model_dump(mode="python")


def _check_storage(draft: Draft, kind: str, *, trains_on_data: bool) -> None:
    key = f"{OUTPUT}.storage_type"
    involves = ("mode", "algorithm.algorithm_type")
    if kind == "file" and draft.mode == "both" and not trains_on_data:
        draft.problem(
            "E1811",
            key,
            f"`{key}: file` cannot feed a trainer while an explorer writes it",
            rule="queue or sql in mode both",
            involves=involves,
            suggestion="write `storage_type: queue`",
        )
    elif kind == "file" and draft.mode == "train" and not trains_on_data:
        draft.problem(
            "E1811",
            key,
            f"`{key}: file` is a dataset, and {draft.get('algorithm.algorithm_type')} trains on experiences",
            rule="queue or sql",
            involves=involves,
            suggestion="write `storage_type: queue`",
        )
    elif kind != "file" and trains_on_data:
        draft.problem(
            "E1900",
            key,
            f"`{key}: {kind}` for {draft.get('algorithm.algorithm_type')} is not available yet in this version",
            involves=involves,
            suggestion="write `storage_type: file`",
        )
    if kind == "file" and trains_on_data and not draft.get(f"{OUTPUT}.path"):
        draft.problem(
            "E1826",
            f"{OUTPUT}.path",
            f"`{OUTPUT}.path` is missing: a file buffer is a dataset",
            suggestion="write the folder or file of the dataset",
        )


def _resolve_place(draft: Draft, kind: str) -> None:
    """Make the path of a store an absolute database URL, and that of a file that is written an absolute path."""
    if kind == "file":
        if draft.mode == "explore":
            _resolve_output_file(draft)
        return
    path = draft.get(f"{OUTPUT}.path")
    own = f"sqlite:///{Path(draft.get('buffer.cache_dir')) / 'experience.db'}"
    if not path:
        draft.derive(f"{OUTPUT}.path", own, "the run's own store")
        return
    if "://" not in path and path.lower().endswith(_BACKUP_SUFFIXES):
        draft.derive(f"{OUTPUT}.backup_path", str(_absolute(draft, path)), "path is a JSON file: a backup of the queue")
        draft.derive(f"{OUTPUT}.path", own, "the run's own store; the written path is its backup")
        return
    url = absolute_url(path, draft.cwd)
    if not is_database(url):
        draft.problem(
            "E1829",
            f"{OUTPUT}.path",
            f"`{OUTPUT}.path` is no database that experiences can be stored in",
            rule="sqlite:///<file> or postgresql://user@host/database",
            suggestion="write `path: sqlite:///experience.db`",
        )
        return
    draft.derive(f"{OUTPUT}.path", url, "a relative database is relative to the working directory")


def _resolve_output_file(draft: Draft) -> None:
    """Fill the file that the explorer writes: as named, in the folder that is named, or in the job's own."""
    path = draft.get(f"{OUTPUT}.path")
    if path and "://" in path:
        draft.problem(
            "E1890",
            f"{OUTPUT}.path",
            f"`{OUTPUT}.path` is a database, and storage_type file writes JSON lines",
            rule="a file that ends in .jsonl, or a folder",
            involves=(f"{OUTPUT}.storage_type",),
            suggestion="write `storage_type: sql`",
        )
        return
    file = _absolute(draft, path or draft.get("buffer.cache_dir"))
    if file.suffix.lower() not in _BACKUP_SUFFIXES:
        file /= f"{draft.get(f'{OUTPUT}.name')}.jsonl"
    draft.derive(f"{OUTPUT}.backup_path", str(file), "what the explorer writes")


def absolute_url(path: str, cwd: Path) -> str:
    """Return a database URL whose SQLite file is absolute; other databases stay as they are."""
    if "://" not in path:
        return f"sqlite:///{os.path.normpath(cwd / Path(path).expanduser())}"
    scheme, _, rest = path.partition("://")
    if not scheme.startswith("sqlite") or rest in ("", "/", "/:memory:"):
        return path
    file, mark, query = rest[1:].partition("?")
    return f"{scheme}:///{os.path.normpath(cwd / file)}{mark}{query}"


def is_database(url: str) -> bool:
    """Return whether a URL names a database that experiences can be stored in: a file of SQLite, or PostgreSQL."""
    scheme, _, rest = url.partition("://")
    backend = scheme.partition("+")[0]
    file = rest[1:].partition("?")[0]
    return backend == "postgresql" or (backend == "sqlite" and file not in ("", ":memory:") and file[:5] != "file:")


def sqlite_file(url: str | None) -> str | None:
    """Return the file of a SQLite URL, or `None` for other databases."""
    if not url or not url.startswith("sqlite") or "://" not in url:
        return None
    return url.partition("://")[2][1:].partition("?")[0] or None


def _absolute(draft: Draft, path: str) -> Path:
    return Path(os.path.normpath(draft.cwd / Path(path).expanduser()))


def check_unique_names(draft: Draft) -> None:
    """Refuse one name for two tasksets, buffers or components."""
    keys = ["explorer.name", "trainer.name"] if draft.explores else ["trainer.name"]
    if draft.explores:
        keys += [f"{key}.name" for key in tasksets(draft)]
    if draft.get(OUTPUT):
        keys.append(f"{OUTPUT}.name")
    keys += [f"{AUXILIARY}.{name}.name" for name in draft.get(AUXILIARY) if _shares_names(draft, f"{AUXILIARY}.{name}")]
    seen: dict[str, str] = {}
    _check_place(draft)
    for key in keys:
        name = draft.get(key)
        if name not in seen:
            seen[name] = key
            continue
        origin = draft.origin(seen[name])
        place = f" ({origin.describe()})" if origin else ""
        draft.problem(
            "E1305",
            key,
            f"`{key}` is {name}, and so is `{seen[name]}`{place}",
            value=name,
            rule="unique",
            suggestion="give each its own name",
        )


def _shares_names(draft: Draft, key: str) -> bool:
    """Return whether an auxiliary buffer needs a name of its own: in another database it is that of the rows there.

    One that nothing reads, such as in a stage of another algorithm, was not resolved, and needs none.
    """
    if not draft.is_given(f"{key}.name") or not draft.get(f"{key}.tokenizer_path"):
        return False
    is_elsewhere = not draft.get(OUTPUT) or draft.get(f"{key}.path") != draft.get(f"{OUTPUT}.path")
    return draft.get(f"{key}.storage_type") == "file" or not is_elsewhere


def _check_place(draft: Draft) -> None:
    """Refuse an explorer apart whose name is the place of another component in the folder of the job."""
    name = draft.get("explorer.name")
    if draft.get("mode") == Mode.EXPLORE and name in {TRAINER, BENCH} - {draft.get("trainer.name")}:
        draft.problem(
            "E1305",
            "explorer.name",
            f"`explorer.name` is {name}, which is the place of another component in the folder of the job",
            value=name,
            rule=f"neither {TRAINER} nor {BENCH}",
            suggestion="give the explorer its own name",
        )
