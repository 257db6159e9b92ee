"""Operators and arguments, checked without a server.

The Data-Juicer that would run them looks at them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import EnvironmentProblem
from trinity.service.data_juicer.process import installed_at, python_of
from trinity.utils.caches import cache_dir
from trinity.utils.disk import write_atomically

if TYPE_CHECKING:
    from trinity.common.config.sections import DataJuicerServiceConfig

SIGNATURES = Path(__file__).with_name("signatures.py")
LIMIT_S = 180.0


@dataclass(frozen=True)
class OperatorProblem:
    """What is wrong with an operator.

    Attributes:
        index: its number among those that were looked at.
        kind: `unknown_operator`, `joins`, `arguments` or `operators`.
        message: in one line.
    """

    index: int
    kind: str
    message: str


def operator_problems(
    operators: Sequence[tuple[str, dict[str, Any]]], config: DataJuicerServiceConfig
) -> list[OperatorProblem]:
    """Return what is wrong with operators and their arguments.

    A process with the Python of Data-Juicer says it. Its answer is kept in the folder of caches of the user, for the
    same operators and the same installation.

    Raises:
        EnvironmentProblem: there is no Data-Juicer (E3440), or it cannot be asked (E3445).
    """
    package = installed_at(config)
    asked = json.dumps([{name: args} for name, args in operators], sort_keys=True, default=str)
    file = _kept(asked, python_of(config), package)
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [OperatorProblem(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
    found = _told(asked, python_of(config))
    with contextlib.suppress(OSError):  # it is asked again then
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found))
    return [OperatorProblem(**each) for each in found]


def _told(asked: str, python: str) -> list[dict[str, Any]]:
    words = [python, "-I", str(SIGNATURES)]
    try:
        done = subprocess.run(words, input=asked, timeout=LIMIT_S, capture_output=True, text=True, check=True)
        found: list[dict[str, Any]] = json.loads(done.stdout)["problems"]
    except subprocess.TimeoutExpired as error:
        raise _unasked(f"it did not answer within {LIMIT_S:g} s") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise _unasked(f"it ended with status {error.returncode}: {last[:300]}") from error
    except (OSError, ValueError, KeyError) as error:
        raise _unasked(f"{type(error).__name__}: {error}") from error
    return found


def _unasked(why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"Data-Juicer cannot be asked about its operators: {why}", code="E3445")


def _kept(asked: str, python: str, package: Path) -> Path:
    """Return the file of an answer."""
    folder = cache_dir("data_juicer")
    installed = [str(package), (package / "__init__.py").stat().st_mtime_ns, SIGNATURES.read_text(encoding="utf-8")]
    return folder / f"{hashlib.sha256(json.dumps([asked, python, installed]).encode()).hexdigest()[:32]}.json"
