"""Which engine answers, and keys that only one kind of engine has."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from trinity.common.config.rules.engines import best_engine

ROLLOUT = "explorer.rollout_model"


@pytest.mark.parametrize("name", ["vllm", "vllm_async"])
def test_vllm_is_served_with_its_keys(examined: Examine, name: str) -> None:
    keys = ("tensor_parallel_size=2", "enforce_eager=true", "enable_prefix_caching=false",
            "enable_chunked_prefill=false", "enable_expert_parallel=true", "enable_log_requests=true")  # fmt: skip
    overrides = [f"{ROLLOUT}.{key}" for key in (f"engine_type={name}", *keys)]
    plan, problems = examined(MINIMAL, *overrides)
    assert [p.render() for p in problems if p.key and p.key.startswith("explorer")] == []
    assert plan.stages[0].config.explorer.rollout_model.engine_type == "vllm"


def test_auxiliary_models_choose_for_themselves(examined: Examine) -> None:
    models = "explorer.auxiliary_models=[{model_path: m, engine_type: vllm_async}, {model_path: n}]"
    plan, _ = examined(MINIMAL, models, f"{ROLLOUT}.engine_type=torch")
    found = [model.engine_type for model in plan.stages[0].config.explorer.auxiliary_models]
    assert found[0] == "vllm" and found[1] in ("torch", "vllm")


def test_deterministic_runs_need_the_torch_engine(examined: Examine) -> None:
    problems = examined(MINIMAL, f"{ROLLOUT}.engine_type=vllm", "deterministic=true")[1]
    (found,) = [p for p in problems if p.code == "E3220"]
    assert found.is_error and f"--set {ROLLOUT}.engine_type=torch" in (found.suggestion or "")


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_the_torch_engine_is_on_one_device(examined: Examine, name: str) -> None:
    problems = examined(MINIMAL, f"{ROLLOUT}.{name}=2", f"{ROLLOUT}.engine_type=torch")[1]
    (found,) = [p for p in problems if p.is_error]
    assert (found.code, found.key) == ("E3223", f"{ROLLOUT}.{name}")
    assert "engine_type=vllm" in (found.suggestion or "")
    models = f"explorer.auxiliary_models=[{{model_path: m, engine_type: torch, {name}: 2}}]"
    problems = examined(MINIMAL, models, f"{ROLLOUT}.engine_type=torch")[1]
    assert [p.key for p in problems if p.code == "E3223"] == [f"explorer.auxiliary_models[0].{name}"]


def test_stages_of_vllm_have_a_gpu_each(examined: Examine) -> None:
    keys = (f"{ROLLOUT}.engine_type=vllm", f"{ROLLOUT}.pipeline_parallel_size=2", f"{ROLLOUT}.tensor_parallel_size=2")
    plan, problems = examined(MINIMAL, *keys, "cluster.gpu_per_node=8")
    assert not [p.render() for p in problems if p.is_error]
    assert plan.stages[0].config.cluster.rollout_gpu_num == 4


@pytest.mark.difference("`data_parallel_size` of a rollout model")
@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_replicas_are_engines(examined: Examine, engine: str) -> None:
    keys = (f"{ROLLOUT}.engine_type={engine}", f"{ROLLOUT}.engine_num=2", f"{ROLLOUT}.data_parallel_size=3")
    gpus = ("cluster.gpu_per_node=8", f"{ROLLOUT}.tensor_parallel_size=1")
    plan, problems = examined(MINIMAL, *keys, *gpus)
    config = plan.stages[0].config
    model = config.explorer.rollout_model
    assert not [p.render() for p in problems if p.is_error]
    assert (model.engine_num, model.data_parallel_size, config.cluster.rollout_gpu_num) == (6, 1, 6)
    auxiliary = f"explorer.auxiliary_models=[{{model_path: m, engine_type: {engine}, data_parallel_size: 2}}]"
    (other,) = examined(MINIMAL, auxiliary)[0].stages[0].config.explorer.auxiliary_models
    assert (other.engine_num, other.data_parallel_size) == (2, 1)


def test_replicas_that_share_experts_are_refused(examined: Examine) -> None:
    keys = (f"{ROLLOUT}.engine_type=vllm", f"{ROLLOUT}.data_parallel_size=2", f"{ROLLOUT}.enable_expert_parallel=true")
    problems = examined(MINIMAL, *keys)[1]
    (found,) = [p for p in problems if p.is_error]
    assert (found.code, found.key) == ("E3223", f"{ROLLOUT}.data_parallel_size")
    assert "share no experts" in found.message


def test_keys_of_vllm_have_no_effect_on_the_torch_engine_and_it_is_told(examined: Examine) -> None:
    problems = examined(MINIMAL, f"{ROLLOUT}.enforce_eager=true", f"{ROLLOUT}.engine_type=torch")[1]
    assert [(p.code, p.key) for p in problems if p.code == "W1902"] == [("W1902", f"{ROLLOUT}.enforce_eager")]


def test_auto_is_vllm_where_it_and_a_gpu_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity.common.config.rules.engines.has_gpu", lambda: False)
    module = ModuleType("vllm")
    module.__spec__ = importlib.util.spec_from_loader("vllm", loader=None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    assert best_engine(is_deterministic=False) == ("torch", "this machine has no GPU")
    monkeypatch.setattr("trinity.common.config.rules.engines.has_gpu", lambda: True)
    assert best_engine(is_deterministic=False) == ("vllm", "vLLM and a GPU are there")
    assert best_engine(is_deterministic=False, sees_gpus=False)[0] == "torch"
    assert best_engine(is_deterministic=True)[0] == "torch"
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert best_engine(is_deterministic=False) == ("torch", "vLLM is not installed")


MACHINES = [(has_vllm, has_gpu) for has_vllm in (False, True) for has_gpu in (False, True)]
FILES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "tensor parallel": (f"{ROLLOUT}.tensor_parallel_size=2", "cluster.gpu_per_node=8"),
    "pipeline parallel": (f"{ROLLOUT}.pipeline_parallel_size=2", "cluster.gpu_per_node=8"),
    "a judge on two": ("explorer.auxiliary_models=[{model_path: m, tensor_parallel_size: 2}]",),
    "argument of vLLM": (f"{ROLLOUT}.extra_engine_args={{block_size: 16}}",),
    "cache keys": (f"{ROLLOUT}.enforce_eager=true", f"{ROLLOUT}.enable_prefix_caching=false"),
    "nccl": ("synchronizer.sync_method=nccl",),
    "repeatable": ("deterministic=true",),
    "repeatable on two": ("deterministic=true", f"{ROLLOUT}.tensor_parallel_size=2"),
}


def _become(monkeypatch: pytest.MonkeyPatch, *, has_vllm: bool, has_gpu: bool) -> None:
    """Make this machine one with or without vLLM and a GPU."""
    module = ModuleType("vllm")
    module.__spec__ = importlib.util.spec_from_loader("vllm", loader=None)
    monkeypatch.setitem(sys.modules, "vllm", module if has_vllm else None)
    monkeypatch.setattr("trinity.common.config.rules.engines.has_gpu", lambda: has_gpu)


@pytest.mark.parametrize("overrides", FILES.values(), ids=FILES)
def test_what_the_file_alone_says_is_the_same_on_every_machine(
    examined: Examine, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    found = []
    for has_vllm, has_gpu in MACHINES:
        _become(monkeypatch, has_vllm=has_vllm, has_gpu=has_gpu)
        plan, problems = examined(MINIMAL, *overrides, schema_only=True)
        found.append((plan.stages[0].config, plan.stages[0].derived, problems))
    assert all(each == found[0] for each in found)
    errors = [problem.code for problem in found[0][2] if problem.is_error]
    assert errors == (["E3220"] if len(overrides) == 2 and overrides[0] == "deterministic=true" else [])


@pytest.mark.parametrize("overrides", [FILES[name] for name in ("tensor parallel", "pipeline parallel")])
def test_a_model_on_several_devices_is_vllm_on_every_machine(
    examined: Examine, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    for has_vllm, has_gpu in MACHINES:
        _become(monkeypatch, has_vllm=has_vllm, has_gpu=has_gpu)
        plan, problems = examined(MINIMAL, *overrides)
        assert not [problem.render() for problem in problems if problem.is_error]
        assert plan.stages[0].config.explorer.rollout_model.engine_type == "vllm"


def test_an_argument_of_vllm_means_vllm_and_is_refused_where_torch_is_written(examined: Examine) -> None:
    argument = FILES["argument of vLLM"][0]
    plan, problems = examined(MINIMAL, argument)
    assert plan.stages[0].config.explorer.rollout_model.engine_type == "vllm"
    (found,) = [p for p in examined(MINIMAL, argument, f"{ROLLOUT}.engine_type=torch")[1] if p.is_error]
    assert (found.code, found.key) == ("E1612", f"{ROLLOUT}.extra_engine_args.block_size")
    known = f"{ROLLOUT}.extra_engine_args={{max_num_seqs: 8, device: cpu}}"
    assert not [p for p in examined(MINIMAL, known, f"{ROLLOUT}.engine_type=torch")[1] if p.is_error]


@pytest.mark.parametrize(
    ("name", "way_out"), [("dtype", f"write `{ROLLOUT}.dtype`"), ("logits_processors", "remove it")]
)
def test_arguments_of_vllm_that_stand_elsewhere_are_refused(examined: Examine, name: str, way_out: str) -> None:
    keys = (f"{ROLLOUT}.engine_type=vllm", f"{ROLLOUT}.extra_engine_args={{block_size: 16, {name}: x}}")
    (found,) = [p for p in examined(MINIMAL, *keys)[1] if p.is_error]
    assert (found.code, found.key, found.suggestion) == ("E3224", f"{ROLLOUT}.extra_engine_args.{name}", way_out)


def test_answers_are_parsed_for_calls_only_in_a_form_that_is_named(examined: Examine) -> None:
    enabled = f"{ROLLOUT}.enable_auto_tool_choice=true"
    (found,) = [p for p in examined(MINIMAL, enabled)[1] if p.is_error]
    assert (found.code, found.key) == ("E1617", f"{ROLLOUT}.enable_auto_tool_choice")
    assert not [p for p in examined(MINIMAL, enabled, f"{ROLLOUT}.tool_call_parser=hermes")[1] if p.is_error]
    (found,) = [p for p in examined(MINIMAL, enabled, f"{ROLLOUT}.tool_call_parser=pythonic")[1] if p.is_error]
    assert (found.code, found.key) == ("E1900", f"{ROLLOUT}.tool_call_parser")
    (found,) = examined(MINIMAL, f"{ROLLOUT}.tool_call_parser=hermes")[1]
    assert found.key == f"{ROLLOUT}.tool_call_parser" and not found.is_error
