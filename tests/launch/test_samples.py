"""What `trinity show` prints of a run's database: truths, and rows whose payload is damaged."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tests.buffer.store.oracle import BUFFER, PRODUCER, experience
from trinity.buffer.store import ExperienceStore
from trinity.cli.app import app
from trinity.launch.samples import latest_rollouts


def test_a_damaged_payload_is_said_and_hides_no_other_rollout(tmp_path: Path) -> None:
    (tmp_path / "buffer").mkdir()
    (tmp_path / "config.yaml").write_text("project: p\nname: n\n", encoding="utf-8")
    url = f"sqlite:///{tmp_path}/buffer/experience.db"
    with ExperienceStore(url) as store:
        rows = [experience(1, task) for task in range(3)]
        for number, row in enumerate(rows):
            row.info["truth"] = f"the truth of {number}"
        store.append(BUFFER, rows, run="p/n", producer=PRODUCER, explore_step=1)
        with store._database.write() as connection:
            connection.exec_driver_sql("UPDATE experience_blob SET experience_bytes = X'00' WHERE id = 2")
    result = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "3 samples" in result.output and "cannot read the experience payload: it is truncated" in result.output
    assert [f"the truth of {number}" in result.output for number in range(3)] == [True, False, True]
    assert len(latest_rollouts(url, "p/n")) == 3
