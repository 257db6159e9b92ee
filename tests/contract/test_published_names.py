"""Published import paths: what scripts and plugins import is there, and is the thing itself."""

from __future__ import annotations

import importlib

import pytest
import torch

from trinity.algorithm.utils import masked_whiten, prefix_metrics
from trinity.buffer.operators import create_operators
from trinity.common.config import OperatorConfig
from trinity.common.constants import SyncStyle
from trinity.utils.monitor import gather_metrics
from trinity.utils.timer import Timer

SAME = {
    "trinity.algorithm.advantage_fn:ADVANTAGE_FN": "trinity.algorithm:ADVANTAGE_FN",
    "trinity.algorithm.policy_loss_fn:POLICY_LOSS_FN": "trinity.algorithm:POLICY_LOSS_FN",
    "trinity.algorithm.kl_fn:KL_FN": "trinity.algorithm:KL_FN",
    "trinity.algorithm.entropy_loss_fn:ENTROPY_LOSS_FN": "trinity.algorithm:ENTROPY_LOSS_FN",
    "trinity.algorithm.sample_strategy:SAMPLE_STRATEGY": "trinity.algorithm:SAMPLE_STRATEGY",
    "trinity.algorithm.algorithm:ALGORITHM_TYPE": "trinity.algorithm:ALGORITHM_TYPE",
    "trinity.common.workflows.workflow:WORKFLOWS": "trinity.common.workflows:WORKFLOWS",
    "trinity.common.workflows:MultiTurnWorkflow": "trinity.common.workflows.workflow:MultiTurnWorkflow",
    "trinity.common.workflows:SimpleWorkflow": "trinity.common.workflows.workflow:SimpleWorkflow",
    "trinity.common.workflows:AsyncSimpleWorkflow": "trinity.common.workflows.workflow:AsyncSimpleWorkflow",
    "trinity.common.workflows:MathWorkflow": "trinity.common.workflows.workflow:MathWorkflow",
    "trinity.common.workflows:AsyncMathWorkflow": "trinity.common.workflows.workflow:AsyncMathWorkflow",
    "trinity.common.workflows:StepWiseRewardWorkflow": (
        "trinity.common.workflows.step_wise_workflow:StepWiseRewardWorkflow"
    ),
    "trinity.common.workflows:AsyncRewardPropagationWorkflow": (
        "trinity.common.workflows.step_wise_workflow:AsyncRewardPropagationWorkflow"
    ),
    "trinity.common.config:ReplayBufferConfig": "trinity.common.config.buffer:ReplayBufferConfig",
    "trinity.common.config:ExplorerInput": "trinity.common.config.buffer:ExplorerInput",
    "trinity.common.config:TrainerInput": "trinity.common.config.buffer:TrainerInput",
}


# Further published places of names, each with all that scripts import from there.
PLACES = {
    "trinity.algorithm": "ALGORITHM_TYPE AlgorithmType ADVANTAGE_FN AdvantageFn POLICY_LOSS_FN PolicyLossFn KL_FN KLFn "
    "ENTROPY_LOSS_FN EntropyLossFn SAMPLE_STRATEGY SampleStrategy",
    "trinity.algorithm.advantage_fn": "GroupAdvantage",
    "trinity.algorithm.utils": "aggregate_loss masked_mean",
    "trinity.buffer": "get_buffer_reader get_buffer_writer",
    "trinity.buffer.operators": "ExperienceOperator ExperienceOperatorV1 EXPERIENCE_OPERATORS",
    "trinity.buffer.pipelines": "ExperiencePipeline",
    "trinity.buffer.schema.sql_schema": "ExperienceModel SFTDataModel DPODataModel TaskModel",
    "trinity.buffer.selector": "SELECTORS BaseSelector",
    "trinity.cli.launcher": "main app",
    "trinity.common.config": "Config load_config FormatConfig GenerationConfig TasksetConfig ExperienceBufferConfig "
    "StorageConfig InferenceModelConfig LoRAConfig StageConfig",
    "trinity.common.constants": "SELECTOR_METRIC MODEL_PATH_ENV_VAR TASKSET_PATH_ENV_VAR CHECKPOINT_ROOT_DIR_ENV_VAR "
    "PLUGIN_DIRS_ENV_VAR PromptType StorageType SyncMethod SyncStyle SaveStrategy RunningStatus OpType",
    "trinity.common.experience": "Experience EID CustomField group_by Experiences to_hf_datasets from_hf_datasets",
    "trinity.common.models.model": "ModelWrapper",
    "trinity.common.models.utils": "load_fsdp_state_dict_from_verl_checkpoint load_state_dict get_action_mask_method "
    "get_checkpoint_dir_with_step_num tokenize_and_mask_messages_hf tokenize_and_mask_messages_default",
    "trinity.common.rewards": "REWARD_FUNCTIONS RewardFn",
    "trinity.common.rewards.math_reward": "MathRewardFn MathBoxedRewardFn",
    "trinity.common.rewards.reward_fn": "RewardFn",
    "trinity.common.schema.sql_schema": "ExperienceModel",
    "trinity.common.workflows.customized_math_workflows": "MathBoxedWorkflow Task",
    "trinity.common.workflows.workflow": "Task Workflow SimpleWorkflow AsyncSimpleWorkflow MultiTurnWorkflow "
    "MathWorkflow AsyncMathWorkflow",
    "trinity.trainer": "get_latest_hf_checkpoint_path",
    "trinity.utils.dlc_utils": "setup_ray_cluster",
    "trinity.utils.log": "get_logger",
    "trinity.utils.monitor": "MONITOR Monitor",
    "trinity.utils.plugin_loader": "load_plugins",
    "trinity.utils.registry": "Registry",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_published_place_has_its_names(place: str) -> None:
    module = importlib.import_module(place)
    assert not [name for name in PLACES[place].split() if not hasattr(module, name)]


@pytest.mark.parametrize(("published", "home"), SAME.items())
def test_a_published_path_gives_the_thing_itself(published: str, home: str) -> None:
    assert found(published) is found(home)


def found(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def test_styles_have_both_of_their_names() -> None:
    assert SyncStyle.EXPLORER_DRIVEN is SyncStyle.DYNAMIC_BY_EXPLORER
    assert SyncStyle.TRAINER_DRIVEN is SyncStyle.DYNAMIC_BY_TRAINER


def test_metrics_get_a_prefix_and_statistics() -> None:
    into = {"other": 1.0}
    assert prefix_metrics({"loss": 2.0}, "actor", into) is into and into == {"other": 1.0, "actor/loss": 2.0}
    assert prefix_metrics({"loss": 2.0}, "actor") == {"actor/loss": 2.0}
    rows = [{"score": 1.0, "words": 3, "text": "a"}, {"score": 0.0, "words": 5, "text": "b"}, {"score": 2.0}]
    gathered = gather_metrics(rows, "rollout")
    assert gathered == {
        "rollout/score/mean": 1.0,
        "rollout/score/max": 2.0,
        "rollout/score/min": 0.0,
        "rollout/words/mean": 4.0,
        "rollout/words/max": 5.0,
        "rollout/words/min": 3.0,
    }
    assert gather_metrics(rows, "r", ["std"])["r/score/std"] == 1.0 and gather_metrics([], "r") == {}
    with pytest.raises(ValueError, match="output_stats"):
        gather_metrics(rows, "r", ["no_such_statistic"])


def test_a_timer_writes_its_seconds_also_after_a_failure() -> None:
    times: dict[str, float] = {}
    with pytest.raises(KeyError), Timer(times, "time/read"):
        raise KeyError
    assert times["time/read"] >= 0


def test_whitening_may_keep_the_mean() -> None:
    values, mask = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
    plain, kept = masked_whiten(values, mask), masked_whiten(values, mask, shift_mean=False)
    torch.testing.assert_close(plain, torch.tensor([[-(0.5**0.5), 0.5**0.5, 0.0]]))
    torch.testing.assert_close(kept[:, :2], plain[:, :2] + 2.0)
    assert kept[0, 2] == 0


def test_operators_are_made_from_their_configuration() -> None:
    (operator,) = create_operators([OperatorConfig(name="reward_filter", args={"threshold": 0.5})])
    assert type(operator).__name__ == "RewardFilter"
