"""Files of ours as files of veRL and ModelArts: they mean the same, or it is said what they cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_validate import runner
from tests.common.config.test_dialects import MODELARTS, SMALL, VERL, planned
from tests.common.config.verl_examples import EXAMPLES
from trinity.cli.app import app
from trinity.common.config.dialects import open_source
from trinity.launch.dialects import to_foreign

SOURCES: dict[str, tuple[Any, list[str]]] = {
    "veRL's file": (VERL, []),
    "veRL's file, grpo": (VERL, ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", "+compat=verl-0.6"]),
    "ModelArts' file": (MODELARTS, []),
    "an own scorer": (SMALL, ["+custom_reward_function.path=a.py", "+custom_reward_function.reward_kwargs.bonus=1",
                              "+data.truncation=left", "+actor_rollout_ref.rollout.val_kwargs.do_sample=true"]),
    "another loss": (SMALL, ["+actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
                             "+actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.1", "trainer.critic_warmup=3",
                             "+algorithm.norm_adv_by_std_in_grpo=false", "+actor_rollout_ref.model.lora_rank=8"]),
    **{name: ({"defaults": ["ppo_trainer"]}, words) for name, words in EXAMPLES.items()},
}  # fmt: skip


# Own files both ways, the many commands in turn: each way has half of them.
CASES = [(name, to) for name in list(SOURCES)[:5] for to in ("verl", "modelarts")]
CASES += [(name, ("verl", "modelarts")[number % 2]) for number, name in enumerate(list(SOURCES)[5:])]


@pytest.mark.parametrize(("name", "to"), CASES)
def test_there_and_back_the_run_is_the_same(tmp_path: Path, name: str, to: str) -> None:
    source, words = SOURCES[name]
    ours = tmp_path / "ours.yaml"
    ours.write_text(yaml.safe_dump(open_source(source, words).tree.values))
    made = to_foreign(ours, (), to=to)
    assert not made.problems, [problem.render() for problem in made.problems]
    again = tmp_path / "again.yaml"
    again.write_text(made.text)
    opened = open_source(again)
    assert opened.dialect == {"verl": "veRL", "modelarts": "ModelArts"}[to]
    assert not [problem for problem in opened.problems if problem.is_error]


def test_what_a_file_of_verl_cannot_say_is_named(tmp_path: Path) -> None:
    ours = tmp_path / "ours.yaml"
    values = open_source(SMALL).tree.values
    values["buffer"]["explorer_input"]["taskset"]["default_workflow_type"] = "math_workflow"
    values["synchronizer"] = {"sync_interval": 3}
    ours.write_text(yaml.safe_dump(values))
    said = {problem.key: problem.code for problem in to_foreign(ours, (), to="verl").problems}
    assert said == {
        "buffer.explorer_input.taskset.default_workflow_type": "E1947", "synchronizer.sync_interval": "E1947",
    }  # fmt: skip
    ours.write_text(yaml.safe_dump({"stages": [{"stage_name": "a"}]}))
    shown = runner.invoke(app, ["convert", "config", str(ours), "--to", "verl"])
    assert shown.exit_code == 2 and "E1948" in shown.output


def test_the_command_writes_a_file_of_either_kind(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.yaml", tmp_path / "modelarts.yaml"
    assert runner.invoke(app, ["convert", "config", str(VERL), "-o", str(ours)]).exit_code == 0
    done = runner.invoke(app, ["convert", "config", str(ours), "--to", "modelarts", "-o", str(theirs)])
    assert done.exit_code == 0, done.output
    written = yaml.safe_load(theirs.read_text())
    assert written["backend_config.actor_rollout_ref.actor.ppo_mini_batch_size"] == 256
    assert written["af_output_dir"] == "checkpoints" and "(Trinity)" in done.output
    other = runner.invoke(app, ["convert", "config", str(theirs), "--to", "verl"])
    assert other.exit_code == 0 and yaml.safe_load(other.stdout)["data"]["train_batch_size"] == 1024
    assert "--to modelarts" in runner.invoke(app, ["convert", "config", str(ours)]).output
    assert runner.invoke(app, ["convert", "config", str(ours), "--to", "nemo"]).exit_code == 2


@pytest.mark.parametrize("to", ["verl", "modelarts"])
@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["+reward_model.reward_manager=dapo", "+reward_model.reward_kwargs.max_resp_len=9",
         "+reward_model.reward_kwargs.overlong_buffer_cfg={enable: true, len: 4, penalty_factor: 0.5}"],
        ["+trainer.default_hdfs_dir=s3://bucket/runs"],
    ],
    ids=["no logger", "cost of length", "upload"],
)  # fmt: skip
def test_what_a_foreign_file_leaves_out_means_the_same_afterwards(tmp_path: Path, to: str, changes: list[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(SMALL | {"data": {**SMALL["data"], "val_files": "b.parquet"}}))
    made = to_foreign(file, changes, to=to)
    assert made.problems == []
    before, after = planned(file, *changes)[0], planned(yaml.safe_load(made.text))[0]
    assert before.monitor.monitor_type == after.monitor.monitor_type != ""
    assert before.trainer.checkpoint_upload_dir == after.trainer.checkpoint_upload_dir
    assert before.buffer.explorer_input.taskset == after.buffer.explorer_input.taskset


def test_a_run_without_names_keeps_those_that_it_has(tmp_path: Path) -> None:
    values = open_source(SMALL, ["+trainer.default_hdfs_dir=s3://bucket/runs"]).tree.values
    del values["project"], values["name"]
    values["checkpoint_root_dir"] = "/runs"
    ours = tmp_path / "ours.yaml"
    ours.write_text(yaml.safe_dump(values))
    before = planned(ours)[0]
    for to in ("verl", "modelarts"):
        made = to_foreign(ours, ["buffer.explorer_input.eval_tasksets[0].path=c.parquet"], to=to)
        assert made.problems == [] and "None" not in made.text
        after = planned(yaml.safe_load(made.text))[0]
        assert (after.project, after.name, after.trainer.checkpoint_upload_dir) == (
            before.project, before.name, "s3://bucket/runs"
        )  # fmt: skip
        assert after.checkpoint_job_dir == before.checkpoint_job_dir
