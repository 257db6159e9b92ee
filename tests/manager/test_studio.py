"""The studio's pages, run by Streamlit without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from streamlit.testing.v1 import AppTest

from tests.e2e.tiny_run import TinyRun
from tests.manager.studio_page import checked, expert, labels, opened, said, yaml_of
from trinity.common.config import ConfigErrors
from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.common.experience import EID, Experience
from trinity.common.schema.sql_schema import Base, ExperienceModel
from trinity.explain.editor_schema import SCHEMA_LINE
from trinity.launch.estimation import estimate
from trinity.launch.job import LOCK, LOCKS, RECORD, SAVED_CONFIG
from trinity.manager import serving
from trinity.manager.fields import fields_by_key
from trinity.manager.studio.compare import settings_that_differ, short_names
from trinity.manager.studio.server import serve_studio
from trinity.manager.studio.settings import StudioSettings
from trinity.utils.locks import FileLock
from trinity.utils.memory import shown_bytes

EVALUATED = [
    {"name": "e", "path": "train.jsonl", "format": {"prompt_key": "question", "response_key": "answer"}},
]
HOSTILE = "<b>x</b> :red[y] [z](http://evil.test) `w`"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyRun:
    """A folder with model, data and YAML, in which the page is opened."""
    made = TinyRun(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(made.tree))
    monkeypatch.chdir(tmp_path)
    return made


def job(folder: Path, *, lr: float, rewards: list[float], status: str = "done") -> Path:
    """Write the folder of a run that has ended."""
    (folder / LOCKS).mkdir(parents=True)
    (folder / LOCK).touch()
    (folder / RECORD).write_text(json.dumps({"status": status, "training_step": len(rewards)}))
    (folder / SAVED_CONFIG).write_text(
        yaml.safe_dump({"name": folder.name, "algorithm": {"optimizer": {"lr": lr}}, "monitor": {"cache_dir": "x"}})
    )
    lines = [
        {"actor": "explorer", "seq": number, "step": number + 1, "rollout/reward/mean": reward, "time/explore_step": 2}
        for number, reward in enumerate(rewards)
    ]
    lines[-1]["rollout/retry_count"] = 3
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_experiences(file: Path, *, run: str) -> None:
    """Write the database of a run with six experiences."""
    engine = create_engine(f"sqlite:///{file}")
    Base.metadata.create_all(engine, tables=[Base.metadata.tables[name] for name in ("experience", "experience_blob")])
    with Session(engine) as session:
        for number in range(6):
            experience = Experience(
                eid=EID(1, 0, number, 0), tokens=[5, 6, 7, 8, 9], prompt_length=2, advantages=[0.25, 0.25, 0.0],
                reward=number / 10, prompt_text="question", response_text=f"answer {number}", info={"model_version": 3},
            )  # fmt: skip
            session.add(ExperienceModel.from_experience(experience, run=run, buffer="b"))
        session.commit()
    engine.dispose()


def charts(test: AppTest) -> int:
    return len(test.get("arrow_vega_lite_chart")) + len(test.get("vega_lite_chart"))


def test_a_beginner_writes_a_run_sees_its_yaml_and_saves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path)
    monkeypatch.chdir(tmp_path)
    test = opened(monkeypatch)
    assert [each.value for each in test.subheader][:2] == ["Essential", "Important"]
    for key, value in (("project", "tiny"), ("name", "run"), ("model_path", "model"), ("checkpoint_root_dir", "out")):
        checked(test.text_input(key=f"field:{key}").set_value(value).run())
    test.text_input(key="field:path").set_value("train.jsonl")
    test.text_input(key="field:prompt_key").set_value("question")
    test.text_input(key="field:response_key").set_value("answer")
    test.selectbox(key="field:default_workflow_type").select("simple_workflow")
    test.selectbox(key="field:default_reward_fn_type").select("accuracy_reward")
    test.number_input(key="field:repeat_times").set_value(2)
    test.number_input(key="field:batch_size").set_value(2)
    test.number_input(key="field:total_steps").set_value(2)
    test.number_input(key="field:lr").set_value(1e-3)
    test.number_input(key="field:max_model_len").set_value(48)
    test.number_input(key="field:max_response_tokens").set_value(8)
    checked(test.number_input(key="field:max_prompt_tokens").set_value(24).run())
    assert "Valid" in said(test), said(test)
    checked(test.text_input(key="_file").set_value("made.yaml").run())
    checked(test.button(key="_save").click().run())
    assert "made.yaml was written." in said(test)
    written = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert written["buffer"]["explorer_input"]["taskset"]["path"] == "train.jsonl"
    assert written["algorithm"] == {"repeat_times": 2, "optimizer": {"lr": 1e-3}}
    assert (tmp_path / "made.yaml").read_text().rstrip("\n") == f"{SCHEMA_LINE}\n{yaml_of(test)}".rstrip("\n")
    assert run.tree["model"]["max_model_len"] == written["model"]["max_model_len"]
    checked(test.number_input(key="field:lr").set_value(None).run())
    assert "lr" not in yaml_of(test), "an empty field is not written"


def test_a_problem_stands_at_its_field_and_one_without_a_field_is_told_too(
    run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.change(trainer__total_stesp=3, algorithm__algorithm_type="grp0")
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    test = opened(monkeypatch, file="run.yaml")
    assert "unknown key `trainer.total_stesp`" in said(test) and "did you mean `total_steps`?" in said(test)
    elements = [each for each in test.main if each.type in ("text_input", "number_input", "selectbox", "error")]
    at = next(number for number, each in enumerate(elements) if getattr(each, "key", None) == "field:algorithm_type")
    assert elements[at + 1].type == "error" and "did you mean" in elements[at + 1].value
    assert test.button(key="_start").disabled and not test.button(key="_save").disabled
    checked(test.text_input(key="field:model_path").set_value(HOSTILE).run())
    interpreted = [*test.error, *test.warning, *test.markdown, *test.caption]
    assert not [each.value for each in interpreted if "<b>" in each.value or " :red[" in each.value]


def test_a_file_is_loaded_shown_and_saved_without_loss(run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.change(buffer__explorer_input__eval_tasksets=EVALUATED, seed="${oc.env:SEED,7}")
    text = "# mine\n" + yaml.safe_dump(run.tree)
    (run.folder / "run.yaml").write_text(text)
    test = opened(monkeypatch, file="run.yaml")
    assert "comments, which are not kept" in said(test)
    assert (
        test.number_input(key="field:batch_size").value == 2
        and test.text_input(key="field:path").value == "train.jsonl"
    )
    expert(test, "model")
    assert test.text_area(key="field:seed").value == "${oc.env:SEED,7}", "what is no number is shown as it is written"
    expert(test, "buffer")
    assert yaml.safe_load(test.text_area(key="field:eval_tasksets").value) == EVALUATED
    checked(test.number_input(key="field:batch_size").set_value(4).run())
    checked(test.button(key="_save").click().run())
    run.tree["buffer"]["batch_size"] = 4
    assert yaml.safe_load((run.folder / "run.yaml").read_text()) == run.tree
    checked(test.button(key="_new").click().run())
    assert yaml_of(test) == ""


def test_a_field_shows_what_a_run_would_have_where_all_stages_agree(
    run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    del run.tree["algorithm"]["optimizer"]
    stages = [{"stage_name": "a", "algorithm": {"repeat_times": 4}}, {"stage_name": "b"}]
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    test = opened(monkeypatch, file="run.yaml")
    expert(test, "buffer")
    assert test.number_input(key="field:train_batch_size").placeholder == "4", "two tasks, each twice"
    expert(test, "model")
    checked(test.text_area(key="field:stages").set_value(yaml.safe_dump(stages)).run())
    expert(test, "buffer")
    assert test.number_input(key="field:train_batch_size").placeholder == "0", "the default: stages have 8 and 4"
    expert(test, "trainer")
    assert test.number_input(key="field:lr").placeholder == "1e-06" and "stage_name: b" in yaml_of(test)


def test_the_expert_mode_has_four_parts_and_together_all_fields_with_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    test, found = opened(monkeypatch), set[str]()
    for part in ("model", "buffer", "explorer", "trainer"):
        expert(test, part)
        names = labels(test)
        assert all(names) and len(names) == len(set(names)), "a screen reader tells fields by their labels"
        found |= {name.removesuffix(" (YAML)").rpartition("(")[2].rstrip(")") for name in names}
    assert fields_by_key().keys() <= found
    checked(test.text_input(key="_find").set_value("Save_Interval").run())
    keys = [name for name in labels(test) if "." in name]
    assert "Steps between checkpoints (trainer.save_interval)" in keys and len(keys) < 10


def test_the_page_is_in_both_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    test = opened(monkeypatch)
    checked(test.radio(key="_language").set_value("zh").run())
    assert [each.value for each in test.subheader][:2] == ["基本配置", "重要配置"] and test.title[
        0
    ].value == "Trinity 工作台"
    assert any("项目名称；作业目录路径的第一级文件夹" in each.help for each in test.text_input)
    assert "模型 (model.model_path)" in labels(test) and test.radio(key="_form").options == ["初学者", "专家"]
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert AppTest.from_file(test._script_path, default_timeout=60).run().title[0].value == "Trinity 工作台"


def test_runs_have_state_curves_health_and_what_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(tmp_path / "p" / "good", lr=1e-3, rewards=[0.1, 0.5])
    job(tmp_path / "p" / "bad", lr=1e-4, rewards=[0.2, 0.1], status="failed")
    test = opened(monkeypatch, folder=str(tmp_path))
    checked(test.radio(key="_page").set_value("runs").run())
    checked(test.selectbox(key="_job").select(str(tmp_path / "p" / "bad")).run())
    rows = test.dataframe[0].value
    assert list(rows["Run"]) == [str(tmp_path / "p" / name) for name in ("bad", "good")]
    assert list(rows["State"]) == ["failed", "done"] and list(rows["Step"]) == [2, 2]
    texts = [each.value for each in test.text]
    assert texts[0] == "failed, Step 2" and "3: rollouts made again" in texts[1] and charts(test) == 1
    assert not [each for each in test.button if each.key == "_resume_0"], "how it was started is not noted"
    checked(test.text_input(key="_folder").set_value(str(tmp_path / "none")).run())
    assert "There are no runs" in said(test)


def test_runs_are_compared_by_settings_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, lr in (("a", 1e-3), ("b", 1e-4)):
        job(tmp_path / "p" / name, lr=lr, rewards=[0.1, 0.5])
    test = opened(monkeypatch, folder=str(tmp_path))
    checked(test.radio(key="_page").set_value("compare").run())
    rows = test.dataframe[0].value
    assert rows.to_dict("records") == [{"Key": "algorithm.optimizer.lr", "a": "0.001", "b": "0.0001"}]
    assert charts(test) == 1
    assert settings_that_differ({"a": {"x": 1}, "b": {"x": 1}}) == {}
    assert short_names(["/r/p/a/one", "/r/p/b"]) == {"/r/p/a/one": "a/one", "/r/p/b": "b"}


def test_the_server_is_not_started_without_its_file_plugins_or_streamlit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(**settings: Any) -> None:
        serve_studio(StudioSettings(**settings), port=0, say=print)

    with pytest.raises(ConfigErrors, match=r"none\.yaml"):
        serve(file=str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="E3901"):
        serve(plugin_dirs=(str(tmp_path / "none"),))
    monkeypatch.setattr(serving, "is_installed", lambda package: False)
    with pytest.raises(EnvironmentProblem, match=r"E3301.*studio.*pip install 'trinity-rft\[studio\]'"):
        serve()


def test_the_memory_of_a_run_is_that_of_the_command(run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    test = opened(monkeypatch, file="run.yaml", folder=".")
    assert not [each for each in test.text if "All processes together" in each.value], "not asked for yet"
    checked(test.checkbox(key="_memory").check().run())
    (stage,), _ = estimate(Path("run.yaml"))
    (told,) = [each.value for each in test.text if "All processes together" in each.value]
    assert shown_bytes(stage.host_bytes) in told
    tables = [each.value for each in test.dataframe if "Process" in each.value.columns]
    assert sum(len(table) for table in tables) == sum(len(place.parts) for place in stage.places)
    checked(test.text_input(key="field:model_path").set_value("nowhere").run())
    assert not [each for each in test.text if "All processes together" in each.value]


def test_a_run_that_goes_on_shows_its_pace_and_its_latest_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job(tmp_path / "p" / "live", lr=1e-3, rewards=[0.1, 0.5], status="running")
    (folder / SAVED_CONFIG).write_text("project: p\nname: live\n")
    (folder / RECORD).write_text(json.dumps({"status": "running", "planned": {"trainer": 100}}))
    trained = {"sample/staleness/mean": 1.0, "training/rollout_logprobs_diff_mean": 2e-7, "perf/time_per_step": 2.0}
    trained |= {"perf/total_num_tokens": 5000, "fate/issued": 4}
    lines = [{"actor": "trainer", "step": 40 + step, "time": 1000.0 + 3 * step, **trained} for step in range(11)]
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "buffer").mkdir()
    write_experiences(folder / "buffer" / "experience.db", run="p/live")
    test = opened(monkeypatch, folder=str(tmp_path))
    held = FileLock(folder / LOCK)
    checked(test.radio(key="_page").set_value("runs").run())
    held.release()
    figures = {each.label: each.value for each in test.metric}
    # Fifty steps are left, at three seconds each.
    assert figures == {
        "Step": "50 / 100", "Time left": "2:30", "Trained tokens/s": "2500", "Staleness": "1.0", "Mismatch": "2.0e-07",
    }  # fmt: skip
    shown = next(each.value for each in test.dataframe if "advantage" in each.value.columns)
    assert list(shown["response"]) == ["answer 5", "answer 4", "answer 3", "answer 2"]
    assert list(shown["reward"]) == [0.5, 0.4, 0.3, 0.2] and set(shown["weights"]) == {3}
    assert abs(shown["advantage"][0] - 0.5 / 3) < 1e-6, "the mean over the response: 0.25, 0.25, 0"
    checked(test.run())
    assert not test.metric, "what has ended has no time left"
    (folder / "buffer" / "experience.db").write_text("no database")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(lines[-1]) + "\n")
    assert "the rollouts cannot be shown" in said(checked(test.run()))
