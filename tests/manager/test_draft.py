"""A configuration while it is edited: what is written and what is removed, loading and saving."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinity.common.config import ConfigErrors
from trinity.common.config.given import yaml_text
from trinity.common.config.reading import parse_text
from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.explain.editor_schema import SCHEMA_FILE, SCHEMA_LINE
from trinity.manager.draft import MISSING, Draft, checked, differences

LR = ("algorithm", "optimizer", "lr")


def test_what_is_removed_takes_the_sections_that_are_empty_then() -> None:
    draft = Draft({"algorithm": {"algorithm_type": "grpo"}})
    draft.put(LR, 1e-3)
    draft.put(("algorithm", "optimizer", "betas"), [0.9, 0.95])
    assert draft.get(LR) == 1e-3 and draft.get(("model", "model_path")) is MISSING
    draft.drop(LR)
    assert draft.values["algorithm"]["optimizer"] == {"betas": [0.9, 0.95]}
    draft.drop(("algorithm", "optimizer", "betas"))
    draft.drop(("algorithm", "optimizer", "betas"))
    assert draft.values == {"algorithm": {"algorithm_type": "grpo"}}
    with pytest.raises(ConfigError, match=r"E1972.*`algorithm\.algorithm_type` is 'grpo'"):
        draft.put(("algorithm", "algorithm_type", "x"), 1)


def test_texts_that_look_like_numbers_stay_texts_when_saved(tmp_path: Path) -> None:
    values = {"name": "1e-6", "group": "on", "seed": 3, "algorithm": {"optimizer": {"lr": 1e-6}}}
    file = tmp_path / "run.yaml"
    Draft(values).save(file, yaml_text(values), replaces=False)
    assert parse_text(file.read_text(), "x").values == values and Draft.of_file(file).values == values


def test_saving_replaces_what_was_read_from_there_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("name: first\n")
    fresh = Draft({"name": "second"})
    with pytest.raises(ConfigError, match=r"E1973.*holds something that was not read"):
        fresh.save(file, "name: second\n", replaces=False)
    read = Draft.of_file(file)
    read.save(file, "name: third\n", replaces=False)
    file.write_text("name: by somebody else\n")
    with pytest.raises(ConfigError, match="E1973"):
        read.save(file, "name: fourth\n", replaces=False)
    read.save(file, "name: fourth\n", replaces=True)
    assert file.read_text() == f"{SCHEMA_LINE}\nname: fourth\n"
    with pytest.raises(EnvironmentProblem, match=r"E3490.*is no folder"):
        read.save(tmp_path / "none" / "run.yaml", "", replaces=False)
    with pytest.raises(ConfigErrors):
        Draft.of_file(tmp_path / "none.yaml")


def test_an_editor_knows_the_keys_of_a_saved_file_and_its_own_line_stays(tmp_path: Path) -> None:
    file, own = tmp_path / "run.yaml", "# yaml-language-server: $schema=../mine.json"
    file.write_text("name: a  # mine\n")
    draft = Draft.of_file(file)
    assert not draft.has_comments, "only whole lines are looked for"
    draft.save(file, "name: b\n", replaces=False)
    assert file.read_text() == f"{SCHEMA_LINE}\nname: b\n" and (tmp_path / SCHEMA_FILE).is_file()
    file.write_text(f"{own}\nname: b\n")
    draft = Draft.of_file(file)
    assert not draft.has_comments
    draft.save(file, "name: c\n", replaces=False)
    assert file.read_text() == f"{own}\nname: c\n"
    file.write_text(f"{own}\n# mine\nname: b\n")
    assert Draft.of_file(file).has_comments


def test_differences_are_what_is_written_and_is_not_the_default() -> None:
    values = {"seed": 42, "name": "mine", "explorer": {"rollout_model": {"api_key": "sk-very-secret", "engine_num": 1}}}
    found = {each.key: (each.value, each.default) for each in differences(values)}
    assert found == {"name": ("mine", "rft"), "explorer.rollout_model.api_key": ("***", "EMPTY")}


def test_checking_gives_the_problems_of_validate_and_what_would_be_computed(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1+1=", "response": "2"}\n')
    taskset = {"name": "t", "storage_type": "file", "path": str(tmp_path / "tasks.jsonl")}
    values = {"algorithm": {"repeat_times": 2}, "buffer": {"batch_size": 4, "explorer_input": {"taskset": taskset}}}
    taskset |= {"default_workflow_type": "simple_workflow", "default_reward_fn_type": "accuracy_reward"}
    plan, found = checked(values | {"model": {"model_path": "none", "max_model_len": 64}})
    assert plan is not None and plan.stages[0].config.buffer.train_batch_size == 8
    assert {each.key for each in found if each.is_error} >= {"model.model_path"}
    assert "E1203" in {each.code for each in checked(values | {"modle": {}})[1]}
    assert checked({"a": {"b": object()}})[0] is None
