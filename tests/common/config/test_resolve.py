"""Derived values: each with its reason, none where something was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.rows import SFT, with_
from trinity.common.config import Catalogue, Config, ConfigErrors, dump_config, load_config, load_plan
from trinity.common.errors import ConfigError

BUFFER = {"experience_buffer": {"name": "b"}}


def only(examined: Examine, text: str, *overrides: str) -> Config:
    plan, problems = examined(text, *overrides)
    assert not [p.render() for p in problems if p.is_error]
    return plan.stages[0].config


def reasons(examined: Examine, text: str) -> dict[str, str]:
    return {d.key: d.reason for d in examined(text)[0].stages[0].derived}


@pytest.mark.difference("`algorithm.repeat_times`", "`algorithm.algorithm_type`, if it is not written")
def test_the_minimal_file_becomes_complete(examined: Examine, tmp_path: Path) -> None:
    config = only(examined, MINIMAL)
    job = tmp_path / "checkpoints" / "p" / "n"
    assert config.checkpoint_job_dir == str(job)
    assert config.ray_namespace == "p/n"
    assert (config.model.max_prompt_tokens, config.model.max_response_tokens) == (64, 64)
    assert config.buffer.train_batch_size == 4 * 8
    assert config.algorithm.repeat_times == 8
    assert config.algorithm.kl_loss_fn_args == {"adaptive": False, "kl_coef": 0.001, "target_kl": None, "horizon": None}
    assert config.explorer.rollout_model.engine_type == "torch"
    assert config.synchronizer.sync_method == "memory"
    output = config.buffer.trainer_input.experience_buffer
    assert output is not None
    assert (output.storage_type, output.path) == ("queue", f"sqlite:///{job}/buffer/experience.db")
    taskset = config.buffer.explorer_input.taskset
    assert taskset is not None
    assert (taskset.repeat_times, taskset.rollout_args.max_tokens, taskset.rollout_args.temperature) == (8, 64, 1.0)
    actor = config.trainer.trainer_config.actor_rollout_ref.actor
    assert (actor.ppo_mini_batch_size, actor.ppo_max_token_len_per_gpu, actor.grad_clip) == (32, 256, 1.0)
    assert actor.optim.lr == config.algorithm.optimizer.lr == 1e-6


def test_a_mini_batch_that_is_written_is_overridden_and_told(examined: Examine) -> None:
    actor = "trainer.trainer_config.actor_rollout_ref.actor"
    plan, problems = examined(MINIMAL, f"{actor}.ppo_mini_batch_size=7")
    assert plan.stages[0].config.trainer.trainer_config.actor_rollout_ref.actor.ppo_mini_batch_size == 32
    ((code, message),) = [(p.code, p.message) for p in problems]
    assert code == "W1816" and message.endswith("ppo_mini_batch_size: 7` is overridden by buffer.train_batch_size (32)")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_prompt_tokens": 10, "max_response_tokens": 20}, (30, 10, 20)),
        ({"max_model_len": 31}, (31, 15, 16)),
        ({"max_model_len": 31, "max_prompt_tokens": 30}, (31, 30, 1)),
        ({"max_model_len": 31, "max_response_tokens": 11}, (31, 20, 11)),
        ({"max_model_len": 31, "max_prompt_tokens": 5, "max_response_tokens": 11}, (31, 5, 11)),
    ],
)
def test_lengths_follow_from_each_other(examined: Examine, given: dict[str, int], expected: tuple[int, ...]) -> None:
    lines = "\n  ".join(f"{key}: {value}" for key, value in given.items())
    model = only(examined, with_("", max_model_len=lines)).model
    assert (model.max_model_len, model.max_prompt_tokens, model.max_response_tokens) == expected


def test_a_token_budget_below_the_longest_sequence_is_raised(examined: Examine) -> None:
    text = with_("trainer: {max_token_len_per_gpu: 100}\n")
    config = only(examined, text)
    assert config.trainer.max_token_len_per_gpu == 128
    assert config.trainer.trainer_config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 128
    assert "raised from 100" in reasons(examined, text)["trainer.max_token_len_per_gpu"]


@pytest.mark.parametrize(
    ("batch", "repeat", "explorer", "size", "trainer", "is_right"),
    [
        (4, 8, 1, 32, 1, True),
        (4, 8, 1, 16, 2, True),
        (4, 8, 2, 32, 2, True),
        (4, 8, 1, 16, 1, False),
        (4, 8, 2, 32, 1, False),
    ],
)
def test_explorer_and_trainer_keep_one_rhythm(
    examined: Examine, batch: int, repeat: int, explorer: int, size: int, trainer: int, is_right: bool
) -> None:
    text = with_(
        f"  train_batch_size: {size}\nalgorithm: {{repeat_times: {repeat}}}\nsynchronizer: "
        f"{{explorer_sync_interval: {explorer}, trainer_sync_interval: {trainer}}}\n",
        batch_size=f"batch_size: {batch}",
    )
    wrong = [p for p in examined(text)[1] if p.code == "E1824"]
    assert bool(wrong) != is_right
    if wrong:
        assert f"makes {batch * repeat * explorer} " in wrong[0].message
        assert f"takes {size * trainer} " in wrong[0].message


def test_filters_may_leave_the_trainer_less(examined: Examine) -> None:
    text = with_("  train_batch_size: 30\nalgorithm: {advantage_fn_args: {std_threshold: 0.0}}\n")
    assert not [p for p in examined(text)[1] if p.is_error]
    more = with_("  train_batch_size: 34\nalgorithm: {advantage_fn_args: {std_threshold: 0.0}}\n")
    assert [p.rule for p in examined(more)[1] if p.code == "E1824"] == [
        "the trainer's number is at most the explorer's"
    ]


def test_training_repeats_follow_the_algorithm_only_if_unset(examined: Examine) -> None:
    evaluation = "    default_workflow_type: math_workflow\n"
    evaluation += "    eval_tasksets: [{path: e, name: a}, {path: f, repeat_times: 3}]\n"
    explorer_input = only(examined, with_(evaluation)).buffer.explorer_input
    assert explorer_input.taskset is not None
    assert explorer_input.taskset.repeat_times == 8
    assert [t.repeat_times for t in explorer_input.eval_tasksets] == [1, 3]
    assert [t.name for t in explorer_input.eval_tasksets] == ["a", "eval_taskset_1"]
    text = with_("      repeat_times: 4\n  train_batch_size: 16\n")
    taskset = only(examined, text).buffer.explorer_input.taskset
    assert taskset is not None and taskset.repeat_times == 4


def test_workflow_and_reward_are_handed_down(examined: Examine) -> None:
    text = with_(
        "    default_workflow_type: simple_workflow\n    default_eval_workflow_type: async_math_workflow\n"
        "    default_reward_fn_type: math_reward\n    eval_tasksets: [{path: e}]\n",
        default_workflow_type="split: train",
    )
    explorer_input = only(examined, text).buffer.explorer_input
    assert explorer_input.taskset is not None
    assert explorer_input.taskset.default_workflow_type == "simple_workflow"
    assert explorer_input.eval_tasksets[0].default_workflow_type == "async_math_workflow"
    assert explorer_input.eval_tasksets[0].default_reward_fn_type == "math_reward"


@pytest.mark.parametrize(
    ("written", "path", "backup"),
    [
        ("sqlite:///gsm8k.db", "sqlite:///{cwd}/gsm8k.db", None),
        ("sqlite:////abs/gsm8k.db", "sqlite:////abs/gsm8k.db", None),
        ("data/gsm8k.db", "sqlite:///{cwd}/data/gsm8k.db", None),
        ("postgresql://host/db", "postgresql://host/db", None),
        ("backup.jsonl", "sqlite:///{cwd}/checkpoints/p/n/buffer/experience.db", "{cwd}/backup.jsonl"),
    ],
)
def test_the_place_of_a_queue(examined: Examine, tmp_path: Path, written: str, path: str, backup: str | None) -> None:
    text = with_(f"  trainer_input: {{experience_buffer: {{path: '{written}'}}}}\n")
    output = only(examined, text).buffer.trainer_input.experience_buffer
    assert output is not None
    assert output.path == path.format(cwd=tmp_path)
    assert output.backup_path == (backup and backup.format(cwd=tmp_path))


def test_storage_of_a_dataset_algorithm_is_a_file(examined: Examine) -> None:
    config = only(examined, SFT)
    output = config.buffer.trainer_input.experience_buffer
    assert output is not None
    assert (output.storage_type, output.path, output.schema_type) == ("file", "d.jsonl", "sft")
    assert config.synchronizer.sync_method == "checkpoint"


def test_form_of_rows_follows_from_the_columns_named(examined: Examine) -> None:
    plain = only(examined, with_("      format: {prompt_key: q}\n")).buffer.explorer_input.taskset
    messages = only(examined, with_("      format: {messages_key: m}\n")).buffer.explorer_input.taskset
    open_ = only(examined, MINIMAL).buffer.explorer_input.taskset
    assert plain is not None and messages is not None and open_ is not None
    assert (plain.format.prompt_type, messages.format.prompt_type, open_.format.prompt_type) == (
        "plaintext",
        "messages",
        None,
    )


def test_nccl_in_one_process_is_a_copy_in_memory(examined: Examine) -> None:
    text = with_("synchronizer: {sync_method: nccl}\n")
    assert only(examined, text).synchronizer.sync_method == "memory"
    assert "memory" in reasons(examined, text)["synchronizer.sync_method"]


def test_the_veRL_tree_and_the_plain_keys_hold_one_value(examined: Examine) -> None:
    tree = (
        "trainer: {trainer_config: {actor_rollout_ref: {actor: {grad_clip: 0.5, use_dynamic_bsz: false, "
        "optim: {lr: 1e-4, warmup_style: cosine}}}}}\n"
    )
    config = only(examined, with_(tree))
    assert config.trainer.grad_clip == 0.5
    assert config.trainer.use_dynamic_bsz is False
    assert config.algorithm.optimizer.lr == 1e-4
    assert config.algorithm.optimizer.lr_scheduler_type == "cosine"
    assert config.trainer.trainer_config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz is False


@pytest.mark.difference("Part of a function's `*_args`")
def test_partial_arguments_keep_the_other_defaults(examined: Examine) -> None:
    config = only(examined, with_("algorithm: {policy_loss_fn_args: {clip_range: 0.1}}\n"))
    assert config.algorithm.policy_loss_fn_args == {
        "clip_range": 0.1,
        "clip_range_low": None,
        "loss_agg_mode": "token-mean",
    }


def test_the_aggregation_reaches_the_policy_loss(examined: Examine) -> None:
    config = only(examined, with_("algorithm: {loss_agg_mode: seq-mean-token-mean}\n"))
    assert config.algorithm.policy_loss_fn_args is not None
    assert config.algorithm.policy_loss_fn_args["loss_agg_mode"] == "seq-mean-token-mean"


def test_steps_of_one_side_give_those_of_the_other(examined: Examine) -> None:
    config = only(examined, with_("  total_steps: 10\n"))
    assert (config.buffer.total_steps, config.trainer.total_steps) == (10, 10)
    twice = "  total_steps: 10\n  train_batch_size: 16\n"
    twice += "synchronizer: {explorer_sync_interval: 1, trainer_sync_interval: 2}\n"
    assert only(examined, with_(twice)).trainer.total_steps == 20


def test_evaluation_falls_on_synchronisations(examined: Examine) -> None:
    text = with_("explorer: {eval_interval: 25}\nsynchronizer: {sync_interval: 10}\n")
    assert only(examined, text).explorer.eval_interval == 20


def test_defaults_of_the_guide() -> None:
    config = Config.model_validate({"buffer": {"explorer_input": {"taskset": {}}, "trainer_input": BUFFER}})
    assert (config.mode, config.seed, config.deterministic) == ("both", 42, False)
    assert (config.model.min_response_tokens, config.model.enable_prompt_truncation) == (1, True)
    assert (config.model.custom_chat_template, config.model.chat_template_path) == (None, None)
    assert (config.trainer.trainer_strategy, config.trainer.save_strategy) == ("fsdp", "unrestricted")
    assert (config.trainer.save_interval, config.trainer.save_hf_checkpoint) == (0, "last")
    explorer = config.explorer
    assert (explorer.rollout_model.engine_type, explorer.rollout_model.enable_history) == ("auto", False)
    assert (explorer.over_rollout.ratio, explorer.runner_state_report_interval) == (0.0, 0)
    assert (explorer.dynamic_timeout.enable, explorer.dynamic_timeout.ratio) == (False, 3.0)
    taskset, output = config.buffer.explorer_input.taskset, config.buffer.trainer_input.experience_buffer
    assert taskset is not None and output is not None
    assert (taskset.split, taskset.subset_name, taskset.storage_type) == ("train", None, "file")
    assert (output.max_read_timeout, output.replay_buffer.enable) == (1800.0, False)
    assert output.replay_buffer.reuse_cooldown_time is None
    assert (config.log.level, config.log.group_by_node, config.monitor.enable_ray_timeline) == ("INFO", False, False)


@pytest.mark.parametrize("written", ["yes", "on", "Yes", "true", "True"])
def test_words_for_true(examined: Examine, written: str) -> None:
    assert only(examined, with_(f"deterministic: {written}\n")).deterministic is True


@pytest.mark.parametrize("written", ["1e-6", '"1e-6"', "1.0e-06", "0.000001"])
def test_a_small_number_is_a_number(examined: Examine, written: str) -> None:
    assert only(examined, with_(f"algorithm: {{optimizer: {{lr: {written}}}}}\n")).algorithm.optimizer.lr == 1e-6


def test_the_bare_word_none_is_null(examined: Examine) -> None:
    lines = "max_model_len: 128\n  custom_chat_template: None\n  critic_model_path: None"
    plan, problems = examined(with_("log: {level: debug}\n", max_model_len=lines))
    assert not problems
    config = plan.stages[0].config
    assert config.model.custom_chat_template is None
    assert config.log.level == "DEBUG"


def test_written_and_derived_values_differ_from_defaults(examined: Examine) -> None:
    config = only(examined, with_("seed: 42\n"))
    assert "seed" in config.model_fields_set
    assert "deterministic" not in config.model_fields_set
    assert not config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.model_fields_set


def test_a_complete_configuration_can_be_saved_and_loaded(
    examined: Examine, tmp_path: Path, catalogue: Catalogue
) -> None:
    config = only(examined, MINIMAL)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    again = load_config(tmp_path / "config.yaml", catalogue=catalogue, cwd=tmp_path)
    assert again.model_dump() == config.model_dump()


def test_load_plan_raises_all_errors(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "run.yaml").write_text(with_("mode: trian\nlog: {level: x}\n"))
    with pytest.raises(ConfigErrors, match="2 errors in the configuration") as caught:
        load_plan(tmp_path / "run.yaml", catalogue=catalogue)
    assert [p.code for p in caught.value.problems] == ["E1301", "E1301"]


def test_a_configuration_without_catalogue_is_only_typed(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    assert load_config(tmp_path / "run.yaml", ["buffer.batch_size=6"]).buffer.batch_size == 6
    with pytest.raises(ConfigErrors, match="unknown key"):
        load_config(tmp_path / "run.yaml", ["buffer.batch_sice=6"])


@pytest.mark.difference("A `Config` in a program")
def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ConfigError, match=r"`batch_size` cannot be set.*give values as overrides") as refused:
        Config().buffer.batch_size = 3
    assert refused.value.code == "E1013"
