"""Failpoints act where they are armed: at their hit, in the process of their component."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trinity.common.constants import FAILPOINTS_ENV_VAR
from trinity.common.errors import ConfigError
from trinity.utils import failpoints
from trinity.utils.failpoints import failpoint


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.configure("")


def test_a_point_acts_at_its_hit_and_only_in_its_component(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAILPOINTS_ENV_VAR, "engine_1:sync.after_bucket=raise@2;train.before_step=raise")
    failpoints.enter("engine_0")
    failpoint("sync.after_bucket")
    failpoint("sync.after_bucket")
    with pytest.raises(RuntimeError, match="failpoint train.before_step"):
        failpoint("train.before_step")
    failpoints.enter("engine_1")
    failpoint("sync.after_bucket")
    with pytest.raises(RuntimeError, match="failpoint sync.after_bucket"):
        failpoint("sync.after_bucket")


def test_a_process_that_stops_goes_on_when_it_is_told() -> None:
    program = "from trinity.utils.failpoints import failpoint; failpoint('train.before_step'); print('went on')"
    environment = os.environ | {FAILPOINTS_ENV_VAR: "train.before_step=stop"}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == "went on\n"


@pytest.mark.parametrize(
    "text", ["nowhere=raise", "train.before_step=explode", "a:b:nowhere=raise", "train.before_step"]
)
def test_what_cannot_be_read_is_refused_whomever_it_is_for(text: str) -> None:
    with pytest.raises(ConfigError, match=r"E1010.*the form is \[component:\]name=action\[@hit\]"):
        failpoints.configure(text)
