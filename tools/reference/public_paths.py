"""The import paths that plugins and scripts rely on. A test holds that they are there."""

PUBLIC = {
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
"""Module by the names that are imported from it."""
