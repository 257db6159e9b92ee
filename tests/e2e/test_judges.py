"""The built-in workflows of mathematics, judges and tools in runs of two steps, and their judges when they fail."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_validate import app, runner
from tests.common.workflows.test_tool_call import ROW
from tests.e2e.tiny_run import TinyRun
from tests.engine.external.openai_server import answering
from tests.tiny import tiny_model

JUDGED = ["math_ruler_workflow", "async_math_ruler_workflow", "rubric_judge_workflow"]
NAMES = [
    "math_eval_workflow", "async_math_eval_workflow", "math_rm_workflow", "async_math_rm_workflow",
    "rubric_judge_openai_workflow", "math_trainable_ruler_workflow", "tool_call_workflow", *JUDGED,
]  # fmt: skip
KEY = "sk-canary-of-the-grader-1642"


def made(folder: Path, names: list[str], **changes: Any) -> TinyRun:
    """Return a run whose rows name the workflows, two steps of all of them."""
    run = TinyRun(folder)
    tiny_model(folder / "model", "llama", seed=1, scale=3.0, max_position_embeddings=4096)
    row = ROW | {"tools": json.loads(ROW["tools"]), "question": "1+2=", "rubric": [{"description": "is short"}]}
    rows = [row | {"how": name, "truth": row["answer"] if name == "tool_call_workflow" else "3"} for name in names]
    # No other of the workflows is without a reward function of its own.
    run.write_rows([one | {"reward": "accuracy_reward" if "_rm_" in one["how"] else None} for one in 2 * rows])
    run.change(
        model__max_model_len=4096,
        model__max_prompt_tokens=4080,
        buffer__batch_size=len(names),
        buffer__explorer_input__taskset__format={"prompt_key": "question", "response_key": "truth"},
        **changes,
    )
    taskset = run.tree["buffer"]["explorer_input"]["taskset"]
    taskset["format"]["workflow_key"] = "how"
    taskset["format"]["reward_fn_key"] = "reward"
    del run.tree["buffer"]["explorer_input"]["default_reward_fn_type"]
    return run


def outside() -> dict[str, Any]:
    server = {"model_name": "grader", "base_url_env": "JUDGE_URL"}
    return {"engine_type": "external", "model_path": "model", "external_model_config": server}


def test_each_workflow_explores_and_trains_two_steps(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        NAMES,
        buffer__explorer_input__taskset__workflow_args={"judge_model_name": "grader", "ground_truth_probability": 1.0},
        explorer__auxiliary_models=[outside()],
    )
    with answering('{"rating": 7}\n[0.25, 0.75]') as service:
        service.api_key = KEY
        variables = {"JUDGE_URL": service.url, "OPENAI_BASE_URL": service.url, "OPENAI_API_KEY": KEY}
        end = run.finish(environment=variables)
    assert end.status == 0, end.output[-3000:]
    steps = run.lines("explorer")[:2]
    assert [step["rollout/finished_task_count"] for step in steps] == [len(NAMES)] * 2, end.output[-3000:]
    for step in steps:
        assert not [
            step[f"rollout/{what}_run_count"]
            for what in ("failed", "timeout", "rejected")
            if step[f"rollout/{what}_run_count"]
        ]
        assert step["rollout/rating/mean"] == pytest.approx(0.7)
        assert step["rollout/tool_call/mean"] == 0.0 and "rollout/gold_reward/mean" in step
        assert step["rollout/reward_for_judge/mean"] == 0.0, "the tiny policy does not judge"
    bodies = [body for _, _, body in service.requests]
    # Of two steps: a comparison for each ruler, a rating for each of two responses and of two workflows.
    assert len(bodies) == 2 * (2 + 2 * 2) and {body["model"] for body in bodies} == {"grader"}
    assert len(run.lines("trainer")) >= 2
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]


@pytest.mark.difference("A judge's verdict that cannot be read")
def test_a_judge_that_does_not_judge_rejects_every_rollout_and_the_run_ends(tmp_path: Path) -> None:
    run = made(tmp_path, JUDGED, explorer__auxiliary_models=[{"model_path": "model", "dtype": "float32"}])
    end = run.finish()
    assert end.status != 0 and "E5130" in end.output and "E5125" in end.output, end.output[-3000:]
    assert not (run.job / "metrics.jsonl").exists(), "no step was made"


@pytest.mark.parametrize("name", JUDGED)
def test_validate_refuses_a_configuration_without_its_judge(tmp_path: Path, name: str) -> None:
    shown = _validated(tmp_path, name)
    assert "error[E1880]" in shown and f"workflow {name}" in shown and "auxiliary_models" in shown


def test_validate_refuses_a_service_without_the_name_of_its_model(tmp_path: Path) -> None:
    shown = _validated(tmp_path, "rubric_judge_openai_workflow")
    assert "error[E1706]" in shown and "judge_model_name" in shown
    assert "E1880" not in shown
    assert "E1706" not in _validated(tmp_path, "rubric_judge_openai_workflow", "judge_model_name=grader")


def test_rows_of_tool_calls_need_no_keys_of_the_format(tmp_path: Path) -> None:
    run = TinyRun(tmp_path).change(
        model__max_model_len=4096,
        model__max_prompt_tokens=4080,
        buffer__explorer_input__default_workflow_type="tool_call_workflow",
        buffer__explorer_input__taskset={"name": "train", "path": "train.jsonl"},
    )
    tiny_model(tmp_path / "model", "llama", seed=1, scale=3.0, max_position_embeddings=4096)
    run.write_rows([ROW] * 4)
    del run.tree["buffer"]["explorer_input"]["default_reward_fn_type"]
    end = run.finish()
    assert end.status == 0, end.output[-3000:]
    assert [line["rollout/tool_call/mean"] for line in run.lines("explorer")[:2]] == [0.0, 0.0]
    assert len(run.lines("trainer")) >= 2


def _validated(folder: Path, name: str, *arguments: str) -> str:
    taskset = "buffer.explorer_input.taskset"
    run = TinyRun(folder).change(buffer__explorer_input__default_workflow_type=name)
    (folder / "run.yaml").write_text(json.dumps(run.tree))
    sets = [f"{taskset}.workflow_args.{argument}" for argument in arguments]
    command = ["validate", "-c", str(folder / "run.yaml"), *(word for each in sets for word in ("--set", each))]
    with contextlib.chdir(folder):
        return " ".join(runner.invoke(app, command).output.split())
