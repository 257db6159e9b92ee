"""An engine that fails while it serves: who hears of it, and how the run ends."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from tests.explorer.proxy.in_process import Service
from trinity.common.errors import EnginesLostError, ExitCode

BODY = {"model": "model", "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 2}


def health(service: Service) -> httpx.Response:
    return httpx.get(f"{service.address}/health", trust_env=False)


def test_one_engine_that_fails_is_noticed_and_ends_the_run_without_a_loss(tmp_path: Path) -> None:
    service = Service(tmp_path / "run", service_status_check_interval=0.1, engine_recovery_timeout=3.0)
    try:
        assert health(service).status_code == 200
        client = service.client("kept")
        client.feedback(1.0, [service.ask(client).id])

        def fail() -> None:
            raise RuntimeError("device lost")

        service.side.service._engine._loaded[1].batch.step = fail
        assert service.post("/v1/chat/completions", BODY).json()["error"]["code"] == "E5601"
        end = time.monotonic() + 20
        while health(service).status_code == 200 and time.monotonic() < end:
            time.sleep(0.02)
        said = health(service)
        assert said.status_code == 503 and "explorer.min_running_model_num is 1" in said.json()["status"]
        refused = service.post("/v1/chat/completions", BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "E5637")
        found = client.get_metrics()
        assert found["engines_serving"] == 0 and "engine_recovery_timeout" in found["status"]
        assert client.commit()["experiences"] == 1, "what was rewarded is stored all the same"
        with pytest.raises(EnginesLostError, match="explorer.engine_recovery_timeout") as lost:
            service.running.result(60)
        assert lost.value.code == "E5638" and lost.value.exit_code == ExitCode.RUNTIME
    finally:
        service.close()
