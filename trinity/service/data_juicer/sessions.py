"""Lists of Data-Juicer operators, and what they make of rows.

Part of the server: it runs in the environment that has `py-data-juicer`, without this package.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import importlib.util
import json
import random
import secrets
import time
from typing import Any

import datasets
import multiprocess
import numpy
from data_juicer.core.data import NestedDataset
from data_juicer.ops import base_op, load_ops
from data_juicer.ops.base_op import Deduplicator, Filter
from data_juicer.utils import model_utils
from data_juicer.utils.constant import Fields
from data_juicer.utils.lazy_loader import LazyLoader
from policy import Refused, refusal
from signatures import problems_of

ROW = "__trinity_row__"
OWN = "__dj__"  # how the columns begin that Data-Juicer adds for itself, such as hashes
MAX_SESSIONS = 64
MAX_TOLD = 300
ROWS_A_PROCESS = 8


class Calls:
    """Watches the calls of models over HTTP in all processes of an operator.

    They are counted: Data-Juicer continues with an empty answer where one fails, which would be a score of 0. Those to
    a model of the run get a seed that follows from what is asked, so that an answer does not depend on which other rows
    are asked about, in which order, and by how many processes.

    Attributes:
        seed: of the session; None: nothing is seeded.
        seeded: addresses of the models whose calls are.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self.seeded: frozenset[str] = frozenset()
        self.made = multiprocess.Value("q", 0)
        self.failed = multiprocess.Value("q", 0)
        self.told = multiprocess.Array("c", MAX_TOLD + 1)

    def reset(self) -> None:
        """Begin at 0."""
        self.made.value = self.failed.value = 0
        self.told.value = b""

    def watch(self) -> None:
        """Count every call from now on, also in processes that are forked later."""
        original = model_utils.ChatAPIModel.__call__

        def called(model: Any, messages: Any, **kwargs: Any) -> Any:
            answer = original(model, messages, **self._seeds(model, messages) | kwargs)
            with self.made.get_lock():
                self.made.value += 1
            if model.last_response is None:
                with self.failed.get_lock():
                    self.failed.value += 1
            return answer

        def noted(error: Any, *args: Any, **kwargs: Any) -> None:
            self.told.value = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:MAX_TOLD]

        model_utils.ChatAPIModel.__call__ = called
        model_utils.logger.exception = noted

    def _seeds(self, model: Any, messages: Any) -> dict[str, int]:
        """Return the seed of a call, as an argument."""
        address = str(model._client.base_url).rstrip("/")
        if self.seed is None or address not in self.seeded:
            return {}
        # An operator hands over the same list again where it could not read the answer.
        asked, number = getattr(model, "trinity_asked", (None, 0))
        number = number + 1 if asked is messages else 0
        model.trinity_asked = messages, number
        text = json.dumps([self.seed, model.model, messages, number], default=str)
        return {"seed": int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1}


class Sessions:
    """The open lists of operators.

    Args:
        allowed: operators that run though they are refused otherwise.
    """

    def __init__(self, *, allowed: list[str]) -> None:
        self.allowed = frozenset(allowed)
        self.open: dict[str, dict[str, Any]] = {}
        self.calls = Calls()
        self.calls.watch()
        datasets.disable_progress_bars()
        LazyLoader._install_package = classmethod(_not_installed)
        if importlib.util.find_spec("torch") is None:
            base_op.free_models = lambda *_: None  # it empties a cache of CUDA after every operator

    def routes(self) -> dict[str, Any]:
        """Return what each path does with a body."""
        return {
            "/create": self.create,
            "/process_experience": self.process,
            "/process_task": self.process,
            "/close": self.close,
        }

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Open a list of operators, after looking at all of them."""
        operators = body.get("operators")
        if not isinstance(operators, list) or not operators:
            raise Refused(422, "`operators` must be a list of {name: arguments}", kind="operators")
        for entry in operators:
            self._check(entry, body.get("text_key"))
        problems = problems_of(operators)
        if problems:
            raise Refused(422, "; ".join(each["message"] for each in problems), kind=problems[0]["kind"])
        try:
            load_ops(copy.deepcopy(operators))
        except Exception as error:  # noqa: BLE001 - a constructor says what is wrong with its arguments
            raise Refused(422, f"{type(error).__name__}: {error}", kind="arguments") from None
        if any(_asks(args) for entry in operators for args in entry.values()):
            with contextlib.suppress(ImportError):  # the operator says so when it asks
                importlib.import_module("openai.types.chat")  # once here, and not in every process that is forked
        if len(self.open) >= MAX_SESSIONS:
            self.open.pop(next(iter(self.open)))
        session = secrets.token_hex(8)
        processes, seeded = max(1, int(body.get("np") or 1)), frozenset(map(str, body.get("seeded") or ()))
        self.open[session] = {"operators": operators, "np": processes, "seed": body.get("seed"), "seeded": seeded}
        return {"session_id": session}

    def close(self, body: dict[str, Any]) -> dict[str, Any]:
        """Forget a list of operators."""
        return {"closed": self.open.pop(str(body.get("session_id")), None) is not None}

    def process(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what is left and new of the rows, and what operators did."""
        session = self.open.get(str(body.get("session_id")))
        rows = body.get("rows")
        if session is None:
            raise Refused(404, "there is no such session: it was closed, or the server is another one", kind="session")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Refused(422, "`rows` must be a list of objects", kind="rows")
        data, left_out = _dataset(rows)
        before = data
        report = []
        self.calls.seed, self.calls.seeded = session["seed"], session["seeded"]
        for number, operator in enumerate(load_ops(self._prepared(session, rows))):
            if len(data) == 0:
                break
            if session["seed"] is not None:
                random.seed(session["seed"] + number)
                numpy.random.seed(session["seed"] + number)
            data, told = self._run(operator, data)
            report.append(told)
        return {"rows": _changes(before, data), "operators": report, "left_out": left_out}

    def _check(self, entry: Any, text_key: Any) -> None:
        if not isinstance(entry, dict) or len(entry) != 1:
            raise Refused(422, f"an operator is one {{name: arguments}}, got {str(entry)[:200]}", kind="operators")
        ((name, args),) = entry.items()
        entry[name] = args = ({"text_key": text_key} if text_key else {}) | (args or {})
        why = refusal(name, args, allowed=self.allowed)
        if why:
            raise Refused(403, why, kind="refused")

    def _prepared(self, session: dict[str, Any], rows: list[Any]) -> list[Any]:
        """Return the operators with as many processes as have something to do."""
        most = max(1, min(session["np"], -(-len(rows) // ROWS_A_PROCESS)))
        prepared = copy.deepcopy(session["operators"])
        for entry in prepared:
            for name, args in entry.items():
                processes = min(session["np"], len(rows)) if _asks(args) else most
                entry[name] = {"num_proc": max(1, processes), "auto_op_parallelism": False} | args
        return prepared

    def _run(self, operator: Any, data: Any) -> tuple[Any, dict[str, Any]]:
        """Run one operator; return its rows and what it did."""
        started, name, came = time.monotonic(), operator._name, len(data)
        self.calls.reset()
        unread = 0
        try:
            if isinstance(operator, Filter):
                data = operator.run(data, reduce=False)
                unread = _num_unread(data)
                self._check_calls(name, came)
                keep = operator.process
                data = data.filter(keep, num_proc=operator.runtime_np(), batch_size=operator.batch_size)
            elif isinstance(operator, Deduplicator):
                data = operator.run(data, reduce=True)
            else:
                data = operator.run(data)
        except Refused:
            raise
        except Exception as error:
            columns = [column for column in data.column_names if column != ROW]
            message = f"{name} failed on {came} rows: {type(error).__name__}: {error}"
            if operator.text_key not in columns:
                message += f"; there is no column {operator.text_key!r} among {', '.join(columns)}: set its text_key"
            raise Refused(422, message, kind="operator") from error
        self._check_calls(name, came)
        told = {"name": name, "rows_in": came, "rows_out": len(data), "seconds": round(time.monotonic() - started, 3)}
        asked = {"calls": self.calls.made.value, "failed_calls": self.calls.failed.value, "unread": unread}
        return data, told | (asked if asked["calls"] else {})

    def _check_calls(self, name: str, came: int) -> None:
        made, failed = self.calls.made.value, self.calls.failed.value
        if made and made == failed:
            why = self.calls.told.value.decode("utf-8", "replace")
            message = f"the model of {name} answered none of {made} calls about {came} rows; the last error: {why}"
            raise Refused(502, message, kind="model")


def _asks(args: dict[str, Any]) -> bool:
    """Return whether an operator asks a model over HTTP."""
    return "api_or_hf_model" in args or "api_model" in args


def _not_installed(cls: Any, package_spec: Any, pip_args: Any = None) -> None:
    """Refuse to install what an operator lacks: that is its owner's."""
    raise ImportError(f"the operator needs the package {package_spec}; install it in the environment of Data-Juicer")


def _dataset(rows: list[dict[str, Any]]) -> tuple[Any, list[str]]:
    """Return the rows as a dataset, and the columns that have no one type."""
    columns = dict.fromkeys(name for row in rows for name in row)
    values: dict[str, list[Any]] = {ROW: list(range(len(rows)))}
    left_out = []
    for name in columns:
        column = [row.get(name) for row in rows]
        try:
            datasets.Dataset.from_dict({name: column})
        except Exception:  # noqa: BLE001 - Arrow has many errors for values of several types
            left_out.append(name)
        else:
            values[name] = column
    return NestedDataset(datasets.Dataset.from_dict(values)), left_out


def _num_unread(data: Any) -> int:
    """Return for how many rows no answer of a model could be read.

    Data-Juicer scores them 0; the record beside the score is empty.
    """
    return sum(bool(_unread_scores(stats)) for stats in data[Fields.stats]) if Fields.stats in data.column_names else 0


def _unread_scores(stats: dict[str, Any]) -> list[str]:
    """Return the scores of a row that no answer gave."""
    records = (name for name, value in stats.items() if name.endswith("_record") and value == "")
    return [name.removesuffix("record") + "score" for name in records]


def _changes(before: Any, after: Any) -> list[dict[str, Any]]:
    """Return number, statistics and changed columns of each row left."""
    found = []
    came = before.to_list()
    for row in after.to_list():
        number = row.pop(ROW)
        told = (row.pop(Fields.meta, None) or {}) | (row.pop(Fields.stats, None) or {})
        stats = {name: value for name, value in told.items() if value is not None}
        for name in _unread_scores(stats):
            stats.pop(name, None)
        old = came[number]
        values = {name: value for name, value in row.items() if not name.startswith(OWN)}
        changed = {name: value for name, value in values.items() if name not in old or old[name] != value}
        found.append({"row": number, "stats": stats, "values": changed})
    return found
