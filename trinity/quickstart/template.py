"""The YAML file of the quickstart, meant to be edited."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = """\
# Trinity quickstart: teach a tiny model two-digit addition, first supervised fine-tuning, then GRPO.
#
#   check it     trinity validate --config {yaml_path}
#   run it       trinity run --config {yaml_path}
#   change it    trinity run --config {yaml_path} --set seed=7 --set continue_from_checkpoint=false
#
# A key that a stage does not name has the value that stands at the top level.

project: quickstart
name: addition
checkpoint_root_dir: {checkpoint_root_dir}
continue_from_checkpoint: true    # run again after an interruption and it continues from the last checkpoint
seed: {seed}
deterministic: true               # two runs with one seed give bitwise identical weights

model:
  model_path: {model_path}
  max_prompt_tokens: 16
  max_response_tokens: 24

trainer:
  grad_clip: 1.0
  max_token_len_per_gpu: 8192       # tokens a micro-batch; a small model takes the whole batch at once
  max_checkpoints_to_keep: 2
  trainer_config:
    actor_rollout_ref:
      model:
        enable_gradient_checkpointing: false   # saves memory that this model does not need
      actor:
        fsdp_config:
          dtype: float32          # so small a model gains nothing from bfloat16

monitor:
  monitor_type: tensorboard

stages:
  # Supervised fine-tuning. Most demonstrations forget the carry, so the model learns a right way and a wrong way.
  - stage_name: sft_warmup
    mode: train
    algorithm:
      algorithm_type: sft
      optimizer:
        lr: 2.0e-3
        lr_scheduler_type: linear
        lr_warmup_steps: 20
        min_lr_ratio: 0.0
        betas: [0.9, 0.98]
    buffer:
      train_batch_size: 64        # demonstrations a step
      trainer_input:
        experience_buffer:
          name: demonstrations
          storage_type: file
          path: {sft_path}
          format:
            prompt_type: plaintext
            prompt_key: question
            response_key: answer
    trainer:
      total_steps: 550
      save_interval: 200
      save_hf_checkpoint: last    # the next stage starts from it

  # Reinforcement. The reward is 1 for the right sum and 0 for any other, and it finds the right way.
  - stage_name: rft
    mode: both
    algorithm:
      algorithm_type: grpo
      repeat_times: 8             # rollouts a problem; they are compared with each other
      kl_loss_fn: none
      optimizer:
        lr: 2.0e-4
        lr_scheduler_type: linear
        lr_warmup_steps: 5
        min_lr_ratio: 0.1
        betas: [0.9, 0.95]
        weight_decay: 0.0
    buffer:
      batch_size: 32              # problems a step
      train_batch_size: 128       # rollouts an optimizer step: two steps for the 32 x 8 of one exploration
      total_steps: 40
      explorer_input:
        default_workflow_type: simple_workflow
        default_reward_fn_type: accuracy_reward
        taskset:
          name: addition_train
          storage_type: file
          path: {train_path}
          format:
            prompt_key: question
            response_key: answer
          rollout_args:
            temperature: 1.0
        eval_tasksets:
          - name: addition_test   # held out: neither a+b nor b+a is trained on
            storage_type: file
            path: {test_path}
            format:
              prompt_key: question
              response_key: answer
            rollout_args:
              temperature: 0.0    # greedy
    explorer:
      runner_per_model: 256       # tasks under way at once: an evaluation of 512 problems is two full batches
      rollout_model:
        dtype: float32            # as the trainer, so that both see the same probabilities
      eval_interval: 10
      eval_on_startup: true
    synchronizer:
      sync_style: fixed
      explorer_sync_interval: 1   # new weights after every exploration,
      trainer_sync_interval: 2    # which is every second optimizer step
    trainer:
      save_interval: 20
      save_hf_checkpoint: last
"""


def render(directory: Path, *, seed: int) -> str:
    """Return the quickstart's YAML with absolute paths below `directory`."""
    root = directory.absolute()
    places = {
        "checkpoint_root_dir": root / "checkpoints",
        "model_path": root / "model",
        "sft_path": root / "data" / "sft.jsonl",
        "train_path": root / "data" / "train.jsonl",
        "test_path": root / "data" / "test.jsonl",
    }
    quoted = {key: _scalar(str(path)) for key, path in places.items()}
    return TEMPLATE.format(seed=seed, yaml_path=directory / "quickstart.yaml", **quoted)


def _scalar(path: str) -> str:
    """Return `path` as a YAML scalar that no interpolation changes."""
    escaped = path.replace("${", "\\${")
    is_simple = all(character.isalnum() or character in "/._-" for character in escaped)
    return escaped if is_simple else json.dumps(escaped, ensure_ascii=False)
