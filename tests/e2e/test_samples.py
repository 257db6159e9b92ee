"""What a user reads of a finished run: `trinity show`, the documented script, and the files of evaluations."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path

import duckdb
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from tests.common.schema.test_sql_schema import FAQ_SCRIPT
from tests.e2e.short_run import ShortRun
from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app
from trinity.common.schema.sql_schema import ExperienceModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(finished: ShortRun) -> Path:
    """The folder of the stage that explores, of a run as `trinity quickstart` makes it."""
    (database,) = finished.folder.rglob("experience.db")
    return database.parents[1]


def shown(*words: object, status: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["show", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def titles(output: str) -> list[str]:
    return [line.strip("─ ") for line in output.splitlines() if line.startswith("─") and "task" in line]


def rewards(output: str) -> list[float]:
    return [float(title.partition("reward ")[2].split(",")[0]) for title in titles(output)]


def test_every_payload_of_a_default_run_is_there_and_the_documented_script_reads_it(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{job}/buffer/experience.db"
    with Session(create_engine(url)) as session:
        rows = session.scalars(select(ExperienceModel)).all()
        assert {row.state for row in rows} == {"trained"}
        assert [row.to_experience().eid.uid for row in rows] == [row.uid for row in rows]
    exec(FAQ_SCRIPT.format(url=url), {})  # noqa: S102 - as a user does
    assert capsys.readouterr().out.count("exp.prompt_text=") == 4


def test_samples_of_a_step_are_those_that_it_trained(job: Path) -> None:
    with sqlite3.connect(job / "buffer" / "experience.db") as database:
        used = database.execute("select count(*) from step_exp where step = 2").fetchone()[0]
        prompts = {row[0] for row in database.execute("select prompt_text from experience where trained_step = 2")}
    output = shown(job, "--step", 2, "-n", 1000)
    assert len(titles(output)) == used > 8 and f"{used} samples" in output
    assert all("trained in step 2" in title and "advantage" in title for title in titles(output))
    assert all(prompt.splitlines()[-1].strip() in output for prompt in prompts)
    assert len(titles(shown(job))) == 8
    assert re.search(r"^rollouts of experience_buffer: (\d+) issued = \1 trained \+ 0 waiting$", output, re.MULTILINE)
    one = titles(output)[0].removeprefix("task ").split(",")[0]
    assert {title.split(",")[0] for title in titles(shown(job, "--task", one, "-n", 99))} == {f"task {one}"}


def test_the_worst_come_first_and_the_best(job: Path) -> None:
    with sqlite3.connect(job / "buffer" / "experience.db") as database:
        known = sorted(row[0] for row in database.execute("select reward from experience"))
    assert rewards(shown(job, "--worst", 5)) == pytest.approx(known[:5], rel=1e-4)
    assert rewards(shown(job, "--best", 5)) == pytest.approx(known[::-1][:5], rel=1e-4)


def test_answers_of_an_evaluation_are_shown_and_agree_with_its_metrics(job: Path) -> None:
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    names = [path.name for path in (job / "eval").iterdir()]
    assert names and lines
    for name in names:
        key = f"eval/{name}/reward/mean@1"
        measured = {line["step"]: line[key] for line in lines if key in line}
        for step, mean in measured.items():
            (file,) = (job / "eval" / name).glob(f"*_step_{step}.jsonl")
            found = [json.loads(line) for line in file.read_text().splitlines()]
            assert sum(line["reward"] for line in found) / len(found) == pytest.approx(mean)
            assert {line["temperature"] for line in found} == {0.0} and len(found) == 16
            output = shown(job, "--eval", name, "--step", step, "-n", 99)
            assert len(titles(output)) == 16 and output.count("truth") == 16
        assert f"step {max(measured)}" in shown(job, "--eval", name, "--worst", 3)
        assert len(titles(shown(job, "--eval", name, "--task", found[3]["task"]))) == 1


def test_an_answer_of_an_evaluation_may_hold_characters_that_end_lines_elsewhere(job: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(job, tmp_path / "copied"))
    file = next((copied / "eval").glob("*/*_step_*.jsonl"))
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    lines[0]["response"] = "one\u2028two\x85three"
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    step = re.search(r"_step_(\d+)", file.name)
    assert step is not None
    output = shown(copied, "--eval", file.parent.name, "--step", step[1], "-n", 99)
    assert len(titles(output)) == len(lines) and "three" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--step", 10_000), r"E4070.*has no rollouts of step 10000"),
        (("--eval", "nothing"), "E4070.*no rollouts of an evaluation taskset 'nothing'; it has those of: "),
        (("--worst", 1, "--best", 2), "exclude each other"),
    ],
)
def test_what_is_not_there_is_said(job: Path, words: tuple[object, ...], message: str) -> None:
    output = " ".join(shown(job, *words, status=2 if "exclude" in message else 4).replace("│", " ").split())
    assert re.search(message, output), output


def test_a_folder_that_is_no_run_and_a_hidden_password_are_said(job: Path, tmp_path: Path) -> None:
    assert "E1922" in shown(tmp_path, status=2)
    shutil.copy(job / "config.yaml", tmp_path)
    text = (tmp_path / "config.yaml").read_text()
    path = f"sqlite:///{job}/buffer/experience.db"
    assert path in text
    (tmp_path / "config.yaml").write_text(text.replace(path, "postgresql://me:***@host/d"))
    assert "hidden" in shown(tmp_path, status=2)
    assert titles(shown(tmp_path, "--url", path)) == titles(shown(job))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_experiences_of_a_run_are_exported(job: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"out.{form}"
    done = CliRunner().invoke(app, ["export", "experience", str(job), "--to", form, "-o", str(file)])
    assert done.exit_code == 0 and "experiences" in done.output and "without tokens" not in done.output, done.output
    with sqlite3.connect(job / "buffer" / "experience.db") as database:
        trained = dict(database.execute("select trained_step, avg(reward) from experience group by 1"))
    reader = "read_parquet" if form == "parquet" else "read_json"
    query = f"select trained_step, avg(reward), min(len(tokens)) from {reader}('{file}') group by 1"
    found = {step: mean for step, mean, least in duckdb.sql(query).fetchall() if least > 2}
    assert found == pytest.approx(trained)
    again = CliRunner().invoke(app, ["export", "experience", str(job), "--to", form, "-o", str(file)])
    assert again.exit_code == 3 and "exists already" in again.output
    assert CliRunner().invoke(app, ["export", "experience"]).exit_code == 2


def test_a_preview_shows_trained_samples_on_the_terminal_and_in_the_trackers(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.change(trainer__enable_preview=True)
    ended = run.finish()
    assert ended.status == 0, ended.output
    lines = [json.loads(line) for line in (run.job / "monitor" / "samples.jsonl").read_text().splitlines()]
    assert [(line["table"], line["step"]) for line in lines] == [
        ("rollout_examples", step) for step in (1, 1, 1, 2, 2, 2)
    ]
    with sqlite3.connect(run.job / "buffer" / "experience.db") as database:
        stored = "select uid, prompt_text, response_text, reward, trained_step from experience"
        known = {uid: rest for uid, *rest in database.execute(stored)}
    events = EventAccumulator(str(run.job / "monitor" / "tensorboard" / "trainer"))
    events.Reload()
    tables = events.Tensors("rollout_examples/text_summary")
    assert [table.step for table in tables] == [1, 2]
    for line in lines:
        row, (prompt, response, reward, step) = line["row"], known[line["row"]["id"]]
        assert (row["prompt"], row["response"], row["reward"], line["step"]) == (prompt, response, reward, step)
        assert isinstance(row["advantage"], float) and row["model_version"] == step - 1
        assert f"sample of step {step}: id {row['id']}, reward {reward}" in ended.output
        table = tables[step - 1].tensor_proto.string_val[0].decode().splitlines()
        assert table[:2] == ["|id|prompt|response|reward|advantage|model_version|", "|---|---|---|---|---|---|"]
        assert len(table) == 5 and all(each.count("|") == 7 for each in table)
