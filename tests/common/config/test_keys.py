"""Names of keys: what a rule names exists, prints as its dotted key, and cannot be taken for the value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trinity.common.config import Catalogue, Config
from trinity.common.config.keys import ACTOR, KEYS, args_of, key_named, last_part, part_of, path_of, present, value_of
from trinity.common.config.resolution import Resolution, opened
from trinity.common.config.tree import Tree

ROOT = Path(__file__).resolve().parents[3]
RULE = """# mypy: strict-equality
from trinity.common.config.resolution import Resolution
from trinity.common.config.keys import KEYS


def rule(resolution: Resolution) -> int:
    resolution.get(KEYS.buffer.train_batchsize)
    if resolution.get(KEYS.synchronizer.sync_style) == "fixd" or resolution.config.mode == "trains":
        return resolution.get(KEYS.buffer.tokenizer_path)
    return resolution.get(KEYS.buffer.train_batch_size) + resolution.filled(KEYS.trainer.total_steps)
"""
FOUND = (
    'rule.py:7: error: "BufferConfig" has no attribute "train_batchsize"',
    "rule.py:8: error: Non-overlapping equality check",
    'rule.py:9: error: Incompatible return value type (got "str | None", expected "int")',
)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two minutes of one core, without what an earlier call has read
def test_the_type_checker_sees_keys_and_values(tmp_path: Path) -> None:
    """A key that does not exist, a word that it cannot have and a value of another type are found, and nothing else.

    As `make check` calls it, so that what one has read of the package the other finds in its cache.
    """
    rule = tmp_path / "rule.py"
    rule.write_text(RULE, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", str(rule)], cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False
    )
    # A file that mypy has read before is named by its earlier folder.
    lines = [line[line.find("rule.py:") :] for line in found.stdout.splitlines() if "rule.py:" in line]
    errors = [line for line in lines if line.startswith("rule.py:") and ": error: " in line]
    assert [any(line.startswith(said) for line in errors) for said in FOUND] == [True] * len(FOUND), found.stdout
    assert {line.partition(": ")[0] for line in errors} == {"rule.py:7", "rule.py:8", "rule.py:9"}, found.stdout


def test_a_key_prints_as_a_file_has_it() -> None:
    assert f"`{KEYS.explorer.auxiliary_models[1].model_path}`" == "`explorer.auxiliary_models[1].model_path`"
    assert str(args_of(KEYS.algorithm.kl_loss_fn)["kl_coef"]) == "algorithm.kl_loss_fn_args.kl_coef"
    assert str(part_of(ACTOR, "optim", "lr")) == "trainer.trainer_config.actor_rollout_ref.actor.optim.lr"
    assert last_part(present(KEYS.buffer.explorer_input.taskset).repeat_times) == "repeat_times"


def test_a_name_of_a_key_leads_back_to_it() -> None:
    for name in ("mode", "stages[0].algorithm.optimizer.lr", ""):
        assert str(key_named(name)) == name
    assert path_of(key_named("a[1].b")) == ("a", 1, "b")
    assert key_named("model.model_path") == KEYS.model.model_path
    assert len({key_named("model.model_path"), KEYS.model.model_path, KEYS.model}) == 2


@pytest.mark.parametrize(
    "misuse",
    [
        lambda key: bool(key), lambda key: key == 8, lambda key: key != "x", lambda key: key < 8,
        lambda key: 8 in key, lambda key: list(key), lambda key: key + 1, lambda key: int(key), lambda key: len(key),
    ],
)  # fmt: skip
def test_a_key_is_not_taken_for_its_value(misuse: Any) -> None:
    with pytest.raises(TypeError):
        misuse(KEYS.buffer.batch_size)


def _resolution() -> Resolution:
    return Resolution(Config(model={"model_path": "m"}), Tree(), Catalogue(), Path("/"))


def test_text_is_no_key() -> None:
    with pytest.raises(TypeError, match="'buffer.batch_size' is no name of a key"):
        _resolution().get("buffer.batch_size")


def test_a_key_leads_to_an_item_of_a_list_in_what_was_read_and_in_a_resolution() -> None:
    config = Config(explorer={"auxiliary_models": [{"model_path": "m"}, {"model_path": "n"}]})
    for values in (config, opened(config)):
        assert value_of(values, KEYS.explorer.auxiliary_models[1].model_path) == "n"
        with pytest.raises(KeyError, match=r"explorer.auxiliary_models\[2\]"):
            value_of(values, KEYS.explorer.auxiliary_models[2])


def test_what_is_derived_stands_in_the_resolution_alone() -> None:
    resolution = _resolution()
    resolution.derive(KEYS.buffer.batch_size, 8, KEYS.model.model_path)
    resolution.follow(KEYS.buffer.tokenizer_path, KEYS.model.model_path)
    assert resolution.config.buffer.batch_size == resolution.get(KEYS.buffer.batch_size) == 8
    assert resolution.config.buffer.tokenizer_path == "m" and resolution.typed.buffer.batch_size == 1
    assert [(d.key, d.reason, d.is_copy) for d in resolution.derived] == [
        ("buffer.batch_size", "model.model_path", True),
        ("buffer.tokenizer_path", "model.model_path", True),
    ]


def test_an_opened_section_shares_nothing_that_changes() -> None:
    config = Config(buffer={"explorer_input": {"eval_tasksets": [{"workflow_args": {"a": [1]}}]}})
    copy: Any = opened(config)
    copy.buffer.explorer_input.eval_tasksets[0].workflow_args["a"].append(2)
    assert config.buffer.explorer_input.eval_tasksets[0].workflow_args == {"a": [1]}
