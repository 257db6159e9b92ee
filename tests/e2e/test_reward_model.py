"""Runs whose rewards come from a model: another tokenizer, a class from a plugin, stop and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForSequenceClassification

from tests.docs.pages import page
from tests.e2e.test_algorithms import check, finish, make_run
from tests.tiny import CHARACTERS, tiny_model
from trinity.launch.reuse.past_run import PastRun
from trinity.launch.reuse.rescoring import rescored
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}"


@pytest.fixture
def reward_model(tmp_path: Path) -> Path:
    """A sequence classifier with another vocabulary and another template than the policy."""
    tiny_model(tmp_path / "rm", "llama", seed=7, characters=CHARACTERS[::-1] + "é", chat_template=TEMPLATE)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm", num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.1, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "rm")
    return tmp_path / "rm"


def settings(folder: Path, **section: Any) -> dict[str, Any]:
    return {"trainer__trainer_config__reward_model": {"enable": True, "dtype": "float32"} | section}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_model_with_another_tokenizer_gives_the_rewards(
    tmp_path: Path,
    plugins: Path,
    reward_model: Path,
    algorithm: str,
) -> None:
    def changes(folder: Path) -> dict[str, Any]:
        model = {"path": str(reward_model), "input_tokenizer": str(folder / "model")}
        no_reward = {"buffer__explorer_input__default_reward_fn_type": "no_reward"}
        return settings(folder, model=model, micro_batch_size_per_gpu=3) | no_reward

    run = check(tmp_path, {"algorithm_type": algorithm}, plugins, changes)
    for explored, trained in zip(run.lines("explorer"), run.lines("trainer"), strict=True):
        assert explored["rollout/reward/mean"] == 0.0, "the reward function gives none"
        score = explored["experience_pipeline/reward_model/score/mean"]
        assert trained["critic/score/mean"] == pytest.approx(score, rel=1e-5) and score != 0.0
        assert explored["experience_pipeline/reward_model/not_finite_count"] == 0


@pytest.mark.runs("docs/workflows.md", "from trinity.common.models.reward_models")
def test_a_reward_model_of_a_plugin(tmp_path: Path, plugins: Path) -> None:
    example = next(code for code in page("docs/workflows.md").code("python") if "REWARD_MODELS" in code)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "likes_letters.py").write_text(example)
    run = make_run(tmp_path / "run", {"algorithm_type": "grpo"})
    run.change(**settings(run.folder, worker="likes_letters", worker_args={"weight": 2.0}))
    finish(run, plugins, more=(tmp_path / "more",))
    for line in run.lines("explorer"):
        expected = 2.0 * (1.0 - line["rollout/digits/mean"])
        assert 0.0 < line["experience_pipeline/reward_model/score/mean"] <= expected + 1e-6
    past, factor = PastRun.of(run.job, plugin_dirs=(plugins, tmp_path / "more")), "reward_model.worker_args.weight=4.0"
    same = rescored(past, f"sqlite:///{tmp_path}/same.db")
    assert all(before == after for before, after in same.rewards) and any(after for _, after in same.rewards)
    more = rescored(past, f"sqlite:///{tmp_path}/more.db", overrides=[f"trainer.trainer_config.{factor}"])
    assert [after for _, after in more.rewards] == pytest.approx([2.0 * before for before, _ in more.rewards])
    run.change(trainer__trainer_config__reward_model__worker_args={"weigth": 2.0}, name="wrong")
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(plugin_dirs=(plugins, tmp_path / "more"))
    with pytest.raises(Exception, match=r"E1703.*likes_letters. has no argument .weigth"):
        run_plan(plan_run(run.folder / "run.yaml", options), options)
