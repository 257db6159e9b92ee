"""Published commands of veRL's trainers behind a file that has veRL's own defaults: every key has a fate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.test_dialects import SEEDS, SMALL, codes, planned, put
from tests.common.config.verl_examples import EXAMPLES
from trinity.common.config.dialects import open_source
from trinity.common.config.dialects.showing import converted

DEFAULTS = {"defaults": ["ppo_trainer"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_published_command_is_accepted_as_it_is(name: str) -> None:
    words = EXAMPLES[name]
    assert len(words) >= 32
    config, problems = planned(DEFAULTS, *words)
    assert not [problem for problem in problems if problem.is_error], problems
    opened = open_source(DEFAULTS, words)
    assert opened.translation is not None
    keys = {word.partition("=")[0].lstrip("+") for word in words}
    became = tuple(each.written for each in opened.translation.became)
    lost = [key for key in keys if not any(f"{key}.".startswith(f"{name}.") for name in became)]
    assert not lost, "each of them became something, or its section did"
    said = dict(word.lstrip("+").partition("=")[::2] for word in words)
    repeats = int(said.get("actor_rollout_ref.rollout.n", 1))
    assert config.buffer.train_batch_size == int(said["data.train_batch_size"]) * repeats
    assert config.trainer.mini_batch_size == int(said["actor_rollout_ref.actor.ppo_mini_batch_size"]) * repeats
    assert (config.project, config.name) == (said["trainer.project_name"], said["trainer.experiment_name"])
    assert config.algorithm.algorithm_type == ("grpo_verl" if name.startswith("grpo") else "ppo")


def test_the_file_with_all_keys_of_verl_and_their_defaults_is_accepted() -> None:
    config, problems = planned(SEEDS / "verl_0_9_defaults.yaml", "actor_rollout_ref.rollout.name=vllm")
    told = [(p.code, p.key) for p in problems]
    assert told == [
        ("W1943", "actor_rollout_ref.actor.optim.clip_grad"), ("W1941", "trainer.n_gpus_per_node"),
        ("W1941", "trainer.save_freq"),
    ]  # fmt: skip
    assert config.algorithm.advantage_fn == "verl_gae" and config.buffer.batch_size == 1024


def test_what_nobody_chose_is_told_together_and_what_was_chosen_by_itself() -> None:
    file = SEEDS / "verl_0_9_defaults.yaml"
    chosen = ["actor_rollout_ref.actor.use_torch_compile=false", "actor_rollout_ref.rollout.agent.num_workers=4"]
    chosen += ["critic.optim.clip_grad=0.5", "+actor_rollout_ref.rollout.name=torch", "trainer.n_gpus_per_node=0"]
    opened = open_source(file, chosen)
    told = {problem.key: problem.code for problem in opened.problems}
    together = next(problem for problem in opened.problems if problem.code == "W1943")
    assert opened.translation is not None and opened.translation.shipped[0].key == together.key
    assert together.message.startswith(f"{len(opened.translation.shipped)} values")
    assert str(file) in str(together.suggestion)
    alone = {key: code for key, code in told.items() if code in ("W1940", "W1942")}
    assert alone == {
        "actor_rollout_ref.actor.use_torch_compile": "W1940", "actor_rollout_ref.rollout.agent": "W1940",
        "critic.optim.clip_grad": "W1942",
    }  # fmt: skip
    text = converted(opened)
    assert all(f"# {problem.key}: " in text for problem in opened.translation.shipped)


def test_what_a_file_takes_from_another_key_was_not_chosen() -> None:
    actor = {**SMALL["actor_rollout_ref"]["actor"], "rollout_n": "${actor_rollout_ref.rollout.n}"}
    values = {**SMALL, "actor_rollout_ref": {**SMALL["actor_rollout_ref"], "actor": actor}}
    assert {problem.code for problem in open_source(values).problems} == {"W1943"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("actor_rollout_ref.actor.fsdp_config.qat.enable=true", "E1940"),
        ("actor_rollout_ref.actor.qat={enable:true}", "E1940"),
        ("actor_rollout_ref.ref.fsdp_config.model_dtype=fp16", "E1940"),
        ("actor_rollout_ref.actor.pad_to_length=true", "W1940"),
        ("critic.fsdp.pad_to_length_bucket=64", "W1940"),
        ("actor_rollout_ref.rollout.full_determinism=true", "E1940"),
        ("actor_rollout_ref.rollout.mtp.enable=true", "E1940"),
        ("critic.model.lora_adapter_path=/a", "E1940"),
        ("reward_model.sandbox_fusion.url=http://sandbox", "E1940"),
        ("reward.reward_manager.module.path=a.py", "E1940"),
        ("reward.reward_model.enable_resource_pool=true", "E1940"),
        ("skip.rollout.enable=true", "E1940"),
    ],
)
def test_what_a_default_leaves_off_is_told_by_name(change: str, code: str) -> None:
    found = open_source(SMALL, ["+" + change]).problems
    assert [p.code for p in found] == [code] and change.startswith(found[0].key), found


def test_the_command_line_takes_a_published_command(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("defaults: [ppo_trainer]\n")
    command = ["validate", "-c", str(tmp_path / "base.yaml"), "--schema-only"]
    shown = runner.invoke(app, [*command, *EXAMPLES["ppo qwen2 7b, a reward model"]])
    assert shown.exit_code == 0 and "older name of critic.model.use_remove_padding" in " ".join(shown.output.split())
    wrong = runner.invoke(app, [*command, *EXAMPLES["ppo gemma 2b"], "critic.ppo_mico_batch_size=4"])
    assert wrong.exit_code == 2 and "ppo_micro_batch_size" in wrong.output


def test_several_loggers_are_several_monitors() -> None:
    config, problems = planned(SMALL, "+trainer.logger=['console','wandb','tensorboard']")
    assert config.monitor.monitor_type == ("wandb", "tensorboard") and config.monitor.verl_names
    assert not [problem for problem in problems if problem.is_error]
    assert planned(SMALL, "+trainer.logger=[console]")[0].monitor.monitor_type == ""
    ours = {"monitor_type": ["wandb", "mlflow"], "monitor_args": {"uri": "http://h", "base_url": "http://w", "urj": 1}}
    told = [p for p in planned(SMALL, *(f"monitor.{k}={v}" for k, v in ours.items()))[1] if p.key.startswith("monitor")]
    assert [(p.code, p.key) for p in told] == [("E1703", "monitor.monitor_args.urj")], told
    assert codes(planned(SMALL, "monitor.monitor_type=[wandb,nadb]")[1])["monitor.monitor_type"] == "E1301"


def test_a_section_without_its_switch_asks_for_nothing() -> None:
    turns = "actor_rollout_ref.rollout.multi_turn"
    assert codes(open_source(SMALL, [f"+{turns}.format=hermes"]).problems) == {}
    assert "E1940" in codes(open_source(SMALL, [f"+{turns}.enable=true"]).problems).values()
    assert "E1940" in codes(open_source(SMALL, ["+algorithm.filter_groups.enable=true"]).problems).values()
    assert put(open_source(SMALL, ["+algorithm.filter_groups.metric=acc"]), "algorithm.algorithm_type") == "grpo_verl"


def test_how_many_answers_are_shown_changes_nothing_under_all_its_names() -> None:
    for name in ("log_val_generations", "val_generations_to_log", "val_generations_to_log_to_wandb"):
        told = codes(open_source(SMALL, [f"+trainer.{name}=5"]).problems)
        assert "W1940" in told.values() and set(told) == {"trainer." + name, *told}, told
        assert not codes(open_source(SMALL, ["+trainer.log_val_generations=0"]).problems)


@pytest.mark.difference("`compat: verl-0.6`")
def test_an_older_release_averages_micro_batches_or_is_refused_by_name() -> None:
    config, problems = planned(SMALL, "+compat=verl-0.6", "algorithm.adv_estimator=gae",
                               "+critic.ppo_micro_batch_size_per_gpu=2")  # fmt: skip
    assert config.algorithm.loss_agg_scope == "micro_batch" and not [p for p in problems if p.is_error]
    nested = {"af_output_dir": "/out", "compat": "verl-0.6", "backend_config": SMALL}
    assert put(open_source(nested), "algorithm.loss_agg_scope") == "micro_batch"
    assert planned(SMALL, "+compat=verl-0.9")[0].algorithm.loss_agg_scope == "mini_batch"
    actor = "actor_rollout_ref.actor"
    for change, key in {
        "+compat=verl-0.5": "compat",
        f"+{actor}.use_dynamic_bsz=true": f"{actor}.use_dynamic_bsz",
        f"+{actor}.strategy=megatron": f"{actor}.strategy",
        f"+{actor}.loss_agg_mode=token-sum": f"{actor}.loss_agg_mode",
        f"~{actor}.ppo_micro_batch_size_per_gpu": "compat",
    }.items():
        found = open_source(SMALL, ["+compat=verl-0.6", change] if "compat" not in change else [change]).problems
        assert key in [problem.key for problem in found if problem.is_error], change
    many = ["+compat=verl-0.6", "trainer.n_gpus_per_node=8", "actor_rollout_ref.rollout.name=vllm"]
    assert codes([p for p in open_source(SMALL, many).problems if p.key == "compat"]) == {"compat": "W1941"}


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ("algorithm.policy_loss_fn=ppo", "algorithm.policy_loss_fn"),
        ("trainer.use_dynamic_bsz=true", "trainer.use_dynamic_bsz"),
        ("trainer.trainer_strategy=megatron", "trainer.trainer_strategy"),
    ],
)
def test_micro_batches_are_averaged_only_where_they_are_fixed(change: str, other: str) -> None:
    problems = planned(SMALL, "+compat=verl-0.6", change)[1]
    found = [problem for problem in problems if problem.code == "E1958"]
    assert len(found) == 1 and found[0].key == "compat" and other.rpartition(".")[2] in str(found[0])


@pytest.mark.difference("KL term and entropy beside `token-sum`")
def test_what_sums_the_policy_loss_alone_is_refused_beside_other_terms() -> None:
    mode = "actor_rollout_ref.actor.loss_agg_mode"
    assert open_source(SMALL, [f"+{mode}=token-sum"]).problems == []
    for term in ("algorithm.adv_estimator=gae", "+actor_rollout_ref.actor.use_kl_loss=true",
                 "+actor_rollout_ref.actor.entropy_coeff=0.1"):  # fmt: skip
        assert codes(open_source(SMALL, [f"+{mode}=token-sum", term]).problems)[mode] == "E1940", term


@pytest.mark.difference("`n_gpus_per_node` above 1", "`save_freq: -1`")
def test_what_is_done_otherwise_is_told() -> None:
    words = ["trainer.n_gpus_per_node=8", "actor_rollout_ref.rollout.name=vllm", "+trainer.save_freq=-1"]
    config, problems = planned(SMALL, *words)
    said = {problem.key: problem.message for problem in problems if problem.code == "W1941"}
    assert "4 are for engines and 4 for the trainer" in said["trainer.n_gpus_per_node"]
    assert (config.cluster.trainer_gpu_num, config.explorer.rollout_model.engine_num) == (4, 4)
    assert "keeps the last step's weights only" in said["trainer.save_freq"] and config.trainer.save_interval == 0


@pytest.mark.parametrize(
    ("gpus", "tensor", "pipeline", "engines", "sizes", "trainers"),
    [
        (2, 2, 1, 1, (1, 1), 1),
        (2, 1, 2, 1, (1, 1), 1),
        (3, 2, 1, 1, (2, 1), 1),
        (4, 4, 1, 1, (2, 1), 2),
        (4, 2, 2, 1, (1, 2), 2),
        (6, 6, 1, 1, (3, 1), 3),
        (8, 8, 1, 1, (4, 1), 4),
        (8, 2, 1, 2, (2, 1), 4),
    ],
)
def test_an_engine_that_would_have_all_devices_leaves_some_to_the_trainer(
    gpus: int, tensor: int, pipeline: int, engines: int, sizes: tuple[int, int], trainers: int
) -> None:
    rollout = "actor_rollout_ref.rollout"
    words = [f"trainer.n_gpus_per_node={gpus}", f"{rollout}.name=vllm"]
    words += [f"+{rollout}.tensor_model_parallel_size={tensor}", f"+{rollout}.pipeline_model_parallel_size={pipeline}"]
    config, problems = planned(SMALL, *words)
    assert not [problem for problem in problems if problem.is_error], problems
    model = config.explorer.rollout_model
    assert (model.engine_num, model.tensor_parallel_size, model.pipeline_parallel_size) == (engines, *sizes)
    assert config.cluster.trainer_gpu_num == trainers
    told = {p.key for p in problems if p.code == "W1941" and "instead of" in p.message}
    asked = {"tensor": (tensor, sizes[0]), "pipeline": (pipeline, sizes[1])}
    assert told == {f"{rollout}.{name}_model_parallel_size" for name, (was, now) in asked.items() if was != now}
