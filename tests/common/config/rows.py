"""Wrong configurations: the text, the code, the key, the line and a part of the way out."""

from __future__ import annotations

from tests.common.config.conftest import MINIMAL


def with_(extra: str, **replaced: str) -> str:
    """Return the minimal file with lines replaced (`batch_size="batch_size: 0"`) and text added from line 13 on."""
    lines = MINIMAL.splitlines()
    for name, line in replaced.items():
        at = next(i for i, text in enumerate(lines) if text.strip().startswith(f"{name}:"))
        indent = len(lines[at]) - len(lines[at].lstrip())
        lines[at] = " " * indent + line
    return "\n".join(lines) + "\n" + extra


KEYS_AND_TYPES = {
    "B01": (with_("algoritm: {}\n"), "E1203", "algoritm", 13, "`algorithm`"),
    "B02": (with_("algorithm:\n  repeat_time: 8\n"), "E1203", "algorithm.repeat_time", 14, "`repeat_times`"),
    "B03": (with_("algorithm:\n  lr: 1e-6\n"), "E1204", "algorithm.lr", 14, "`algorithm.optimizer.lr`"),
    "B03b": (
        with_("", model_path="model_path: /models/tiny\n  lora_configs: [{rank: 8}]"),
        "E1203",
        "model.lora_configs[0].rank",
        5,
        "`lora_rank`",
    ),
    "B04": (
        with_("trainer:\n  ppo_mini_batch_size: 8\n"),
        "E1205",
        "trainer.ppo_mini_batch_size",
        14,
        "`buffer.train_batch_size`",
    ),
    "B05": (with_("explorer:\n  runner_num: 8\n"), "W1301", "explorer.runner_num", 14, "`explorer.runner_per_model`"),
    "B06": (with_("", batch_size="batch_size: abc"), "E1101", "buffer.batch_size", 7, None),
    "B07": (with_("", batch_size="batch_size: 32.5"), "E1101", "buffer.batch_size", 7, None),
    "bool for int": (with_("", batch_size="batch_size: true"), "E1101", "buffer.batch_size", 7, None),
    "B11": (with_("trainer:\n  megatron: [1]\n"), "E1101", "trainer.megatron", 14, "megatron: {"),
    "map for list": (
        with_("explorer:\n  auxiliary_models: {a: 1}\n"),
        "E1101",
        "explorer.auxiliary_models",
        14,
        "[...]",
    ),
    "B20": (
        with_("", model_path="model_path: ${oc.env:NOPE_NOT_SET}"),
        "E1401",
        "model.model_path",
        4,
        "export NOPE_NOT_SET",
    ),
    "B21": (
        with_("", model_path="model_path: ${model.max_model_ln}"),
        "E1402",
        "model.model_path",
        4,
        "`model.max_model_len`",
    ),
    "B22": (with_("", project="project: ${name}", name="name: ${project}"), "E1403", "project", 1, "value"),
    "B23": (with_("", model_path="model_path: ${custom_resolver:x}"), "E1404", "model.model_path", 4, "oc.env"),
    "bad interpolation": (with_("", model_path="model_path: '${model.'"), "E1405", "model.model_path", 4, "${section"),
    "B24": (
        with_("monitor:\n  monitor_args: {api_key: canary-7261}\n"),
        "W1501",
        "monitor.monitor_args.api_key",
        14,
        "oc.env:TENSORBOARD_API_KEY",
    ),
    "B27 missing": (with_("stages:\n- mode: train\n"), "E1601", "stages[0].stage_name", 14, "stage_name"),
    "B27 twice": (with_("stages:\n- stage_name: a\n- stage_name: a\n"), "E1601", "stages[1].stage_name", 15, "unique"),
    "B28": (with_("stages:\n- stage_name: a\n  cluster: {}\n"), "E1602", "stages[0].cluster", 15, "synchronizer"),
    "stage typo": (
        with_("stages:\n- stage_name: a\n  algoritm: {}\n"),
        "E1203",
        "stages[0].algoritm",
        15,
        "`algorithm`",
    ),
    "stages no list": (with_("stages: {a: 1}\n"), "E1101", "stages", 13, "- stage_name"),
}

RANGES = {
    "B29": (with_("mode: trian\n"), "E1301", "mode", 13, "`train`"),
    "B30": (with_("algorithm:\n  algorithm_type: grop\n"), "E1301", "algorithm.algorithm_type", 14, "`grpo`"),
    "B31": (with_("monitor:\n  monitor_type: wanbd\n"), "E1301", "monitor.monitor_type", 14, "`wandb`"),
    "B32": (
        with_("", name="storage_type: redis\n      name: t")
        .replace("storage_type: redis\n      name: t", "name: n", 1)
        .replace("      path: data.jsonl", "      path: data.jsonl\n      storage_type: redis"),
        "E1301",
        "buffer.explorer_input.taskset.storage_type",
        12,
        "queue, sql",
    ),
    "B33": (with_("synchronizer:\n  sync_method: ncll\n"), "E1301", "synchronizer.sync_method", 14, "`nccl`"),
    "B34": (with_("synchronizer:\n  sync_style: fixd\n"), "E1301", "synchronizer.sync_style", 14, "`fixed`"),
    "B35": (
        with_("", default_workflow_type="default_workflow_type: math_worklow"),
        "E1701",
        "buffer.explorer_input.taskset.default_workflow_type",
        12,
        "`math_workflow`",
    ),
    "reward": (
        with_("      default_reward_fn_type: math_rewrad\n"),
        "E1701",
        "buffer.explorer_input.taskset.default_reward_fn_type",
        13,
        "`math_reward`",
    ),
    "selector": (
        with_("      data_selector: {selector_type: shufle}\n"),
        "E1701",
        "buffer.explorer_input.taskset.data_selector.selector_type",
        13,
        "`shuffle`",
    ),
    "operator": (
        with_("data_processor:\n  experience_pipeline:\n    operators:\n    - name: reward_std_filtr\n"),
        "E1701",
        "data_processor.experience_pipeline.operators[0].name",
        16,
        "`reward_std_filter`",
    ),
    "advantage": (with_("algorithm:\n  advantage_fn: gpro\n"), "E1701", "algorithm.advantage_fn", 14, "`grpo`"),
    "argument": (
        with_("algorithm:\n  kl_loss_fn_args: {kl_coeff: 1}\n"),
        "E1703",
        "algorithm.kl_loss_fn_args.kl_coeff",
        14,
        "`kl_coef`",
    ),
    "B36": (with_("log:\n  level: verbose\n"), "E1301", "log.level", 14, "INFO"),
    "B37 zero": (with_("", batch_size="batch_size: 0"), "E1302", "buffer.batch_size", 7, None),
    "B37 negative": (with_("", batch_size="batch_size: -4"), "E1302", "buffer.batch_size", 7, None),
    "B38 negative": (with_("algorithm:\n  optimizer: {lr: -1}\n"), "E1302", "algorithm.optimizer.lr", 14, None),
    "B38 high": (with_("algorithm:\n  optimizer: {lr: 100}\n"), "W1303", "algorithm.optimizer.lr", 14, "1e-6"),
    "B39 zero": (with_("algorithm:\n  repeat_times: 0\n"), "E1302", "algorithm.repeat_times", 14, None),
    "B39 one": (with_("algorithm:\n  repeat_times: 1\n"), "E1801", "algorithm.repeat_times", 14, "repeat_times: 8"),
    "B40 temperature": (
        with_("      rollout_args: {temperature: -1}\n"),
        "E1302",
        "buffer.explorer_input.taskset.rollout_args.temperature",
        13,
        None,
    ),
    "B40 top_p": (
        with_("      rollout_args: {top_p: 1.5}\n"),
        "E1302",
        "buffer.explorer_input.taskset.rollout_args.top_p",
        13,
        None,
    ),
    "B41": (
        with_("explorer:\n  rollout_model: {gpu_memory_utilization: 1.5}\n"),
        "E1302",
        "explorer.rollout_model.gpu_memory_utilization",
        14,
        None,
    ),
    "B42 engines": (
        with_("explorer:\n  rollout_model: {engine_num: 0}\n"),
        "E1302",
        "explorer.rollout_model.engine_num",
        14,
        None,
    ),
    "B42 parallel": (
        with_("explorer:\n  rollout_model: {tensor_parallel_size: 0}\n"),
        "E1302",
        "explorer.rollout_model.tensor_parallel_size",
        14,
        None,
    ),
    "B43 timeout": (with_("explorer:\n  max_timeout: -5\n"), "E1302", "explorer.max_timeout", 14, None),
    "B43 eval": (with_("explorer:\n  eval_interval: 0\n"), "E1302", "explorer.eval_interval", 14, "`null`"),
    "B43 save": (with_("trainer:\n  save_interval: -1\n"), "E1302", "trainer.save_interval", 14, None),
    "B44": (with_("synchronizer:\n  sync_interval: 0\n"), "E1302", "synchronizer.sync_interval", 14, None),
    "B45": (with_("explorer:\n  proxy_port: 99999\n"), "E1302", "explorer.proxy_port", 14, None),
    "B46 negative": (with_("trainer:\n  grad_clip: -1\n"), "E1302", "trainer.grad_clip", 14, None),
    "B46 inf": (with_("trainer:\n  grad_clip: .inf\n"), "E1302", "trainer.grad_clip", 14, None),
    "B46 nan": (with_("trainer:\n  grad_clip: .nan\n"), "E1302", "trainer.grad_clip", 14, None),
    "B48": (
        with_("  trainer_input:\n    experience_buffer: {name: 'x\"; drop table t;--'}\n"),
        "E1304",
        "buffer.trainer_input.experience_buffer.name",
        14,
        "xdroptablet",
    ),
    "B49": (
        with_("  trainer_input:\n    experience_buffer: {name: train}\n"),
        "E1305",
        "buffer.trainer_input.experience_buffer.name",
        14,
        "own name",
    ),
    "B49 tasksets": (
        with_("    eval_tasksets: [{name: train, path: e, default_workflow_type: math_workflow}]\n"),
        "W1305",
        "buffer.explorer_input.eval_tasksets[0].name",
        13,
        "its own name",
    ),
    "B49 actors": (with_("explorer: {name: trainer}\n"), "E1305", "trainer.name", None, "own name"),
    "B50": (with_("  total_epochs: 1e9\n"), "W1306", "buffer.total_epochs", 13, "meant"),
}

SFT = with_(
    "  train_batch_size: 8\n  trainer_input: {experience_buffer: {path: d.jsonl}}\n"
    "mode: train\nalgorithm: {algorithm_type: sft}\n"
)

COMBINATIONS = {
    "B51": (
        with_("", max_model_len="max_model_len: 128\n  max_prompt_tokens: 100\n  max_response_tokens: 100"),
        "E1802",
        "model.max_prompt_tokens",
        6,
        "200",
    ),
    "B52": (
        with_("", max_model_len="max_model_len: 2048\n  max_response_tokens: 4096"),
        "E1802",
        "model.max_response_tokens",
        6,
        "max_model_len",
    ),
    "B53": (
        with_(
            "  train_batch_size: 32\ntrainer:\n  use_dynamic_bsz: false\n  trainer_config: {actor_rollout_ref: "
            "{actor: {ppo_micro_batch_size_per_gpu: 5}}}\n"
        ),
        "E1803",
        "buffer.train_batch_size",
        13,
        "30 or 35",
    ),
    "B54": (SFT + "synchronizer:\n  sync_method: nccl\n", "W1804", "synchronizer.sync_method", 18, "checkpoint"),
    "B55": (with_("explorer:\n  over_rollout: {ratio: 0.5}\n"), "E1805", "explorer.over_rollout.ratio", 14, "ratio: 0"),
    "B55 deterministic": (
        with_("explorer:\n  dynamic_timeout: {enable: true}\ndeterministic: true\n"),
        "E1805",
        "explorer.dynamic_timeout.enable",
        14,
        "deterministic: false",
    ),
    "B56": (
        with_("trainer:\n  trainer_config_path: x.yaml\n  trainer_config: {critic: {}}\n"),
        "E1806",
        "trainer.trainer_config_path",
        14,
        "one of them",
    ),
    "B57": (
        with_("    tasksets: [{name: b, path: c}]\n"),
        "E1806",
        "buffer.explorer_input.tasksets",
        13,
        "one of them",
    ),
    "B58": (with_("algorithm: {algorithm_type: sft}\n"), "E1807", "mode", None, "mode: train"),
    "B58 dpo": (
        with_("algorithm: {algorithm_type: dpo, repeat_times: 8}\n"),
        "E1807",
        "algorithm.repeat_times",
        13,
        "remove",
    ),
    "B59": (
        with_("explorer: {rollout_model: {engine_num: 9}}\ncluster: {node_num: 1, gpu_per_node: 8}\n"),
        "E1808",
        "explorer.rollout_model.engine_num",
        13,
        "at most 7",
    ),
    "B60 train": (
        MINIMAL + "mode: train\nalgorithm: {algorithm_type: sft}\n",
        "E1809",
        "buffer.trainer_input.experience_buffer",
        6,
        "experience_buffer:",
    ),
    "B60 explore": (
        "project: p\nname: n\nmodel: {model_path: m, max_model_len: 8}\nbuffer: {batch_size: 1}\n",
        "E1809",
        "buffer.explorer_input.taskset",
        4,
        "taskset:",
    ),
    "B62": (
        with_("  trainer_input:\n    experience_buffer: {storage_type: file, path: x}\n"),
        "E1811",
        "buffer.trainer_input.experience_buffer.storage_type",
        14,
        "queue",
    ),
    "B63": (
        with_("synchronizer: {sync_method: nccl}\n", max_model_len="max_model_len: 128\n  lora_configs: [{}]"),
        "W1812",
        "synchronizer.sync_method",
        14,
        "checkpoint",
    ),
    "B64": (
        with_("", max_model_len="max_model_len: 128\n  critic_model_path: /c"),
        "W1813",
        "model.critic_model_path",
        6,
        "remove",
    ),
    "no lengths": (with_("", max_model_len="max_prompt_tokens: 8"), "E1820", "model.max_model_len", 3, "max_model_len"),
    "no model": (with_("", model_path="trust_remote_code: false"), "E1821", "model.model_path", 3, "folder"),
    "no batch": (
        with_(
            "  trainer_input: {experience_buffer: {path: d}}\nmode: train\nalgorithm: {algorithm_type: sft}\n",
            batch_size="total_epochs: 1",
        ),
        "E1822",
        "buffer.train_batch_size",
        6,
        "experiences",
    ),
    "min tokens": (
        with_("", max_model_len="max_model_len: 8\n  min_response_tokens: 9"),
        "W1823",
        "model.min_response_tokens",
        6,
        None,
    ),
    "rhythm": (with_("  train_batch_size: 30\n"), "E1824", "buffer.train_batch_size", 13, "train_batch_size: 32"),
    "steps": (
        with_("  total_steps: 5\ntrainer: {total_steps: 6}\n"),
        "E1825",
        "trainer.total_steps",
        14,
        "one of them",
    ),
    "sft path": (
        with_(
            "  train_batch_size: 8\n  trainer_input: {experience_buffer: {name: b}}\nmode: train\n"
            "algorithm: {algorithm_type: sft}\n"
        ),
        "E1826",
        "buffer.trainer_input.experience_buffer.path",
        14,
        "dataset",
    ),
    "other database": (
        with_("  trainer_input: {experience_buffer: {path: 'mysql://me:canary@host/d'}}\n"),
        "E1829",
        "buffer.trainer_input.experience_buffer.path",
        13,
        "sqlite:///experience.db",
    ),
    "database in memory": (
        with_("  trainer_input: {experience_buffer: {path: 'sqlite:///:memory:'}}\n"),
        "E1829",
        "buffer.trainer_input.experience_buffer.path",
        13,
        "sqlite:///experience.db",
    ),
    "task path": (with_("", path="split: train"), "E1827", "buffer.explorer_input.taskset.path", 9, "where"),
    "no workflow": (
        with_("", default_workflow_type="split: train"),
        "E1828",
        "buffer.explorer_input.taskset.default_workflow_type",
        9,
        "math_workflow",
    ),
    "two names of lr": (
        with_(
            "algorithm: {optimizer: {lr: 1e-5}}\ntrainer: {trainer_config: {actor_rollout_ref: {actor: "
            "{optim: {lr: 1e-6}}}}}\n"
        ),
        "E1815",
        "trainer.trainer_config.actor_rollout_ref.actor.optim.lr",
        14,
        "algorithm.optimizer.lr",
    ),
    "mini-batch": (
        with_("trainer: {trainer_config: {actor_rollout_ref: {actor: {ppo_mini_batch_size: 7}}}}\n"),
        "W1816",
        "trainer.trainer_config.actor_rollout_ref.actor.ppo_mini_batch_size",
        13,
        "buffer.train_batch_size",
    ),
    "derived veRL key": (
        with_("trainer: {trainer_config: {trainer: {save_freq: 7}}}\n"),
        "E1816",
        "trainer.trainer_config.trainer.save_freq",
        13,
        "trainer.save_interval",
    ),
    "keep one": (with_("trainer: {max_checkpoints_to_keep: 1}\n"), "W7030", "trainer.max_checkpoints_to_keep", 13, "2"),
    "unused section": (SFT + "explorer: {max_timeout: 3}\n", "W1902", "explorer", 17, None),
}
