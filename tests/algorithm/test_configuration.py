"""What a configuration makes of an algorithm's name: its own defaults, merged arguments, and what cannot learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.common.config.conftest import MINIMAL
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, POLICY_LOSS_FN
from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, Finding, examine
from trinity.common.errors import ConfigError
from trinity.explorer.assembly import build_advantage_fn
from trinity.launch.run import RunOptions, plan_run

ONLINE = sorted(n for n in ALGORITHM_TYPE if ALGORITHM_TYPE.get(n).schema == "experience")
SERVED_GROUPS = sorted(name for name, entry in ADVANTAGE_FN.contents.items() if entry.compares)
NAN = float("nan")
FILTER = {"experience_pipeline": {"operators": [{"name": "reward_filter", "args": {"threshold": 1.0}}]}}

EXPERT = {"trainer_input": {"auxiliary_buffers": {"sft_dataset": {"path": "expert.jsonl"}}}}


def _write(folder: Path, algorithm: dict[str, Any], **sections: Any) -> Path:
    tree = yaml.safe_load(MINIMAL) | {"algorithm": algorithm}
    for name, values in sections.items():
        tree[name] = tree.get(name, {}) | values
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def _problems(folder: Path, algorithm: dict[str, Any], **sections: Any) -> list[Finding]:
    path = _write(folder, algorithm, **sections)
    return [p for p in examine(path, (), catalogue=BUILT_IN, cwd=folder)[1] if p.is_error and p.code != "E1301"]


def _resolved(folder: Path, algorithm: dict[str, Any], **sections: Any) -> Config:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    model = {"model_path": str(folder / "model")}
    path = _write(folder, algorithm, model=yaml.safe_load(MINIMAL)["model"] | model, **sections)
    return plan_run(path, RunOptions()).stages[0].config


@pytest.mark.parametrize("name", ONLINE)
def test_an_algorithm_brings_its_own_defaults(tmp_path: Path, name: str) -> None:
    sections: dict[str, Any] = {"data_processor": FILTER} if name == "raft" else {}
    if name in ("mix", "mix_chord"):
        sections["buffer"] = EXPERT
    if "teacher_logprobs" in ADVANTAGE_FN.contents[ALGORITHM_TYPE.contents[name].args["advantage_fn"] or "grpo"].needs:
        sections = {"explorer": {"auxiliary_models": [{"model_path": str(tmp_path / "model")}]}}
    config = _resolved(tmp_path, {"algorithm_type": name}, **sections)
    defaults = ALGORITHM_TYPE.contents[name].args
    algorithm = config.algorithm
    assert algorithm.repeat_times == defaults["repeat_times"]
    assert config.buffer.train_batch_size == 4 * defaults["repeat_times"] * (2 if "buffer" in sections else 1)
    for key in ("advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn"):
        assert vars(algorithm)[key] == defaults[key]
        assert (defaults.get(f"{key}_args") or {}).items() <= (vars(algorithm)[f"{key}_args"] or {}).items()
    assert algorithm.loss_agg_mode == (algorithm.policy_loss_fn_args or {}).get("loss_agg_mode", "token-mean")


def test_written_arguments_are_merged_with_those_of_the_type_and_of_the_function(tmp_path: Path) -> None:
    algorithm = {"algorithm_type": "dapo", "policy_loss_fn_args": {"clip_range_high": 0.3}}
    args = _resolved(tmp_path, algorithm).algorithm.policy_loss_fn_args
    assert args is not None
    assert (args["clip_range_low"], args["clip_range_high"], args["clip_ratio_c"]) == (0.2, 0.3, 3.0)
    other = _resolved(tmp_path, algorithm | {"policy_loss_fn": "cispo"}).algorithm.policy_loss_fn_args
    assert other is not None and (other["clip_range_low"], other["clip_range_high"]) == (1.0, 0.3)


@pytest.mark.difference("Part of a function's `*_args`")
def test_an_unknown_argument_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    algorithm = {"algorithm_type": "sapo", "policy_loss_fn_args": {"tau_neq": 1.0}}
    (problem,) = _problems(tmp_path, algorithm)
    assert problem.code == "E1703" and problem.suggestion == "did you mean `tau_neg`?"
    assert problem.message == "`sapo` has no argument `tau_neq`; known: is_gate_held, loss_agg_mode, tau_neg, tau_pos"


@pytest.mark.difference("An argument of another kind, such as text for a number")
@pytest.mark.parametrize(
    ("algorithm", "key", "rule", "hint"),
    [
        ({"policy_loss_fn_args": {"clip_range": "wide"}}, "policy_loss_fn_args.clip_range", "a number", "0.2"),
        ({"policy_loss_fn_args": {"clip_range": True}}, "policy_loss_fn_args.clip_range", "a number", "0.2"),
        ({"policy_loss_fn_args": {"clip_ratio_c": NAN}}, "policy_loss_fn_args.clip_ratio_c", "a number", "3.0"),
        ({"kl_loss_fn_args": {"adaptive": "yes"}}, "kl_loss_fn_args.adaptive", "true or false", "False"),
        ({"advantage_fn_args": {"std_cal_level": 1}}, "advantage_fn_args.std_cal_level", "a text", "group"),
        ({"policy_loss_fn_args": {"loss_agg_mode": "token-meen"}}, "policy_loss_fn_args.loss_agg_mode",
         "one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm", "`token-mean`"),
        ({"policy_loss_fn_args": {"loss_agg_mode": "token-sum"}}, "policy_loss_fn_args.loss_agg_mode",
         "one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm", ""),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_is_found_before_anything_is_loaded(
    tmp_path: Path, algorithm: dict[str, Any], key: str, rule: str, hint: str
) -> None:
    (problem,) = _problems(tmp_path, algorithm)
    assert (problem.code, problem.key, problem.rule) == ("E1704", f"algorithm.{key}", rule)
    assert hint in (problem.suggestion or "") and f"must be {rule}, got " in problem.message


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("grpo", {"std_cal_level": "taks"}, "std_cal_level must be group or batch, got 'taks'"),
        ("opmd", {"tau": 0}, "tau must be > 0, got 0"),
        ("gigpo", {"gamma": 1.5}, "gamma must be in .0, 1., got 1.5"),
    ],
)
def test_a_value_that_the_advantage_of_the_explorer_refuses_is_a_configuration_error(
    tmp_path: Path, name: str, args: dict[str, Any], message: str
) -> None:
    config = _resolved(tmp_path, {"algorithm_type": name})
    algorithm = config.algorithm.model_copy(update={"advantage_fn_args": config.algorithm.advantage_fn_args | args})
    config = config.model_copy(update={"algorithm": algorithm})
    with pytest.raises(ConfigError, match=f"algorithm.advantage_fn_args of {name}: {message}") as caught:
        build_advantage_fn(config)
    assert caught.value.code == "E1302"


def test_numbers_of_either_kind_and_null_are_arguments(tmp_path: Path) -> None:
    args = {"clip_range": None, "clip_range_low": 0.2, "clip_range_high": 1, "clip_ratio_c": 3}
    assert not _problems(tmp_path, {"policy_loss_fn_args": args})


def test_a_sum_over_tokens_is_the_policy_losss_own(tmp_path: Path) -> None:
    algorithm = {"algorithm_type": "gpg", "policy_loss_fn_args": {"loss_agg_mode": "token-sum"}}
    config = _resolved(tmp_path, algorithm)
    assert config.algorithm.loss_agg_mode == "token-mean"
    assert config.algorithm.policy_loss_fn_args == {"loss_agg_mode": "token-sum"}


@pytest.mark.difference("GRPO and others that compare rollouts, with one rollout")
@pytest.mark.parametrize("advantage", SERVED_GROUPS)
def test_one_rollout_a_task_has_nothing_to_be_compared_with(tmp_path: Path, advantage: str) -> None:
    components = {"advantage_fn_args": {"gdpo_reward_keys": ["a"]}} if "gdpo" in advantage else {}
    algorithm = {"algorithm_type": "grpo", "advantage_fn": advantage, "repeat_times": 1} | components
    (problem,) = _problems(tmp_path, algorithm)
    assert problem.code == "E1801" and problem.suggestion == "write `repeat_times: 8`"
    assert problem.message == (
        f"`algorithm.repeat_times` must be >= 2 for grpo, got 1: advantage_fn {advantage} compares the rollouts of a "
        "task with each other"
    )


@pytest.mark.parametrize("name", ["reinforceplusplus", "topr"])
def test_one_rollout_a_task_is_enough_where_nothing_is_compared(tmp_path: Path, name: str) -> None:
    assert not _problems(tmp_path, {"algorithm_type": name, "repeat_times": 1})


@pytest.mark.difference("Groups in a training batch", "Lengths, batch sizes, modes that do not fit")
@pytest.mark.parametrize(("size", "nearest"), [(30, "use 28 or 32"), (3, "use 4")])
def test_a_batch_that_splits_a_group_is_refused_with_the_nearest_sizes(tmp_path: Path, size: int, nearest: str) -> None:
    buffer = yaml.safe_load(MINIMAL)["buffer"] | {"train_batch_size": size}
    algorithm = {"algorithm_type": "rloo", "repeat_times": 4}
    problem = next(p for p in _problems(tmp_path, algorithm, buffer=buffer) if p.code == "E1830")
    assert problem.key == "buffer.train_batch_size" and problem.suggestion == nearest
    assert problem.message.startswith(f"`buffer.train_batch_size` ({size}) must be a multiple of repeat_times (4)")
    pipeline = algorithm | {"algorithm_type": "grpo"}
    assert "E1830" not in {p.code for p in _problems(tmp_path, pipeline, buffer=buffer)}


@pytest.mark.difference("`kl_penalty_fn` of an algorithm whose advantage is made by the explorer")
def test_a_penalty_in_a_reward_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, {"algorithm_type": "grpo", "kl_penalty_fn": "k1"})
    assert problem.code == "E1831" and problem.key == "algorithm.kl_penalty_fn"
    assert "has no effect with advantage_fn grpo" in problem.message
    assert not _problems(tmp_path, {"algorithm_type": "grpo_verl", "kl_penalty_fn": "k1"})


@pytest.mark.difference("RAFT without a filter")
def test_raft_without_a_filter_is_told_that_it_learns_from_all_rollouts(tmp_path: Path) -> None:
    for sections, codes in (({}, ["W1832"]), ({"data_processor": FILTER}, [])):
        path = _write(tmp_path, {"algorithm_type": "raft"}, **sections)
        found = examine(path, (), catalogue=BUILT_IN, cwd=tmp_path)[1]
        assert [p.code for p in found if p.code.endswith("1832")] == codes
        assert not [p for p in found if p.is_error and p.code != "E1301"]


def test_dr_grpo_is_a_mean_over_responses_of_their_sums_and_uses_no_deviation(tmp_path: Path) -> None:
    algorithm = _resolved(tmp_path, {"algorithm_type": "dr_grpo"}).algorithm
    advantages = ADVANTAGE_FN.get(algorithm.advantage_fn)(**algorithm.advantage_fn_args or {})
    assert advantages.compare([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    loss_fn = POLICY_LOSS_FN.get(algorithm.policy_loss_fn)(**algorithm.policy_loss_fn_args or {})
    zeros, counted = torch.zeros(2, 4), torch.tensor([[True] * 4, [True, False, False, False]])
    loss, _ = loss_fn(logprob=zeros, old_logprob=zeros, action_mask=counted, advantages=torch.ones(2, 4))
    assert float(loss) == -(4 + 1) / 2 / 4, "4 is the width here; the trainer divides by max_response_tokens"


def test_a_penalty_over_whole_distributions_is_a_penalty_as_others_are(tmp_path: Path) -> None:
    assert not _problems(tmp_path, {"algorithm_type": "grpo_verl", "kl_penalty_fn": "full"})
    assert not _problems(tmp_path, {"algorithm_type": "grpo_verl", "kl_loss_fn": "full"})
