"""A configuration that a run saved means the same when it is read: values, warnings, and what `--set` moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.test_bad_input import find
from tests.docs.pages import ROOT
from trinity.catalogue import catalogue_of
from trinity.common.config import ConfigErrors, Finding, Plan, StagePlan, dump_config, examine, load_config
from trinity.common.config.saved import WRITTEN

EXAMPLES = [
    path for path in sorted((ROOT / "examples").rglob("*.yaml"))
    if {"mode", "stages"} & yaml.safe_load(path.read_text()).keys()
]  # fmt: skip
VARIABLES = ("MODEL_PATH", "JUDGE_MODEL_PATH", "TASKSET_PATH", "NEW_TASKSET_PATH", "CHECKPOINT_ROOT_DIR", "API_KEY")

Saved = Callable[..., tuple[Plan, list[Finding]]]


def facts(stage: StagePlan) -> tuple[dict[str, object], dict[str, object], list[tuple[str, str]]]:
    """Return all values of a stage, those that are no defaults, and its warnings."""
    values, others = (
        stage.config.model_dump(mode="json", exclude={WRITTEN}, exclude_unset=each) for each in (False, True)
    )
    return values, others, [(each.code, each.key) for each in stage.warnings]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_saved_example_gives_the_values_and_warnings_of_the_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(f"TRINITY_{name}", f"{tmp_path}/{name.lower()}")
    folders = [ROOT / folder for folder in yaml.safe_load(path.read_text()).get("plugin_dirs") or ()]
    catalogue = catalogue_of(folders)[0]
    plan, problems = examine(path, catalogue=catalogue, cwd=ROOT)
    assert not [each for each in problems if each.is_error] and plan.stages
    for stage in plan.stages:
        file = tmp_path / "config.yaml"
        file.write_text(dump_config(stage.config, stage.references))
        again, problems = examine(file, catalogue=catalogue, cwd=ROOT)
        assert not [each for each in problems if each.is_error], problems
        assert facts(again.stages[0]) == facts(stage)
        assert again.stages[0].config.written == stage.config.written
        assert dump_config(again.stages[0].config, again.stages[0].references) == file.read_text()


@pytest.fixture
def saved(examined: Examine) -> Saved:
    """Complete a configuration, save it with an edit, and read it again."""

    def read(text: str, *overrides: str, edit: tuple[str, str] = ("", "")) -> tuple[Plan, list[Finding]]:
        stage = examined(text)[0].stages[0]
        whole = dump_config(stage.config, stage.references)
        assert whole.count(edit[0]) == 1 or not edit[0], whole
        return examined(whole.replace(*edit), *overrides)

    return read


def test_only_the_keys_of_the_user_count_as_written(examined: Examine) -> None:
    stage = examined(MINIMAL)[0].stages[0]
    written = [
        "model_path",
        "max_model_len",
        "batch_size",
        "taskset.name",
        "taskset.path",
        "taskset.default_workflow_type",
    ]
    found = [key.split(".", 1)[1] for key in stage.config.written or () if key not in ("project", "name")]
    assert sorted(found) == sorted(each.replace("taskset", "explorer_input.taskset") for each in written)
    assert load_config({"seed": 3}).written is None, "of a file that no run saved"


def test_an_edited_value_counts_and_what_was_filled_in_stays_as_the_file_has_it(saved: Saved) -> None:
    plan, problems = saved(MINIMAL, edit=("\nseed: 42\n", "\nseed: 43\n"))
    config = plan.stages[0].config
    assert not problems and config.buffer.explorer_input.taskset is not None
    assert (config.seed, config.buffer.explorer_input.taskset.data_selector.seed) == (43, 42)
    find(saved(MINIMAL, edit=("\n  batch_size: 4\n", "\n  batch_size: 8\n"))[1], "E1824", "buffer.train_batch_size")
    assert "seed" in (config.written or ())
    found = saved(MINIMAL, edit=("\n  train_batch_size: 32\n", "\n  train_batch_size: 16\n"))[1]
    assert "16" in find(found, "E1824", "buffer.train_batch_size").message
    find(saved(MINIMAL, edit=("\nseed: 42\n", "\nsede: 43\n"))[1], "E1203", "sede")


def test_what_follows_from_an_override_follows_it(saved: Saved) -> None:
    plan, problems = saved(MINIMAL, "buffer.batch_size=8", "algorithm.optimizer.lr=0.0005")
    config = plan.stages[0].config
    assert not problems and config.buffer.train_batch_size == 64
    assert config.trainer.trainer_config.actor_rollout_ref.actor.optim.lr == 0.0005


def test_a_secret_is_saved_as_the_reference_that_was_written(
    saved: Saved, examined: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X04."""
    monkeypatch.setenv("DB_PASSWORD", "canary-55")
    url = "postgresql://me:${oc.env:DB_PASSWORD}@host/db"
    path = "buffer.trainer_input.experience_buffer.path"
    stage = examined(MINIMAL, f"{path}={url}")[0].stages[0]
    text = dump_config(stage.config, stage.references)
    assert url in text and "canary" not in text
    plan, problems = examined(text)
    buffer = plan.stages[0].config.buffer.trainer_input.experience_buffer
    assert not problems and buffer is not None and buffer.path == "postgresql://me:canary-55@host/db"


def test_a_secret_that_was_written_as_text_must_be_given_again(saved: Saved, examined: Examine) -> None:
    stage = examined(MINIMAL, "monitor.monitor_type=wandb", "monitor.monitor_args.api_key=canary-66")[0].stages[0]
    text = dump_config(stage.config, stage.references)
    problem = find(examined(text)[1], "E1501", "monitor.monitor_args.api_key")
    assert "--set monitor.monitor_args.api_key=" in str(problem.suggestion) and "canary" not in text
    assert not [each for each in examined(text, "monitor.monitor_args.api_key=x")[1] if each.is_error]


def test_texts_that_look_like_references_stay_texts(saved: Saved) -> None:
    text = MINIMAL + "explorer:\n  env_vars: {A: 'cost \\${5}', B: 'x \\\\\\${model.model_path}'}\n"
    variables = saved(text)[0].stages[0].config.explorer.env_vars
    assert variables == {"A": "cost ${5}", "B": "x \\${model.model_path}"}


@pytest.mark.parametrize("name", ["a..b", 7])
def test_a_list_of_written_keys_names_keys(examined: Examine, name: object) -> None:
    with pytest.raises(ConfigErrors, match=r"`written` must name keys such as `a.b\[1\].c`") as caught:
        examined(MINIMAL + f"written: [{name}]\n")
    assert [each.code for each in caught.value.problems] == ["E1012"]
