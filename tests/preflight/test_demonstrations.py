"""What `trinity validate` says of the demonstrations of a mixed run that lie in a database."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.common.config.conftest import MINIMAL
from trinity.cli.validate import validate

app = typer.Typer()
app.command("validate")(validate)
app.callback()(lambda: None)
EXPERTS = "  trainer_input: {auxiliary_buffers: {sft_dataset: {storage_type: sql, path: experts.db}}}\n"
MIXED = f"{MINIMAL}{EXPERTS}algorithm: {{algorithm_type: mix}}\n"
KEY = "buffer.trainer_input.auxiliary_buffers.sft_dataset.path"


def problems(file: Path) -> list[tuple[str, str]]:
    """Return code and message of what is said of the path of the demonstrations."""
    result = CliRunner().invoke(app, ["validate", "-c", str(file), "--json"])
    return [(p["code"], p["message"]) for p in json.loads(result.output)["problems"] if p["key"] == KEY]


@pytest.mark.parametrize("kind", ["sql", "queue"])
def test_the_driver_of_their_database_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for name in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, name, None)
    place = MIXED.replace("experts.db", "'postgresql://me:canary@host/d'").replace(
        "storage_type: sql", f"storage_type: {kind}"
    )
    (tmp_path / "run.yaml").write_text(place)
    ((code, message),) = problems(tmp_path / "run.yaml")
    assert code == "E3301" and "needs the package psycopg, which is not installed" in message
    assert "canary" not in message


def test_demonstrations_in_a_database_are_looked_at_unless_a_stage_before_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(MIXED)
    ((code, message),) = problems(file)
    assert code == "E4001" and f"there is no database {tmp_path / 'experts.db'}" in message
    assert not (tmp_path / "experts.db").exists(), "looking makes none"
    with sqlite3.connect(tmp_path / "experts.db") as connection:
        connection.execute("CREATE TABLE notes (id INTEGER)")
    ((code, message),) = problems(file)
    assert code == "E4061" and "it has: notes" in message
    stored = "{trainer_input: {experience_buffer: {name: sft_dataset, storage_type: sql, path: experts.db}}}"
    expert = f"{{stage_name: expert, mode: explore, algorithm: {{algorithm_type: grpo}}, buffer: {stored}}}"
    file.write_text(f"{MIXED}stages:\n- {expert}\n- {{stage_name: mixed}}\n")
    assert problems(file) == []
