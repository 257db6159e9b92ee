"""What published commands of veRL's GRPO and PPO trainers ask for: the keys and values behind `main_ppo`, by example.

The words are as a shell hands them over; paths of data and models are short here.
"""

from __future__ import annotations

import shlex

_GSM8K = "data.train_files=data/gsm8k/train.parquet data.val_files=data/gsm8k/test.parquet"
_BOTH = (
    """data.train_files="['data/gsm8k/train.parquet', 'data/math/train.parquet']" """
    """data.val_files="['data/gsm8k/test.parquet', 'data/math/test.parquet']" """
)
_LOOP = "trainer.critic_warmup=0 trainer.nnodes=1 trainer.total_epochs=15"
_NODE = f"{_LOOP} trainer.n_gpus_per_node=8"
_TWO_GPUS = f"{_LOOP} trainer.n_gpus_per_node=2"
_TWO_LOGGERS = """trainer.logger="['console','wandb']" """
_CHECKED = "data.filter_overlong_prompts=True data.truncation='error'"
_KL_LOSS = (
    "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 "
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 "
    "algorithm.use_kl_in_reward=False"
)
_IN_MEMORY = (
    "actor_rollout_ref.actor.fsdp_config.param_offload=False "
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False"
)
_REFERENCE_AWAY = "actor_rollout_ref.ref.fsdp_config.param_offload=True"
_OLDER_ACTOR = f"{_IN_MEMORY} actor_rollout_ref.actor.fsdp_config.grad_offload=False"
_OLDER_CRITIC = (
    "critic.model.fsdp_config.param_offload=False critic.model.fsdp_config.grad_offload=False "
    "critic.model.fsdp_config.optimizer_offload=False"
)
_PACKED = "actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True"

_TEXTS = {
    "grpo qwen2 7b, first release": f"""
        {_GSM8K} {_NODE} {_TWO_LOGGERS} {_OLDER_ACTOR} {_REFERENCE_AWAY} algorithm.adv_estimator=grpo
        data.train_batch_size=1024 data.val_batch_size=1312 data.max_prompt_length=512 data.max_response_length=512
        actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size=128
        actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.enable_gradient_checkpointing=True
        actor_rollout_ref.rollout.log_prob_micro_batch_size=128 actor_rollout_ref.rollout.n=5
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.ref.log_prob_micro_batch_size=128
        algorithm.kl_ctrl.kl_coef=0.001 trainer.project_name='verl_grpo_example_gsm8k'
        trainer.experiment_name='deepseek_llm_7b_function_rm' trainer.save_freq=-1
    """,
    "grpo qwen2 7b, balanced, asynchronous": f"""
        {_GSM8K} {_NODE} {_TWO_LOGGERS} {_IN_MEMORY} {_REFERENCE_AWAY} {_CHECKED} {_KL_LOSS} {_PACKED}
        algorithm.adv_estimator=grpo data.return_raw_chat=True data.train_batch_size=1024 data.max_prompt_length=512
        data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct
        actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256
        actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.multi_turn.format=hermes
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5
        trainer.project_name='verl_grpo_example_gsm8k' trainer.experiment_name='qwen2_7b_function_rm_kl1e-3'
        trainer.val_before_train=False trainer.save_freq=20 trainer.test_freq=5
    """,
    "grpo qwen2.5 3b, adapter": f"""
        {_GSM8K} {_TWO_GPUS} {_TWO_LOGGERS} {_IN_MEMORY} {_REFERENCE_AWAY} {_CHECKED} {_KL_LOSS} {_PACKED}
        algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512
        data.max_response_length=1024 data.prompt_key=messages data.shuffle=False
        actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct actor_rollout_ref.model.use_shm=True
        actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32
        actor_rollout_ref.actor.optim.lr=3e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40 actor_rollout_ref.rollout.n=5
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.load_format=safetensors
        actor_rollout_ref.rollout.layered_summon=True actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40
        trainer.project_name='verl_grpo_example_gsm8k' trainer.experiment_name='qwen2_7b_function_rm'
        trainer.save_freq=20 trainer.test_freq=5
    """,
    "grpo qwen2.5-vl 7b, pictures": f"""
        data.train_files=data/geo3k/train.parquet data.val_files=data/geo3k/test.parquet {_NODE} {_TWO_LOGGERS}
        {_IN_MEMORY} {_REFERENCE_AWAY} {_CHECKED} {_KL_LOSS} {_PACKED} algorithm.adv_estimator=grpo
        data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048 data.image_key=images
        actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=20
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.enable_chunked_prefill=False
        actor_rollout_ref.rollout.enforce_eager=False actor_rollout_ref.rollout.free_cache_engine=False
        actor_rollout_ref.rollout.n=5 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=20
        trainer.project_name='verl_grpo_example_geo3k' trainer.experiment_name='qwen2_5_vl_7b_function_rm'
        trainer.save_freq=20 trainer.test_freq=5
    """,
    "grpo qwen3 8b, another accelerator": f"""
        data.train_files=data/dapo-math-17k.parquet data.val_files=data/aime-2024.parquet {_NODE}
        trainer.logger='["console","wandb"]' {_IN_MEMORY} {_REFERENCE_AWAY} {_CHECKED} {_KL_LOSS} {_PACKED}
        algorithm.adv_estimator=grpo data.train_batch_size=256 data.max_prompt_length=512
        data.max_response_length=1024 actor_rollout_ref.model.path=models/Qwen3-8B
        actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=64
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10 actor_rollout_ref.actor.use_torch_compile=False
        actor_rollout_ref.ref.use_torch_compile=False actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 trainer.project_name=GRPO
        trainer.experiment_name=GRPO-Qwen3-8B-npu trainer.default_local_dir=ckpts/GRPO/GRPO-Qwen3-8B-npu
        trainer.device=npu trainer.resume_mode=auto actor_rollout_ref.actor.fsdp_config.forward_prefetch=True
        actor_rollout_ref.ref.fsdp_config.forward_prefetch=True
        ++actor_rollout_ref.actor.entropy_from_logits_with_chunking=True
        ++actor_rollout_ref.ref.entropy_from_logits_with_chunking=True trainer.val_before_train=True
        trainer.save_freq=5 trainer.test_freq=5
    """,
    "grpo deepseek 7b, two data sets": f"""
        {_BOTH} {_NODE} {_TWO_LOGGERS} {_IN_MEMORY} {_REFERENCE_AWAY} {_CHECKED} {_KL_LOSS} {_PACKED}
        algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=1024
        data.max_response_length=1024 actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat
        actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 trainer.project_name='verl_grpo_example_gsm8k_math'
        trainer.experiment_name='deepseek_llm_7b_function_rm_math' trainer.save_freq=20 trainer.test_freq=5
    """,
    "ppo deepseek 7b": f"""
        {_GSM8K} {_NODE} trainer.logger="['console']" {_IN_MEMORY} {_CHECKED} {_PACKED} algorithm.adv_estimator=gae
        data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=512
        actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
        actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
        actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.4 critic.optim.lr=1e-5
        critic.model.use_remove_padding=False critic.model.path=deepseek-ai/deepseek-llm-7b-chat
        critic.model.enable_gradient_checkpointing=True critic.ppo_micro_batch_size_per_gpu=32
        critic.model.fsdp_config.param_offload=False critic.model.fsdp_config.optimizer_offload=False
        algorithm.use_kl_in_reward=False trainer.project_name='verl_example_gsm8k'
        trainer.experiment_name='deepseek_llm_7b_function_rm' trainer.total_training_steps=2
        trainer.use_legacy_worker_impl=False
    """,
    "ppo qwen2 7b, a reward model": f"""
        {_BOTH} {_NODE} {_TWO_LOGGERS} {_OLDER_ACTOR} {_OLDER_CRITIC} {_REFERENCE_AWAY} data.train_batch_size=1024
        data.val_batch_size=6312 data.max_prompt_length=1024 data.max_response_length=512 data.return_raw_chat=True
        actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.model.use_rmpad=True actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1
        actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size=16
        actor_rollout_ref.rollout.log_prob_micro_batch_size=16 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
        actor_rollout_ref.ref.log_prob_micro_batch_size=16 critic.optim.lr=1e-5 critic.model.use_rmpad=True
        critic.optim.lr_warmup_steps_ratio=0.05 critic.model.path=Qwen/Qwen2-7B-Instruct
        critic.model.enable_gradient_checkpointing=False critic.ppo_micro_batch_size=16 reward_model.enable=True
        reward_model.model.path=sfairXC/FsfairX-Gemma2-RM-v0.1 reward_model.model.use_rmpad=True
        reward_model.model.fsdp_config.param_offload=True reward_model.micro_batch_size=16
        algorithm.kl_ctrl.kl_coef=0.001 trainer.project_name='verl_example'
        trainer.experiment_name='Qwen2-7B-Instruct_hybrid_rm' trainer.save_freq=-1 trainer.test_freq=5
    """,
    "ppo qwen2 7b, balanced": f"""
        {_BOTH} {_NODE} {_TWO_LOGGERS} {_OLDER_ACTOR} {_OLDER_CRITIC} {_REFERENCE_AWAY} {_PACKED}
        data.train_batch_size=4096 data.val_batch_size=1312 data.max_prompt_length=4096 data.max_response_length=4096
        actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.actor.ppo_mini_batch_size=512 actor_rollout_ref.actor.ppo_micro_batch_size=128
        actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
        actor_rollout_ref.rollout.log_prob_micro_batch_size=256 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.5
        actor_rollout_ref.ref.log_prob_micro_batch_size=256 critic.optim.lr=1e-5 critic.model.use_remove_padding=True
        critic.model.path=Qwen/Qwen2.5-Math-PRM-7B critic.model.enable_gradient_checkpointing=True
        critic.ppo_micro_batch_size=256 algorithm.kl_ctrl.kl_coef=0.001 trainer.project_name='verl_example_gsm8k'
        trainer.experiment_name='qwen2-7b_function_rm_bsz8k_p4k_r4k_seq_packing' +trainer.val_before_train=False
        trainer.save_freq=-1 trainer.test_freq=5
    """,
    "ppo deepseek 7b, two devices a sequence": f"""
        {_GSM8K} {_NODE} {_TWO_LOGGERS} {_IN_MEMORY} {_REFERENCE_AWAY} {_CHECKED} {_PACKED} data.train_batch_size=1024
        data.max_prompt_length=512 data.max_response_length=512
        actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
        actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64
        actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=64
        critic.optim.lr=1e-5 critic.ulysses_sequence_parallel_size=2 critic.model.use_remove_padding=True
        critic.model.path=deepseek-ai/deepseek-llm-7b-chat critic.model.enable_gradient_checkpointing=True
        critic.ppo_micro_batch_size_per_gpu=64 critic.model.fsdp_config.param_offload=False
        critic.model.fsdp_config.optimizer_offload=False algorithm.use_kl_in_reward=True
        algorithm.kl_ctrl.kl_coef=0.001 trainer.project_name='verl_example_gsm8k'
        trainer.experiment_name='deepseek_llm_7b_function_rm_sp2' trainer.save_freq=-1 trainer.test_freq=5
    """,
    "ppo gemma 2b": f"""
        {_GSM8K} {_TWO_GPUS} {_TWO_LOGGERS} {_OLDER_ACTOR} {_OLDER_CRITIC} {_REFERENCE_AWAY} data.train_batch_size=512
        data.val_batch_size=1312 data.max_prompt_length=1024 data.max_response_length=512
        actor_rollout_ref.model.path=google/gemma-2-2b-it actor_rollout_ref.actor.optim.lr=1e-6
        actor_rollout_ref.model.use_rmpad=True actor_rollout_ref.actor.ppo_mini_batch_size=128
        actor_rollout_ref.actor.ppo_micro_batch_size=4 actor_rollout_ref.rollout.log_prob_micro_batch_size=4
        actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.ref.log_prob_micro_batch_size=4
        critic.optim.lr=1e-5 critic.model.use_rmpad=True critic.model.path=google/gemma-2-2b-it
        critic.model.enable_gradient_checkpointing=False critic.ppo_micro_batch_size=4
        algorithm.kl_ctrl.kl_coef=0.001 trainer.project_name='verl_example'
        trainer.experiment_name='gemma2b_function_rm' trainer.save_freq=-1 trainer.test_freq=10
    """,
}
EXAMPLES = {name: shlex.split(text) for name, text in _TEXTS.items()}
