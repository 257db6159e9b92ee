"""Names that users of TRL and veRL bring, and a file without `--config`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.tiny_run import TinyRun
from trinity.catalogue import builtin_catalogue
from trinity.cli.app import app
from trinity.common.config import Config, examine
from trinity.common.config.foreign import TRL
from trinity.common.config.keys import path_of
from trinity.common.config.schema_index import annotation_at


def _hint(folder: Path, tree: dict[str, object], key: str) -> tuple[str, str, str | None]:
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    found = examine(folder / "run.yaml", catalogue=builtin_catalogue(), schema_only=True)[1]
    (problem,) = [each for each in found if each.key == key]
    return problem.code, problem.message, problem.suggestion


@pytest.mark.parametrize("section", ["", "algorithm", "trainer"])
@pytest.mark.parametrize("name", TRL)
def test_a_name_of_trl_is_answered_with_the_key_here(tmp_path: Path, name: str, section: str) -> None:
    key = f"{section}.{name}" if section else name
    code, message, suggestion = _hint(tmp_path, {section: {name: 1}} if section else {name: 1}, key)
    assert code == "E1205" and "TRL" in message and suggestion == f"write `{TRL[name]}`"
    assert annotation_at(path_of(TRL[name])) is not None, "the key exists"
    assert name not in Config.model_fields


@pytest.mark.parametrize(
    ("tree", "key", "there"),
    [
        ({"actor_rollout_ref": {"actor": {"ppo_epochs": 1}}}, "actor_rollout_ref", "trainer.trainer_config."),
        ({"critic": {"grad_clip": 1}}, "critic", "trainer.trainer_config."),
        ({"data": {"train_batch_size": 8}}, "data", "trainer.trainer_config."),
        ({"trainer": {"n_gpus_per_node": 8}}, "trainer.n_gpus_per_node", "cluster.gpu_per_node"),
        ({"trainer": {"test_freq": 8}}, "trainer.test_freq", "explorer.eval_interval"),
        ({"algorithm": {"adv_estimator": "grpo"}}, "algorithm.adv_estimator", "algorithm.advantage_fn"),
        ({"trainer": {"total_epochs": 8}}, "trainer.total_epochs", "write `buffer.total_epochs`"),
        ({"trainer": {"train_batch_size": 8}}, "trainer.train_batch_size", "write `buffer.train_batch_size`"),
        ({"reward_model": {"enable": True}}, "reward_model", "trainer.trainer_config."),
        ({"custom_reward_function": {"path": "r.py"}}, "custom_reward_function", "default_reward_fn_type"),
        ({"ray_init": {"num_cpus": 8}}, "ray_init", "cluster.ray_address"),
    ],
)
def test_a_section_of_verl_is_answered_with_its_place(
    tmp_path: Path, tree: dict[str, object], key: str, there: str
) -> None:
    code, _, suggestion = _hint(tmp_path, {"name": "a file of ours"} | tree, key)
    assert code in ("E1204", "E1205") and suggestion is not None and there in suggestion


@pytest.mark.parametrize("words", [["validate"], ["config", "show"]])
def test_a_file_may_be_given_alone(tmp_path: Path, words: list[str]) -> None:
    run = TinyRun(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run.tree))
    runner, options = CliRunner(), ["--schema-only"] * (words == ["validate"])
    alone, named = (runner.invoke(app, [*words, *how, str(file), *options]) for how in ([], ["--config"]))
    assert (alone.exit_code, alone.output) == (named.exit_code, named.output) and alone.exit_code == 0, alone.output
    for wrong in ([*words], [*words, str(file), "--config", str(file)]):
        refused = runner.invoke(app, wrong)
        assert refused.exit_code == 2 and "--config" in refused.output


def test_a_run_of_a_file_alone(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    end = run.finish(words=("run", "run.yaml"))
    assert end.status == 0, end.output
    assert run.job.is_dir()
