"""Experience operators by numbers."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from typing import Any

import pytest

from trinity.buffer.operators import EXPERIENCE_OPERATORS, OPERATOR_CONTENTS
from trinity.common.errors import ConfigError
from trinity.common.experience import EID, Experience
from trinity.common.rewards.dapo_reward import MathDAPORewardFn


def group(task: int, rewards: list[Any], **fields: Any) -> list[Experience]:
    """Return one experience a reward, all of one task; each has two prompt and three response tokens."""
    return [
        Experience(EID(1, task, run), [5, 6, 7, 8, 9], prompt_length=2, reward=reward, **fields)
        for run, reward in enumerate(rewards)
    ]


def run(name: str, exps: list[Experience], **args: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the uids that operator `name` leaves, and its metrics."""
    left, metrics = asyncio.run(EXPERIENCE_OPERATORS.get(name)(**args).process(exps))
    return [e.eid.uid for e in left], metrics


def test_reward_filter_keeps_rewards_from_the_threshold_on() -> None:
    left, metrics = run("reward_filter", group(0, [0.4, 0.5, 0.6, None]), threshold=0.5)
    assert left == ["1/0/1/0/", "1/0/2/0/"]
    assert metrics == {"filtered_count": 2}


def test_reward_std_filter_drops_equal_rewards_and_groups_of_one() -> None:
    # population deviations: task 0: 0; task 1: 0.5 (0 and 1); task 2: one member; task 3: 0.1
    exps = group(0, [1.0, 1.0]) + group(1, [0.0, 1.0]) + group(2, [1.0]) + group(3, [0.4, 0.6])
    assert run("reward_std_filter", exps) == (["1/1/0/0/", "1/1/1/0/", "1/3/0/0/", "1/3/1/0/"], {"filtered_count": 3})
    assert run("reward_std_filter", exps, threshold=0.2)[0] == ["1/1/0/0/", "1/1/1/0/"]
    # What an operator before it has spoilt has no deviation; it is dropped after all operators.
    spoilt = group(1, [0.0, 1.0, float("nan")]) + group(2, [1.0, float("inf")])
    assert run("reward_std_filter", spoilt)[0] == ["1/1/0/0/", "1/1/1/0/", "1/1/2/0/"]


def test_invalid_reward_filter_drops_what_is_no_number() -> None:
    left, metrics = run("invalid_reward_filter", group(0, [1.0, None, math.nan, math.inf, 0.0]))
    assert left == ["1/0/0/0/", "1/0/4/0/"]
    assert metrics == {"filtered_count": 3}


def test_dapo_dynamic_sampling_keeps_mixed_groups_only() -> None:
    exps = group(0, [1.0] * 3) + group(1, [1.0] * 3) + group(2, [1.0] * 3) + group(3, [1.0] * 2)
    accuracies = [1, 1, 1] + [0, 0, 0] + [1, 0, 1] + [None, 1]
    for experience, accuracy in zip(exps, accuracies, strict=True):
        if accuracy is not None:
            experience.metrics["accuracy"] = accuracy
    left, metrics = run("dapo_dynamic_sampling", exps)
    assert left == ["1/2/0/0/", "1/2/1/0/", "1/2/2/0/", "1/3/0/0/", "1/3/1/0/"]
    assert metrics == {"filtered_count": 6, "missing_metric_count": 1}
    assert run("dapo_dynamic_sampling", exps, correct_threshold=1.0)[0] == []


def test_mask_response_truncated_takes_only_cut_responses_out_of_the_loss() -> None:
    exps = (
        group(0, [0.0], truncate_status="response_truncated")
        + group(1, [1.0])
        + group(2, [1.0], truncate_status="prompt_truncated")
    )
    assert exps[2].action_mask.tolist() == [False] * 3  # a cut prompt is answered by nothing that counts
    left, metrics = run("mask_response_truncated", exps)
    assert len(left) == 3
    assert [e.action_mask.tolist() for e in exps] == [[False] * 3, [True] * 3, [False] * 3]
    assert metrics == {"masked_count": 1}


def test_reward_shaping_applies_the_terms_in_order() -> None:
    first, second, third = group(0, [1.0, 2.0, 3.0])
    first.info |= {"quality": 0.5, "length": 4}
    second.info |= {"quality": 0.5, "length": 0}
    third.metrics |= {"quality": 1.0}
    terms = [
        {"stats_key": "quality", "op_type": "ADD", "weight": 2.0},
        {"stats_key": "length", "op_type": "div", "weight": 0.5},
    ]
    left, metrics = run("reward_shaping_mapper", [first, second, third], reward_shaping_configs=terms)
    # (1 + 2 * 0.5) / (0.5 * 4) = 1; a division by 0 drops; 3 + 2 * 1 = 5 and no length
    assert left == ["1/0/0/0/", "1/0/2/0/"]
    assert (first.reward, third.reward) == (1.0, 5.0)
    # the first by 0, the third by 2
    changes = {"reward_diff/mean": 1.0, "reward_diff/min": 0.0, "reward_diff/max": 2.0}
    assert metrics == {"missing_stats_count": 1, "filtered_count": 1} | changes


@pytest.mark.parametrize(("op", "expected"), [("ADD", 6.0), ("SUB", -2.0), ("MUL", 8.0), ("DIV", 0.5)])
def test_reward_shaping_operations(op: str, expected: float) -> None:
    (experience,) = group(0, [2.0], info={"x": 8})
    terms = [{"stats_key": "x", "op_type": op, "weight": 0.5}]
    run("reward_shaping_mapper", [experience], reward_shaping_configs=terms)
    assert experience.reward == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"op_type": "ADD"}, r"reward_shaping_configs\[0\] must have the key stats_key"),
        ({"stats_key": "x", "wieght": 1}, "must have the key stats_key and may have op_type and weight"),
        ({"stats_key": "x", "op_type": "POW"}, "op_type must be one of ADD, SUB, MUL, DIV, got 'POW'"),
        ({"stats_key": "x", "weight": "1"}, "weight must be a finite number, got '1'"),
    ],
)
def test_wrong_reward_shaping_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EXPERIENCE_OPERATORS.get("reward_shaping_mapper")([entry])


@pytest.mark.parametrize("name", OPERATOR_CONTENTS)
def test_every_operator_takes_an_empty_step(name: str) -> None:
    needed = {"data_juicer": {"operators": [{"text_length_filter": {}}]}}  # it asks nobody where there are no rows
    left, metrics = run(name, [], **needed.get(name, {}))
    assert left == [] and all(value == 0 for value in metrics.values())


def test_the_table_of_contents_imports_no_torch() -> None:
    program = "import sys, trinity.buffer.operators, trinity.buffer.pipelines; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("length", [1, 5, 6, 7, 9, 10, 14])
def test_the_penalty_of_long_responses_is_that_of_the_reward(length: int) -> None:
    exp = Experience(EID(1, 0, 0), list(range(2 + length)), prompt_length=2, reward=1.0)
    missing = Experience(EID(1, 0, 1), list(range(12)), prompt_length=2)
    args = {"max_response_length": 10, "cache_length": 4, "penalty_factor": 0.5}
    _, metrics = run("overlong_penalty_mapper", [exp, missing], **args)
    # 0 up to 6 tokens, then 1/8 a token, 0.5 from 10 tokens on.
    expected = -0.125 * min(max(length - 6, 0), 4)
    assert exp.reward == 1.0 + expected and exp.metrics["overlong_penalty"] == expected and missing.reward is None
    assert metrics == {"overlong_penalty/mean": expected}
    reward = MathDAPORewardFn(enable_overlong_penalty=True, **args)  # type: ignore[arg-type]
    assert reward(r"\boxed{2}", response_token=exp.tokens[2:], truth="2")["format_score"] == expected


@pytest.mark.parametrize(
    "args", [{"cache_length": 10}, {"cache_length": 0}, {"cache_length": 4, "penalty_factor": -1.0}, {}]
)
def test_a_penalty_that_cannot_grow_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cache_length"):
        EXPERIENCE_OPERATORS.build(
            "overlong_penalty_mapper", {"max_response_length": 10} | args, key="operators[0].args"
        )
