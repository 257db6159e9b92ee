"""Data-Juicer filters and scores tasks before a run reads them.

The result is a folder with `output.jsonl`, the taskset of the explorer, and `_report.json`. It is computed once: the
report has a hash of all that the result depends on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity.buffer.dataset import Table, load_table
from trinity.buffer.pipelines.task_priority import PRIORITY_WEIGHTS, dimension_scores, ordered, priorities
from trinity.buffer.quarantine import MAX_BAD_ROW_RATIO, admit
from trinity.common.config.buffer import TasksetConfig
from trinity.common.config.sections import DataJuicerServiceConfig, TaskPipelineConfig
from trinity.common.constants import TASKS_FILE, TASKS_REPORT
from trinity.common.errors import DataError, DeadlineError, EnvironmentProblem
from trinity.service.data_juicer.client import DataJuicerClient, ProcessedRows, found_version
from trinity.service.data_juicer.models import identities, with_models
from trinity.service.data_juicer.recipe import Recipe, read_recipe
from trinity.utils.locks import FileLock, holder_of
from trinity.utils.log import get_logger

logger = get_logger("buffer")

KEY = "data_processor.task_pipeline"
CACHE = ".tasks"
VERSION = 2
_WAIT_S = 0.5


@dataclass(frozen=True)
class TaskPipeline:
    """Turns raw tasks into the taskset of a run.

    Attributes:
        config: settings of the pipeline.
        taskset: taskset of the explorer; its `path` is `output.jsonl` in the folder that is written.
        service: settings of the Data-Juicer server.
        cache: folder of earlier results, by hash.
        seed: of the run.
        log: file for the output of a server that is started here.
        timeout_s: longest wait for another process that computes the same result, in seconds.
        max_bad_row_ratio: more rows that cannot be read are an error; in [0, 1].
    """

    config: TaskPipelineConfig
    taskset: TasksetConfig
    service: DataJuicerServiceConfig
    cache: Path
    seed: int = 0
    log: Path | None = None
    timeout_s: float = 1800.0
    max_bad_row_ratio: float = MAX_BAD_ROW_RATIO

    def run(self, models: Mapping[str | int, Any] | None = None) -> dict[str, Any]:
        """Compute the tasks, unless they exist already; return the report.

        Args:
            models: auxiliary models of the run that operators may call, by name.

        Raises:
            DataError: an input cannot be read, or too many of its rows; a column cannot be written (E4083), the folder
                was not written by a pipeline (E4080), no task is left (E4081), or another process computes the same for
                longer than `timeout_s` (E4082).
            ConfigError: an operator is not known, or runs only if `allowed_operators` names it.
            ServiceError: the server failed.
        """
        folder = Path(str(self.taskset.path)).expanduser().absolute().parent
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = self._locked(folder.with_name(f".{folder.name}.lock"))
        try:
            return self._made(folder, models or {})
        finally:
            lock.release()

    def _locked(self, file: Path) -> FileLock:
        end = time.monotonic() + self.timeout_s
        while True:
            try:
                return FileLock(file)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise DataError(
                        f"{holder_of(file)} has been making the tasks of {file.parent} for {self.timeout_s:g} s",
                        code="E4082",
                    ) from error
            time.sleep(_WAIT_S)

    def _made(self, folder: Path, models: Mapping[str | int, Any]) -> dict[str, Any]:
        if folder.exists() and not (folder / TASKS_REPORT).is_file():
            raise DataError(
                f"{folder} exists and was not written by a task pipeline; give buffer.explorer_input.taskset.path, or "
                f"{KEY}.output.path, a folder that does not exist",
                code="E4080",
            )
        texts = self.config.target_fields
        recipe = read_recipe(
            key=KEY,
            config_path=self.config.config_path,
            operators=self.config.operators,
            num_process=self.config.num_process,
            text_key=texts[0] if texts else self.taskset.format.prompt_key,
        )
        tables = [
            load_table(path, split=self.taskset.split, subset_name=self.taskset.subset_name) for path in self._inputs
        ]
        bad = [row for table in tables for row in table.bad]
        num_rows = sum(map(len, tables)) + len(bad)
        admit(bad, num_rows=num_rows, max_bad_row_ratio=self.max_bad_row_ratio, name=self.taskset.name)
        self._refuse_bytes(tables)
        digest, version = self._digest(recipe, tables, models), self._version()
        report = _report(folder)
        if report is not None and report["digest"] == digest and version in ("", report["data_juicer"]):
            if not version:
                logger.warning("task pipeline: nobody says which version of Data-Juicer would make %s now", folder)
            logger.info("task pipeline: %s is up to date (%d tasks)", folder, report["tasks_out"])
            return report
        # If the version is unknown, a result of any version is used: there is no server to compute it again.
        known = [self.cache / f"{digest}-{version}"] if version else sorted(self.cache.glob(f"{digest}-*"))
        kept = next((each for each in known if _report(each) is not None), None)
        report = None if kept is None else _report(kept)
        if kept is None or report is None:
            report, kept = self._compute(recipe, tables, digest, models)
        else:
            logger.info("task pipeline: the same was made before: %s", kept)
        _put(kept, folder)
        return report

    def _refuse_bytes(self, tables: Sequence[Table]) -> None:
        """Refuse columns that JSON lines, which are written, cannot hold."""
        wanted = self.config.target_fields
        for row in (table.row(number) for table in tables for number in range(len(table))):
            names = [name for name in row.values if name in wanted or not wanted]
            lost = [name for name in names if not _is_plain(row.values[name])]
            if lost:
                raise DataError(
                    f"`{KEY}` writes JSON lines, which cannot hold {', '.join(lost)} of {row.file}:{row.line}; name "
                    f"other columns in {KEY}.target_fields",
                    code="E4083",
                )

    def _version(self) -> str:
        """Return the version of Data-Juicer; empty if it cannot be found out."""
        try:
            return found_version(self.service)
        except (EnvironmentProblem, DeadlineError) as error:
            logger.debug("the version of Data-Juicer is not known: %s", error)
            return ""

    @property
    def _inputs(self) -> tuple[str, ...]:
        return self.config.inputs

    def _digest(self, recipe: Recipe, tables: list[Table], models: Mapping[str | int, Any]) -> str:
        """Return a hash of all that the output depends on, except the version."""
        config = self.config
        settings = [
            VERSION,
            identities(recipe, models),
            recipe.operators,
            recipe.text_key,
            config.target_fields,
            self._weights,
            config.top_k,
        ]
        settings += [config.order_method, config.folding_layers, self.seed]
        digest = hashlib.sha256(json.dumps(settings, default=str, sort_keys=True).encode())
        for row in _rows(tables):
            digest.update(json.dumps(row, default=repr, sort_keys=True).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:32]

    @property
    def _weights(self) -> dict[str, float]:
        given = self.config.priority_weights
        return dict(PRIORITY_WEIGHTS if given is None else given)

    def _compute(
        self, recipe: Recipe, tables: list[Table], digest: str, models: Mapping[str | int, Any]
    ) -> tuple[dict[str, Any], Path]:
        """Compute the tasks; return the report, and their folder in the cache."""
        rows = list(_rows(tables))
        client = DataJuicerClient(self.service, log=self.log)
        try:
            asked = with_models(recipe, models, timeout_s=self.service.timeout)
            client.initialize(asked, pipeline="task", seed=self.seed)
            done = client.process_task([_plain(row) for row in rows])
        finally:
            client.close()
        tasks = self._tasks(rows, done)
        report = {
            "digest": digest,
            "data_juicer": client.version,
            "tasks_in": len(rows),
            "bad_rows": sum(len(table.bad) for table in tables),
            "tasks_out": len(tasks),
            "order": self.config.order_method,
            "operators": done.operators,
            "columns_left_out": done.left_out,
        }
        _log(report)
        if not tasks:
            raise DataError(f"`{KEY}` leaves none of {len(rows)} tasks: {_dropped(done)}", code="E4081")
        kept = self.cache / f"{digest}-{client.version}"
        if _report(kept) is None:
            _write(kept, tasks, report)
        return report, kept

    def _tasks(self, rows: list[dict[str, Any]], done: ProcessedRows) -> list[dict[str, Any]]:
        """Return the tasks that are written, in their order."""
        stats = [each.stats for each in done.rows]
        priority = priorities(stats, self._weights)
        scores = dimension_scores(stats)
        fields = self.config.target_fields
        found = []
        order = ordered(
            priority,
            len(stats),
            method=self.config.order_method,
            top_k=self.config.top_k,
            layers=self.config.folding_layers,
            seed=self.seed,
        )
        for number in order:
            each = done.rows[number]
            task = rows[each.row] | each.values
            task = {name: task.get(name) for name in fields} if fields else task
            task |= {f"{name}_score": score for name, score in scores[number].items()}
            task |= {} if priority is None else {"priority": priority[number]}
            found.append(task | ({"__dj__stats__": each.stats} if each.stats else {}))
        return found


def _rows(tables: list[Table]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for number in range(len(table)):
            yield dict(table.row(number).values)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that JSON can hold; operators see no others."""
    return {name: value for name, value in row.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError):
        return False
    return True


def _report(folder: Path) -> dict[str, Any] | None:
    try:
        report = json.loads((folder / TASKS_REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_whole = isinstance(report, dict) and "digest" in report and (folder / TASKS_FILE).is_file()
    return report if is_whole else None


def _write(folder: Path, tasks: list[dict[str, Any]], report: Mapping[str, Any]) -> None:
    """Write a folder under another name, and rename it when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        with (aside / TASKS_FILE).open("x", encoding="utf-8") as stream:
            for task in tasks:
                stream.write(json.dumps(task, ensure_ascii=True) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        (aside / TASKS_REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        _rename(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _put(kept: Path, folder: Path) -> None:
    """Copy a folder of the cache to where the run reads it."""
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        for name in (TASKS_FILE, TASKS_REPORT):
            shutil.copyfile(kept / name, aside / name)
        _rename(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename(aside: Path, folder: Path) -> None:
    """Rename a folder; replace an older result of a pipeline."""
    aside.chmod(0o755)
    if (folder / TASKS_REPORT).is_file():
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
        os.rename(folder, old / folder.name)
        os.rename(aside, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(aside, folder)


def _dropped(done: ProcessedRows) -> str:
    return ", ".join(f"{each['name']} drops {each['rows_in'] - each['rows_out']}" for each in done.operators)


def _log(report: Mapping[str, Any]) -> None:
    logger.info(
        "task pipeline: %d of %d tasks are left (Data-Juicer %s)",
        report["tasks_out"],
        report["tasks_in"],
        report["data_juicer"],
    )
    for each in report["operators"]:
        dropped = each["rows_in"] - each["rows_out"]
        logger.info("task pipeline: %s drops %d of %d in %g s", each["name"], dropped, each["rows_in"], each["seconds"])
        if each.get("failed_calls") or each.get("unread"):
            logger.warning(
                "task pipeline: %s: %d of %d calls of its model failed, and %d answers could not be read",
                each["name"],
                each["failed_calls"],
                each["calls"],
                each["unread"],
            )
    if report["columns_left_out"]:
        names = ", ".join(report["columns_left_out"])
        logger.warning("task pipeline: no operator sees the columns %s: their values have several types", names)
