"""What a reader starts in a second terminal, as the pages have it: it serves, and ends when it is told to."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
import yaml
from sqlalchemy import create_engine
from torch.utils.tensorboard import SummaryWriter

from tests.docs.pages import page
from tests.docs.terminal import answer, served
from tests.e2e.tiny_run import TinyRun
from tests.manager.viewer_page import fill, rows


@pytest.mark.nightly
@pytest.mark.runs("docs/studio.md", "trinity studio")
@pytest.mark.runs("docs/viewer.md", "trinity view", "trinity debug")
@pytest.mark.runs("docs/workflows.md", "trinity debug --config run.yaml --module viewer")
def test_the_pages_in_a_browser_are_served(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(TinyRun(tmp_path).tree))
    (tmp_path / "plugins").mkdir()
    (tmp_path / "model").rename(tmp_path / "MODEL")
    (tmp_path / "model").symlink_to("MODEL")
    for name in ("DATABASE", "experiences.db", "out/tiny/run/buffer/experience.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine("sqlite://", creator=lambda file=tmp_path / name: sqlite3.connect(file))
        fill(engine, rows(4))
        engine.dispose()
    viewer = page("docs/viewer.md").lines("trinity ")
    assert page("docs/workflows.md").lines("trinity debug --config run.yaml --module viewer") == viewer[-1:]
    for line in [*page("docs/studio.md").lines("trinity studio"), *viewer]:
        with served(line, tmp_path, r"(?:viewer|studio): (http://127\.0\.0\.1:\d+/[\w-]{20,}/) ") as address:
            assert answer(f"{address}_stcore/health").text == "ok", line
            port = re.search(r"--port (\d+)", line)
            assert f":{port[1] if port else 8501 + (line in viewer)}/" in address


@pytest.mark.slow
@pytest.mark.timeout(900)  # each of them imports for long where there is other work
@pytest.mark.runs("docs/monitoring.md", "tensorboard ")
@pytest.mark.runs("docs/running.md", "tensorboard ")
def test_tensorboard_shows_the_runs_of_a_job(tmp_path: Path) -> None:
    for line in (*page("docs/monitoring.md").lines("tensorboard "), *page("docs/running.md").lines("tensorboard ")):
        with SummaryWriter(str(tmp_path / line.split()[-1] / "monitor" / "tensorboard" / "trainer")) as writer:
            writer.add_scalar("actor/x", 0.5, 1)
        with served(line, tmp_path, r"(http://localhost:\d+)/") as address:
            runs = answer(f"{address}/data/runs", is_whole=lambda response: bool(response.json()))
            assert runs.json() == ["monitor/tensorboard/trainer"]
