"""All that the documentation tells a reader to do with a finished run works on one, as it is written."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
import torch
import yaml
from typer.testing import CliRunner

from tests.common.schema.test_sql_schema import FAQ_SCRIPT
from tests.docs.pages import Page, english_pages, page
from tests.e2e.test_faq import LOAD
from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

JOB = "checkpoints/my-project/my-run"
READING = ("show", "export", "replay", "rescore")
CHECKING = ("validate", "estimate", "config", "explain", "algorithms", "doctor", "data")
WRITTEN = ("run.parquet", "step4.parquet", "rescored.db", "sft.jsonl", "dpo.jsonl")
REWARD = """
from trinity.common.rewards import REWARD_FUNCTIONS


@REWARD_FUNCTIONS.register_module("digits")
def digits(response, truth, tolerance=0.0):
    share = sum(map(str.isdigit, response)) / max(len(response), 1)
    coin = sum(map(ord, response)) % 2  # so that responses to one task differ, whatever the arithmetic samples
    return {"digits": 0.1 * share + 0.8 * coin + tolerance, "long": len(response) / 50 if int(truth) % 4 == 1 else 0.0}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyRun]:
    """A finished run under the names of the pages, with its experiences where a run keeps them; stay beside it."""
    made = TinyRun(tmp_path_factory.mktemp("reading"))
    (made.folder / "model").rename(made.folder / "my-model")
    (made.folder / "models").mkdir()
    (made.folder / "my-model").rename(made.folder / "models" / "my-model")
    (made.folder / "plugins").mkdir()
    (made.folder / "plugins" / "digits.py").write_text(REWARD)
    made.write_rows([{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(3)], "test.jsonl")
    taskset = made.tree["buffer"]["explorer_input"]["taskset"]
    del made.tree["checkpoint_root_dir"]
    made.change(
        project="my-project",
        name="my-run",
        plugin_dirs=["plugins"],
        model={"model_path": "models/my-model", "max_model_len": 96, "max_response_tokens": 72},
        algorithm__repeat_times=4,
        algorithm__optimizer={"lr": 0.01},
        algorithm__policy_loss_fn_args={"clip_range": 0.02},
        buffer__total_steps=5,
        buffer__explorer_input__default_reward_fn_type="digits",
        buffer__explorer_input__eval_tasksets=[taskset | {"name": "test", "path": "test.jsonl"}],
        explorer__eval_interval=5,
        trainer__save_interval=2,
        trainer__trainer_config={"actor_rollout_ref": {"actor": {"ppo_epochs": 2}}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.folder)
        Path("run.yaml").write_text(yaml.safe_dump(made.tree))
        options = RunOptions()
        assert run_plan(plan_run(Path("run.yaml"), options), options).error is None
        yield made


def commands(part: Page) -> list[list[str]]:
    """Return the commands of a page that read a run."""
    lines = [shlex.split(line, comments=True) for line in part.lines("")]
    return [words for words in lines if words[:1] == ["duckdb"] or words[:1] == ["trinity"] and words[1] in READING]


PAGES = [page("docs/reuse.md"), page("docs/running.md")]


@pytest.mark.runs("docs/reuse.md", "bash", "sql")
@pytest.mark.runs("docs/running.md", "trinity show", "trinity export", "duckdb")
@pytest.mark.parametrize("part", PAGES, ids=lambda part: part.name)
def test_the_commands_and_the_queries_of_a_page_read_a_finished_run(run: TinyRun, part: Page) -> None:
    for name in WRITTEN:
        Path(name).unlink(missing_ok=True)
    for words in commands(part):
        if words[0] == "duckdb":
            assert len(duckdb.sql(words[2]).fetchall()) == 5, words
            continue
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [JOB if word == "JOB" else word for word in words[1:]])
        assert done.exit_code == 0 and done.output.strip(), (words, done.output)
    with closing(sqlite3.connect(f"{JOB}/buffer/experience.db")) as database:
        for query in part.code("sql"):
            rows = duckdb.sql(query).fetchall() if ".parquet" in query else database.execute(query).fetchall()
            assert rows, query


@pytest.mark.runs(
    "docs/configuration.md",
    "trinity validate",
    "trinity explain",
    "trinity doctor",
    "trinity estimate",
    "trinity config",
    "trinity algorithms",
)
@pytest.mark.runs("docs/estimate.md", "trinity estimate")
@pytest.mark.runs("docs/running.md", "trinity explain")
@pytest.mark.runs("docs/workflows.md", "trinity data preview")
@pytest.mark.parametrize("name", ["configuration", "estimate", "running", "workflows"])
def test_the_commands_of_a_page_that_check_a_file_or_explain_it(run: TinyRun, name: str) -> None:
    """They end with 0 for a file without mistakes; the run is also the earlier one of the page on the memory."""
    Path("checkpoints/p").mkdir(exist_ok=True)
    Path("checkpoints/p/first").unlink(missing_ok=True)
    Path("checkpoints/p/first").symlink_to(Path(JOB).resolve(), target_is_directory=True)
    lines = [shlex.split(line, comments=True) for line in page(f"docs/{name}.md").lines("trinity ")]
    for words in lines:
        if words[1] in CHECKING and "second_thought.yaml" not in words and "quickstart/quickstart.yaml" not in words:
            done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words[1:])
            assert done.exit_code == 0 and done.output.strip(), (words, done.output)
    assert name != "configuration" or Path("trinity.schema.json").exists()


def test_the_scripts_and_queries_of_the_pages_are_known() -> None:
    assert len(page("docs/reuse.md").code("sql")) >= 10
    scripts = [code for part in english_pages() for code in part.code("python")]
    assert sum("create_engine" in code or "load_fsdp_state_dict" in code for code in scripts) == 2, "run them below"


@pytest.mark.runs("docs/running.md", "from sqlalchemy")
def test_the_script_that_reads_experiences_runs(run: TinyRun, capsys: pytest.CaptureFixture[str]) -> None:
    exec(page("docs/running.md").code("python")[0], {})  # noqa: S102 - as a user does
    assert capsys.readouterr().out.count("row.state='trained'") == 4


def test_where_payloads_are_gone_the_script_reads_the_others_and_show_says_it(
    run: TinyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `buffer.keep_payloads` is reached."""
    with closing(sqlite3.connect(f"{JOB}/buffer/experience.db")) as database:
        database.execute("vacuum into 'pruned.db'")
    with closing(sqlite3.connect("pruned.db")) as database, database:
        database.execute("delete from experience_blob where id in (select id from experience where trained_step < 5)")
        database.execute("update experience set payload_bytes = null where trained_step < 5")
    script = page("docs/running.md").code("python")[0]
    exec(script.replace(f"{JOB}/buffer/experience.db", "pruned.db"), {})  # noqa: S102
    assert capsys.readouterr().out.count("row.state='trained'") == 4
    for step, number in (("4", 8), ("5", 0)):
        words = ["show", JOB, "--step", step, "--url", "sqlite:///pruned.db"]
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
        assert done.exit_code == 0 and "8 samples" in done.output, done.output
        assert done.output.count("payload none any more (buffer.keep_payloads)") == number


@pytest.mark.runs("docs/running.md", "from transformers")
def test_the_script_that_loads_a_checkpoint_runs(run: TinyRun) -> None:
    given: dict[str, object] = {}
    exec(page("docs/running.md").code("python")[1], given)  # noqa: S102
    model, start = given["model"], given["AutoModelForCausalLM"].from_pretrained("models/my-model")  # type: ignore[attr-defined]
    trained, before = model.state_dict(), start.state_dict()  # type: ignore[attr-defined]
    assert trained.keys() == before.keys()
    assert any(not torch.equal(trained[name], before[name]) for name in before)


def test_the_scripts_of_the_published_questions_run(run: TinyRun, capsys: pytest.CaptureFixture[str]) -> None:
    """`create_engine(buffer.trainer_input.experience_buffer.path)`, and a checkpoint outside of the framework."""
    saved = yaml.safe_load(Path(JOB, "config.yaml").read_text())
    exec(FAQ_SCRIPT.format(url=saved["buffer"]["trainer_input"]["experience_buffer"]["path"]), {})  # noqa: S102
    assert capsys.readouterr().out.count("exp.prompt_text=") == 4
    names = {name: saved[name] for name in ("checkpoint_root_dir", "project", "name")}
    exec(LOAD.replace("global_step_2", "global_step_4"), names | {"model_path": "models/my-model"})  # noqa: S102
    assert capsys.readouterr().out.endswith("moved True\n")


def test_the_files_that_the_pages_name_hold_what_they_say(run: TinyRun) -> None:
    (file,) = Path(JOB, "eval", "test").glob("*_step_5.jsonl")
    answers = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(answers) == 3
    for answer in answers:
        assert {"prompt", "response", "truth", "reward", "metrics", "temperature", "model_version"} <= answer.keys()
        assert answer["temperature"] == 1.0 and answer["metrics"].keys() >= {"digits", "long"}
    text = Path(JOB, "metrics.jsonl").read_text()
    assert len(re.findall(r'"actor/grad_norm"', text)) == 5
