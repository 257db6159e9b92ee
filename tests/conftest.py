"""What stands before torch is loaded: the settings of a run, and the check of argument types and tensor shapes.

A run in this process sets threads and the code path of the math library, which reads it once, at its first product.
Here they stand from the start, so that no test depends on those before it. Processes that tests start inherit them.

The check is for the mathematics and the trainer. Runs that tests start as processes of their own are not checked, so
that exactness and speed are those of a user. Nor is anything where beartype is missing: `make gpu` runs with the
packages that are there.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import checked_calls
from tests.loaded_plugins import forget_plugins
from trinity.launch.process import prepare_process
from trinity.utils.environment import environment
from trinity.utils.log import ROOT

if TYPE_CHECKING:
    from tests.postgresql import Server
    from tests.verl_checkpoints import Written

CHECKED = ["trinity.algorithm", "trinity.trainer"]
# An integer is accepted where a number is asked for, as static type checkers do.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

if find_spec("beartype") is not None:
    checked_calls.install(CHECKED, CHECKER)

if find_spec("hypothesis") is not None:  # likewise
    from hypothesis import HealthCheck, settings

    # A busy machine keeps no time, neither for an example nor for making one.
    settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy machine")

_environment_at_first: dict[str, dict[str, str]] = {}  # when the first file begins: collecting it has set some

os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_process("", deterministic=True)
# Under `nohup`, and in the background of a shell, they are ignored, and processes of tests inherit that: a run respects
# it, and does not end with them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """Refuse a process in which a plugin has computed before these settings stood."""
    if "torch" in sys.modules:
        from trinity.utils.arithmetic import mkl_cbwr

        if mkl_cbwr() == "OFF":
            raise pytest.UsageError("a product was computed before tests/conftest.py: set MKL_CBWR=AUTO before pytest")
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the collector the modules and the tests, which all stay.

    It took a fifth of the time of importing them, and a seventh of that of fast tests.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give every test, and the fixtures that it is the first to ask for, the same random numbers in any order.

    Calls are checked in it again.
    """
    import numpy
    import torch

    checked_calls.begin_test()

    # Not Python's own: Ray draws names and ports with it, which two processes of tests must not have in common.
    numpy.random.seed(0)
    torch.manual_seed(0)


def environment_as_at_first() -> None:
    """Take back what a thread of an earlier file has changed, with a warning."""
    now = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    first = _environment_at_first.setdefault("variables", now)
    changed = sorted(name for name in now.keys() | first.keys() if now.get(name) != first.get(name))
    if changed:
        warnings.warn(f"an earlier file has changed {', '.join(changed)} in the environment", stacklevel=2)
    for name in changed:
        if name in first:
            os.environ[name] = first[name]
        else:
            del os.environ[name]


@pytest.fixture(autouse=True, scope="module")
def _file_by_itself() -> Iterator[None]:
    """Begin and leave every file without plugins, whose names would be taken, and with the environment that there was.

    Fixtures of a file start runs and clusters in this process, and these set variables that processes inherit. Their
    threads may do so after the file.
    """
    forget_plugins()
    environment_as_at_first()
    with environment({}):
        yield
    forget_plugins()


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Leave the process as it was: a run in it sets threads, determinism, collector, log and environment."""
    import torch

    collector = gc.get_threshold()
    threads, dtype, precision = torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision()
    root = logging.getLogger(ROOT)
    handlers, level = list(root.handlers), root.level
    # Also after a run in a fixture of a whole file, or `caplog` would hold each message twice: pytest listens at a
    # logger that does not propagate, and at the root.
    root.propagate = True
    with environment({}):
        yield
    gc.set_threshold(*collector)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    root.handlers[:] = handlers
    root.setLevel(level)
    root.propagate = True


@pytest.fixture(scope="session")
def postgresql() -> Server:
    """A PostgreSQL server for the tests of this process; whoever ends it starts it again."""
    from tests.postgresql import shared

    return shared()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind that a store can have."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/experience.db"
    return str(request.getfixturevalue("postgresql").database())


@pytest.fixture(scope="session")
def verl(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return checkpoints as veRL writes them, made once by four processes."""
    from tests.verl_checkpoints import written

    return written(tmp_path_factory.mktemp("verl"))
