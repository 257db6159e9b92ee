"""`validate` says which images would not be read, and how a vision-language model is not trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from trinity.common.config import Finding
from trinity.launch.validation import check

CODES = ("E1612", "E1834", "E1887", "E1926", "E3108", "E3110", "E3120", "E3132", "E3133", "E3227")
TASKSET = "buffer.explorer_input.taskset"
MULTIMODAL = "explorer.rollout_model.enable_multimodal=true"
IMAGES = (
    f"{TASKSET}.format.image_key=images",
    f"{TASKSET}.default_workflow_type=simple_mm_workflow",
    f"{TASKSET}.default_reward_fn_type=accuracy_reward",
    "explorer.rollout_model.engine_type=torch",
)
DEMONSTRATIONS = (
    "mode=train",
    "algorithm.algorithm_type=sft",
    "buffer.explorer_input.taskset=null",
    "buffer.trainer_input.experience_buffer={name: d, storage_type: file, path: DATA}",
    "buffer.trainer_input.experience_buffer.format={prompt_key: question, response_key: answer, image_key: images}",
)
SEQUENCES = ("trainer.num_workers=2", "trainer.ulysses_sequence_parallel_size=2")
Found = Callable[..., set[str]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Return a function that gives the codes of a run with a policy of some family."""
    (tmp_path / "data.jsonl").write_text('{"question": "1+1=", "answer": "2", "images": []}\n')
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("data.jsonl", str(tmp_path / "data.jsonl")))

    def of(policy: str, *overrides: str, has_processor: bool = True) -> set[str]:
        path = tmp_path / policy
        path.mkdir(exist_ok=True)
        config = {
            "model_type": policy,
            "architectures": ["XForConditionalGeneration" if "vl" in policy else "XForCausalLM"],
            "num_attention_heads": 4,
        }
        (path / "config.json").write_text(json.dumps(config))
        processor = path / "preprocessor_config.json"
        processor.unlink(missing_ok=True)
        if has_processor:
            processor.write_text("{}")
        models = (f"model.model_path={path}", f"checkpoint_root_dir={tmp_path}")
        given = [each.replace("DATA", str(tmp_path / "data.jsonl")) for each in overrides]
        problems: list[Finding] = check(tmp_path / "run.yaml", (*models, *given))[1]
        return {problem.code for problem in problems if problem.code in CODES}

    return of


@pytest.mark.parametrize(
    ("policy", "overrides", "codes"),
    [
        ("qwen2_5_vl", (*IMAGES, MULTIMODAL), set()),
        ("qwen2_5_vl", IMAGES, {"E1887"}),
        ("qwen2_5_vl", (*IMAGES, MULTIMODAL, f"{TASKSET}.default_workflow_type=math_workflow"), {"E1887"}),
        ("llama", (*IMAGES, MULTIMODAL), {"E3133"}),
        ("qwen2_5_vl", (*IMAGES, MULTIMODAL, "model.lora_configs=[{}]"), set()),
        ("qwen2_5_vl", (*IMAGES, MULTIMODAL, "trainer.num_workers=2"), set()),
        ("qwen2_5_vl", (*IMAGES, MULTIMODAL, *SEQUENCES), {"E3132"}),
        ("qwen2_5_vl", (*IMAGES, MULTIMODAL, "explorer.rollout_model.engine_type=vllm"), set()),
        ("llama", ("explorer.rollout_model={engine_type: vllm, enable_multimodal: true}",), {"E3133"}),
        ("qwen2_5_vl", ("algorithm.algorithm_type=ppo", "explorer.rollout_model.engine_type=torch"), {"E3120"}),
        ("qwen2_5_vl", DEMONSTRATIONS, set()),
        ("llama", DEMONSTRATIONS, {"E3133"}),
        ("qwen2_5_vl", (*DEMONSTRATIONS, "algorithm.algorithm_type=dpo"), {"E1834"}),
        ("qwen3_vl", (), {"E3110"}),
        ("llava", (), {"E3110"}),
        ("llama", ("trainer.trainer_config.actor_rollout_ref.actor.freeze_vision_tower=true",), {"E3133"}),
        ("llama", ("explorer.rollout_model.extra_engine_args={mm_processor_cache_gb: -1}",), {"E1926"}),
        ("llama", ("explorer.rollout_model.extra_engine_args={disable_mm_preprocessor_cache: true}",), set()),
    ],
)
def test_what_does_not_fit_images_is_named_before_anything_starts(
    found: Found, policy: str, overrides: tuple[str, ...], codes: set[str]
) -> None:
    assert found(policy, *overrides) == codes


def test_a_vision_language_model_needs_its_image_processor(found: Found) -> None:
    assert found("qwen2_5_vl", *IMAGES, MULTIMODAL, has_processor=False) == {"E3108"}
