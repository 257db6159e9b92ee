"""The examples of the page on mode serve run against a service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, page
from tests.explorer.proxy.in_process import KEY, Service

PAGE = page("docs/serve.md")


@pytest.mark.runs("docs/serve.md", "python")
@pytest.mark.slow
def test_the_examples_call_reward_and_commit(tmp_path: Path) -> None:
    service = Service(tmp_path / "run")
    environment = os.environ | {
        "SERVE_URL": service.address, "TRINITY_API_KEY": KEY, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    try:
        plain, trinity = PAGE.code("python")
        said = [
            subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
            ).stdout
            for code in (plain, trinity)
        ]
        assert said[0].startswith("chatcmpl-")
        assert "'experiences': 2" in said[1] and "'waiting': 1" in said[1]
        assert service.client().get_metrics()["explore_step"] == 1
    finally:
        service.close()
