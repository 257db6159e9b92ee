"""The schema for editors: it takes what `validate` takes, and names the values of every key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from tests.common.config.conftest import MINIMAL
from trinity.catalogue import BUILT_IN
from trinity.cli.app import app
from trinity.explain.editor_schema import SCHEMA_FILE, SCHEMA_LINE, editor_schema, write_schema

SEEDS = Path(__file__).resolve().parents[1] / "seeds"


@pytest.fixture(scope="module")
def checked() -> jsonschema.Draft202012Validator:
    """What an editor does with the schema."""
    schema = editor_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    return jsonschema.Draft202012Validator(schema)


def wrong(checked: jsonschema.Draft202012Validator, tree: Any) -> list[str]:
    """Return the keys that an editor underlines."""
    return sorted(".".join(map(str, error.absolute_path)) for error in checked.iter_errors(tree))


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL,
        "mode: ${oc.env:MODE}\nseed: ${oc.env:SEED,7}\nbuffer: ${other}\n",
        "algorithm: {algorithm_type: one_of_a_plugin, optimizer: {lr: 1.0e-5}}\n",
        "monitor: {monitor_type: [tensorboard, wandb]}\n",
        "stages:\n- {stage_name: a, mode: train, algorithm: {algorithm_type: sft}}\n",
    ],
)
def test_what_is_right_is_not_underlined(checked: jsonschema.Draft202012Validator, text: str) -> None:
    assert wrong(checked, yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("mode: boht\n", "mode"),
        ("algorithm: {repeat_times: many}\n", "algorithm.repeat_times"),
        ("algorithm: {repeat_tims: 8}\n", "algorithm"),
        ("synchronizer: {sync_style: fixd}\n", "synchronizer.sync_style"),
        ("stages: [{mode: trian}]\n", "stages.0.mode"),
    ],
)
def test_what_is_wrong_is_underlined(checked: jsonschema.Draft202012Validator, text: str, key: str) -> None:
    assert any(each == key or each.startswith(f"{key}.") for each in wrong(checked, yaml.safe_load(text)))


def test_keys_list_the_names_that_they_may_have() -> None:
    def listed(section: str, key: str) -> set[str]:
        declared = editor_schema()["$defs"][section]["properties"][key]
        return {name for name in _enums(declared) if isinstance(name, str)}

    for section, key, registry in (
        ("AlgorithmConfig", "algorithm_type", "algorithm_type"),
        ("AlgorithmConfig", "kl_loss_fn", "kl_fn"),
        ("TasksetConfig", "default_workflow_type", "workflow"),
        ("TasksetConfig", "default_reward_fn_type", "reward_fn"),
        ("OperatorConfig", "name", "operator"),
        ("MonitorConfig", "monitor_type", "monitor"),
    ):
        assert listed(section, key) == set(BUILT_IN.names(registry)), key
    assert "both" in set(_enums(editor_schema()["properties"]["mode"]))


def _enums(declared: Any) -> list[Any]:
    if isinstance(declared, dict):
        return [*declared.get("enum", ()), *(each for value in declared.values() for each in _enums(value))]
    return [each for value in declared for each in _enums(value)] if isinstance(declared, list) else []


def test_files_that_are_written_say_where_the_schema_is(tmp_path: Path) -> None:
    output = tmp_path / "out" / "ours.yaml"
    output.parent.mkdir()
    source = SEEDS / "verl_ppo_trainer.yaml"
    result = CliRunner().invoke(app, ["convert", "config", "--config", str(source), "--output", str(output)])
    assert output.read_text().startswith(f"{SCHEMA_LINE}\n"), result.output
    assert json.loads((output.parent / SCHEMA_FILE).read_text()) == editor_schema()
    shown = CliRunner().invoke(app, ["config", "schema", "--folder", str(tmp_path)])
    assert shown.exit_code == 0 and SCHEMA_LINE in shown.output
    assert write_schema(tmp_path).read_text() == (output.parent / SCHEMA_FILE).read_text()
    assert CliRunner().invoke(app, ["config", "schema", "--folder", str(tmp_path / "no")]).exit_code == 2
