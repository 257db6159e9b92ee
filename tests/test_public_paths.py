"""The import paths that plugins and scripts rely on."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config
from trinity.common.errors import CheckpointError

PATHS = {
    "trinity": "__version__",
    "trinity.common.workflows": "WORKFLOWS Task Workflow",
    "trinity.common.workflows.workflow": "Task Workflow SimpleWorkflow AsyncSimpleWorkflow MultiTurnWorkflow "
    "MathWorkflow AsyncMathWorkflow",
    "trinity.common.experience": "Experience EID CustomField group_by Experiences",
    "trinity.common.models": "InferenceModel ModelWrapper create_auxiliary_models create_inference_model "
    "load_tokenizer",
    "trinity.common.models.model": "ModelWrapper InferenceModel",
    "trinity.common.models.utils": "load_fsdp_state_dict_from_verl_checkpoint load_state_dict "
    "get_checkpoint_dir_with_step_num get_action_mask_method tokenize_and_mask_messages_hf "
    "tokenize_and_mask_messages_default",
    "trinity.common.schema.sql_schema": "ExperienceModel SFTDataModel DPODataModel TaskModel",
    "trinity.buffer.schema.sql_schema": "ExperienceModel SFTDataModel DPODataModel TaskModel",
    "trinity.buffer": "get_buffer_reader get_buffer_writer",
    "trinity.buffer.operators": "ExperienceOperator ExperienceOperatorV1 EXPERIENCE_OPERATORS",
    "trinity.buffer.pipelines": "ExperiencePipeline",
    "trinity.buffer.selector": "SELECTORS BaseSelector",
    "trinity.common.rewards": "REWARD_FUNCTIONS RewardFn AccuracyReward FormatReward MathRewardFn CountDownRewardFn",
    "trinity.common.rewards.reward_fn": "RewardFn",
    "trinity.common.rewards.math_reward": "MathRewardFn",
    "trinity.common.config": "Config load_config FormatConfig GenerationConfig TasksetConfig ExperienceBufferConfig "
    "InferenceModelConfig LoRAConfig StageConfig AlgorithmConfig ModelConfig ClusterConfig BufferConfig "
    "ExplorerConfig TrainerConfig SynchronizerConfig MonitorConfig LogConfig DataSelectorConfig OperatorConfig",
    "trinity.common.constants": "SELECTOR_METRIC MODEL_PATH_ENV_VAR TASKSET_PATH_ENV_VAR CHECKPOINT_ROOT_DIR_ENV_VAR "
    "PLUGIN_DIRS_ENV_VAR PromptType StorageType SyncMethod SyncStyle SaveStrategy RunningStatus OpType",
    "trinity.algorithm": "ALGORITHM_TYPE AlgorithmType ADVANTAGE_FN AdvantageFn POLICY_LOSS_FN PolicyLossFn KL_FN "
    "KLFn ENTROPY_LOSS_FN EntropyLossFn SAMPLE_STRATEGY SampleStrategy",
    "trinity.algorithm.advantage_fn": "AdvantageFn GroupAdvantage",
    "trinity.algorithm.policy_loss_fn": "PolicyLossFn",
    "trinity.algorithm.kl_fn": "KLFn",
    "trinity.algorithm.entropy_loss_fn": "EntropyLossFn",
    "trinity.algorithm.sample_strategy": "SampleStrategy",
    "trinity.algorithm.utils": "aggregate_loss masked_mean",
    "trinity.utils.log": "get_logger",
    "trinity.utils.monitor": "MONITOR Monitor",
    "trinity.utils.plugin_loader": "load_plugins",
    "trinity.utils.registry": "Registry",
    "trinity.cli.launcher": "main app",
    "trinity.explorer.proxy.client": "TrinityClient",
    "trinity.trainer": "get_latest_hf_checkpoint_path",
}
SAME = [
    ("trinity.common.schema.sql_schema", "trinity.buffer.schema.sql_schema", "ExperienceModel"),
    ("trinity.common.workflows", "trinity.common.workflows.workflow", "Workflow"),
    ("trinity.common.models", "trinity.engine.create", "create_inference_model"),
    ("trinity.cli.launcher", "trinity.cli", "main"),
    ("trinity.utils.monitor", "trinity.monitor.registry", "MONITOR"),
]


@pytest.mark.parametrize("module", PATHS)
def test_published_names_are_there(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in PATHS[module].split() if not hasattr(loaded, name)] == []


@pytest.mark.parametrize(("one", "other", "name"), SAME)
def test_two_paths_name_one_object(one: str, other: str, name: str) -> None:
    assert vars(importlib.import_module(other)).get(name) is getattr(importlib.import_module(one), name)


def write_checkpoint(job: Path, step: int, *, has_weights: bool) -> None:
    def fill(folder: Path) -> None:
        target = folder / "actor" / "huggingface"
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")
        if has_weights:
            (target / "model.safetensors").write_bytes(b"weights")

    CheckpointStore(job).write(step, fill, meta={}, keep=0)


def test_the_latest_hugging_face_checkpoint_is_the_newest_one_with_weights(tmp_path: Path) -> None:
    from trinity.trainer import get_latest_hf_checkpoint_path

    config = Config(checkpoint_job_dir=str(tmp_path))
    write_checkpoint(tmp_path, 1, has_weights=False)
    with pytest.raises(CheckpointError, match="save_hf_checkpoint must be last or always"):
        get_latest_hf_checkpoint_path(config)
    for step, has_weights in ((2, True), (10, True), (12, False)):
        write_checkpoint(tmp_path, step, has_weights=has_weights)
    newest = tmp_path / "global_step_10" / "actor" / "huggingface"
    assert get_latest_hf_checkpoint_path(config) == str(newest)
    (newest / "model.safetensors").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        get_latest_hf_checkpoint_path(config)
