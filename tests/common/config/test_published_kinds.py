"""What published files write is understood: redundant or harmless things are warnings, and what they say is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.common.config.conftest import MINIMAL
from trinity.catalogue import BUILT_IN
from trinity.common.config import Finding, Plan, examine
from trinity.common.config.keys import key_at, value_of
from trinity.common.config.overrides import parse_path
from trinity.explorer.assembly import build_eval_tasksets, build_reader

INPUT = "buffer.explorer_input"
EXPERIENCES = "buffer.trainer_input.experience_buffer"
LOADED = "trainer.trainer_config.actor_rollout_ref.actor.checkpoint.load_contents"
PARTS = ["model", "optimizer", "extra"]
EVALUATED = f"{INPUT}.eval_tasksets=[{{name: train, path: e.jsonl, default_workflow_type: math_workflow}}]"
RAFT = "algorithm={algorithm_type: raft, repeat_times: 2}"
MIX = (
    "algorithm.algorithm_type=mix",
    "algorithm.repeat_times=2",
    "buffer.train_batch_size=10",
    "algorithm.sample_strategy_args={expert_data_ratio: 0.2, sft_dataset_name: sft}",
    "buffer.trainer_input.auxiliary_buffers={sft: {path: s.jsonl, storage_type: file}}",
)


def _examined(folder: Path, *overrides: str, schema_only: bool = True) -> tuple[Plan, list[Finding]]:
    path = folder / "run.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return examine(path, overrides, catalogue=BUILT_IN, cwd=folder, schema_only=schema_only)


@pytest.mark.difference("LoRA with `sync_method: nccl`")
@pytest.mark.parametrize(
    ("overrides", "code", "key", "done"),
    [
        ((EVALUATED,), "W1305", f"{INPUT}.eval_tasksets[0].name", {}),
        ((f"{LOADED}={json.dumps([*PARTS, 'hf_model'])}",), "W1887", LOADED, {LOADED: PARTS}),
        ((f"{LOADED}=[hf_model]",), "W1887", LOADED, {LOADED: ["model"]}),
        (
            (*MIX, "algorithm.policy_loss_fn_args.ngpus_trainer=64"),
            "W1841",
            "algorithm.policy_loss_fn_args.ngpus_trainer",
            {"algorithm.policy_loss_fn_args": {"ngpus_trainer": 1}},
        ),
        ((f"{EXPERIENCES}.enable_progress_bar=true",), "W1902", f"{EXPERIENCES}.enable_progress_bar", {}),
        ((f"{INPUT}.taskset.enable_progress_bar=true",), "W1902", f"{INPUT}.taskset.enable_progress_bar", {}),
        (("buffer.max_retry_times=3",), "W1902", "buffer.max_retry_times", {}),
        (("buffer.max_retry_interval=1",), "W1902", "buffer.max_retry_interval", {}),
        ((f"{EXPERIENCES}.max_retry_times=7",), "W1902", f"{EXPERIENCES}.max_retry_times", {}),
        ((RAFT,), "W1832", "data_processor.experience_pipeline.operators", {}),
        *(
            (
                (f"mode={mode}", f"synchronizer.sync_method={method}"),
                "W1804",
                "synchronizer.sync_method",
                {"synchronizer.sync_method": "checkpoint"},
            )
            for mode in ("explore", "train")
            for method in ("nccl", "memory")
        ),
        (
            ("model.lora_configs=[{lora_rank: 4}]", "synchronizer.sync_method=nccl"),
            "W1812",
            "synchronizer.sync_method",
            {"synchronizer.sync_method": "memory"},
        ),
    ],
)
def test_what_is_redundant_or_harmless_is_told_and_something_else_is_done(
    tmp_path: Path, overrides: tuple[str, ...], code: str, key: str, done: dict[str, Any]
) -> None:
    plan, problems = _examined(tmp_path, *overrides)
    assert not [p.render() for p in problems if p.is_error]
    assert (code, key) in [(p.code, p.key) for p in problems]
    (stage,) = plan.stages
    for name, value in done.items():
        path = parse_path(name)
        assert path is not None
        got = value_of(stage.config, key_at(path))
        if isinstance(value, dict):
            assert {each: got[each] for each in value} == value
        else:
            assert (list(got) if isinstance(got, tuple) else got) == value


@pytest.mark.parametrize(
    ("override", "code"),
    [
        (f"{INPUT}.taskset.default_workflow_type=my_workflow", "W1701"),
        (f"{INPUT}.taskset.default_workflow_type=examples.mine.workflow.MyWorkflow", "W1701"),
        (f"{INPUT}.taskset.default_reward_fn_type=my_reward", "W1701"),
    ],
)
def test_a_name_of_a_plugin_is_looked_for_on_the_machine_that_runs(tmp_path: Path, override: str, code: str) -> None:
    key = override.partition("=")[0]
    (soft,) = [p for p in _examined(tmp_path, override)[1] if p.key == key]
    assert (soft.code, soft.severity) == (code, "warning")
    (strict,) = [p for p in _examined(tmp_path, override, schema_only=False)[1] if p.key == key]
    assert strict.is_error


@pytest.mark.parametrize(
    "override", ["algorithm.policy_loss_fn=pppo", "algorithm.algorithm_type=grppo", "buffer.explorer_input.tasket={}"]
)
def test_a_name_that_no_plugin_of_a_task_could_have_stays_an_error(tmp_path: Path, override: str) -> None:
    assert [p for p in _examined(tmp_path, override)[1] if p.is_error]


def test_two_evaluations_of_one_name_stay_an_error(tmp_path: Path) -> None:
    two = f"[{', '.join(['{name: e, path: e.jsonl, default_workflow_type: math_workflow}'] * 2)}]"
    (problem,) = [p for p in _examined(tmp_path, f"{INPUT}.eval_tasksets={two}")[1] if p.is_error]
    assert (problem.code, problem.key) == ("E1305", f"{INPUT}.eval_tasksets[1].name")


def test_rows_left_out_of_training_and_evaluation_of_one_name_are_two_files(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(300)]
    for name, bad in (("data", "train row"), ("e", "eval row")):
        lines = [json.dumps(row) for row in [*rows, {"question": None, "answer": bad}]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = "format={prompt_key: question, response_key: answer}"
    overrides = (
        f"checkpoint_root_dir={tmp_path / 'out'}",
        f"{INPUT}.taskset.path={tmp_path / 'data.jsonl'}",
        f"{INPUT}.taskset.{columns}",
        EVALUATED.replace("e.jsonl", f"{tmp_path / 'e.jsonl'}"),
        f"{INPUT}.eval_tasksets[0].{columns}",
    )
    plan, problems = _examined(tmp_path, *overrides)
    assert not [p.render() for p in problems if p.is_error]
    config = plan.stages[0].config
    build_reader(config)
    build_eval_tasksets(config)
    folder = Path(config.checkpoint_job_dir) / "buffer" / "quarantine"
    assert (folder / "train.jsonl").is_file() and (folder / "eval" / "train.jsonl").is_file()
