"""A configuration of ours as a file of veRL or ModelArts.

The table of keys is read backwards. What comes out is translated again by whoever asks, and compared: what the dialect
cannot say is then known, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from trinity.common.config.dialects.algorithms import ESTIMATORS, LOSSES
from trinity.common.config.dialects.data_keys import TASKSET, TESTS
from trinity.common.config.dialects.foreign_key import VERL_TREE, Fate, ForeignKey
from trinity.common.config.dialects.modelarts import BACKEND, OUTPUT
from trinity.common.config.dialects.releases import AVERAGING
from trinity.common.config.dialects.table import by_name
from trinity.common.config.overrides import parse_path
from trinity.common.config.schema_index import default_at

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_LOSS, _ADVANTAGE = "algorithm.policy_loss_fn_args", "algorithm.advantage_fn_args"
_PENALTY = "algorithm.kl_penalty_fn_args"
_ENGINE = "explorer.rollout_model"
# Conversions that hand a value over as it is, where a key has one place.
_AS_IT_IS = (
    "", "model", "trust", "lengths", "warmup", "schedule", "sampling", "micro_batches", "token_budgets", "steps",
    "engine", "devices", "intervals", "names", "correction", "old_logprobs",
)  # fmt: skip
_OTHERWISE = (
    "trainer.critic_warmup", "trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.val_only",
    "critic.model.tokenizer_path", f"{_ROLLOUT}.prompt_length", f"{_ROLLOUT}.response_length",
)  # fmt: skip
_TYPES = {"grpo": "grpo", "ppo": "gae", "rloo": "rloo", "remax": "remax", "opo": "opo"}

Get = Callable[[str], Any]


def as_verl(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return veRL's keys, dotted, of the values of a file of ours."""
    get = _reader(values)
    found: dict[str, Any] = {}
    places = set[str]()
    for row in by_name().values():
        if _is_backwards(row) and row.to[0] not in places and (value := get(row.to[0])) is not None:
            places.add(row.to[0])
            found[row.name] = value
    for part in (_data, _overlong, _sizes, _algorithm, _kl, _loop, _engine_args):
        found |= {name: value for name, value in part(get) if value is not None}
    return found


def as_modelarts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ModelArts' keys, dotted, of the values of a file of ours."""
    found = as_verl(values)
    found.pop("trainer.default_local_dir", None)
    found.setdefault(f"{_ACTOR}.use_kl_loss", False)  # its own default is true
    root = _reader(values)("checkpoint_root_dir") or "checkpoints"  # as where it is not written
    return {OUTPUT: root} | {f"{BACKEND}.{name}": value for name, value in found.items()}


def nested(dotted_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as sections."""
    result: dict[str, Any] = {}
    for name, value in dotted_values.items():
        *above, last = name.split(".")
        node = result
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return result


def _reader(values: Mapping[str, Any]) -> Get:
    def get(place: str) -> Any:
        node: Any = values
        for part in parse_path(place) or ():
            is_there = (
                part in node if isinstance(node, Mapping) else isinstance(node, list) and part in range(len(node))
            )
            if not is_there:
                return None
            node = node[part]
        return node

    return get


def _is_backwards(row: ForeignKey) -> bool:
    is_of_all = f"{row.name}_per_gpu" in by_name()  # the same size, of all workers
    is_plain = row.fate is Fate.HONOURED and len(row.to) == 1 and row.via in _AS_IT_IS and "*" not in row.name
    return is_plain and not is_of_all and row.name not in _OTHERWISE


def _data(get: Get) -> Iterator[tuple[str, Any]]:
    tests = f"{TESTS}[0]"
    yield "data.train_files", get(f"{TASKSET}.path")
    yield "data.val_files", get(f"{tests}.path")
    yield "data.prompt_key", get(f"{TASKSET}.format.messages_key")
    yield "data.reward_fn_key", get(f"{TASKSET}.workflow_args.source_key")
    yield "data.image_key", get(f"{TASKSET}.format.image_key")
    selector = get(f"{TASKSET}.data_selector.selector_type")
    yield "data.shuffle", {"shuffle": True, "sequential": False}.get(selector)
    yield "data.seed", get(f"{TASKSET}.data_selector.seed")
    yield "data.truncation", get("model.prompt_truncation")
    yield "data.filter_overlong_prompts", True if get(f"{TASKSET}.long_prompts") == "drop" else None
    scorer = f"{TASKSET}.workflow_args"
    yield "custom_reward_function.path", get(f"{scorer}.path")
    yield "custom_reward_function.name", get(f"{scorer}.function")
    yield "custom_reward_function.reward_kwargs", get(f"{scorer}.arguments")
    for name in ("temperature", "top_p", "top_k"):
        value = get(f"{tests}.rollout_args.{name}")
        if name == "temperature":
            yield f"{_ROLLOUT}.val_kwargs.do_sample", None if value is None else value > 0
        yield f"{_ROLLOUT}.val_kwargs.{name}", value or None
    yield f"{_ROLLOUT}.val_kwargs.n", get(f"{tests}.repeat_times")


def _overlong(get: Get) -> Iterator[tuple[str, Any]]:
    cost = get(f"{TASKSET}.workflow_args.overlong")
    if isinstance(cost, Mapping):
        yield "reward_model.reward_manager", "dapo"
        yield "reward_model.reward_kwargs.max_resp_len", cost["max_length"]
        buffer = {"enable": True, "len": cost["margin"], "penalty_factor": cost["factor"]}
        yield "reward_model.reward_kwargs.overlong_buffer_cfg", buffer


def _sizes(get: Get) -> Iterator[tuple[str, Any]]:
    repeats, mini, batch = get("algorithm.repeat_times") or 1, get("trainer.mini_batch_size"), get("buffer.batch_size")
    yield f"{_ROLLOUT}.n", get("algorithm.repeat_times")
    yield f"{_ACTOR}.ppo_mini_batch_size", batch if mini is None else max(1, mini // repeats)
    yield "trainer.n_gpus_per_node", get("cluster.gpu_per_node")
    yield "compat", AVERAGING if get("algorithm.loss_agg_scope") == "micro_batch" else None


def _algorithm(get: Get) -> Iterator[tuple[str, Any]]:
    function, kind = get("algorithm.advantage_fn"), get("algorithm.algorithm_type")
    by_function = {own: name for name, (_, own, _) in ESTIMATORS.items()} | {"ppo": "gae"}
    estimator = by_function.get(function, _TYPES.get(kind))
    yield "algorithm.adv_estimator", estimator
    for name in ESTIMATORS[estimator][2] if estimator else ():
        yield f"algorithm.{name}", get(f"{_ADVANTAGE}.{name}")
    mode = str(get("algorithm.policy_loss_fn") or "").removeprefix("verl_")
    own = {"loss_mode": mode if mode in LOSSES else "vanilla"}
    for key, argument in LOSSES.get(mode, {}).items():
        value = get(f"{_LOSS}.{argument}")
        if key.startswith("policy_loss.") and value is not None:
            own[argument] = value
        elif not key.startswith("policy_loss."):
            yield f"{_ACTOR}.{key}", value
    yield f"{_ACTOR}.policy_loss", own if own != {"loss_mode": "vanilla"} else None
    yield f"{_ACTOR}.loss_agg_mode", get(f"{_LOSS}.loss_agg_mode") or get("algorithm.loss_agg_mode")
    yield f"{_ACTOR}.entropy_coeff", get("algorithm.entropy_loss_fn_args.entropy_coef")
    adapter = get("model.lora_configs[0]") or {}
    names = {"path": "lora_adapter_path", "lora_rank": "lora_rank", "lora_alpha": "lora_alpha"}
    for name in ("path", "lora_rank", "lora_alpha", "target_modules", "exclude_modules"):
        yield f"actor_rollout_ref.model.{names.get(name, name)}", adapter.get(name)


def _kl(get: Get) -> Iterator[tuple[str, Any]]:
    loss, penalty = get("algorithm.kl_loss_fn"), get("algorithm.kl_penalty_fn")
    yield f"{_ACTOR}.use_kl_loss", None if loss is None else loss != "none"
    if loss not in (None, "none"):
        yield f"{_ACTOR}.kl_loss_type", loss
        yield f"{_ACTOR}.kl_loss_coef", get("algorithm.kl_loss_fn_args.kl_coef")
    yield "algorithm.use_kl_in_reward", None if penalty is None else penalty != "none"
    if penalty not in (None, "none"):
        yield "algorithm.kl_penalty", penalty
        yield "algorithm.kl_ctrl.type", "adaptive" if get(f"{_PENALTY}.adaptive") else None
        for name in ("kl_coef", "horizon", "target_kl"):
            yield f"algorithm.kl_ctrl.{name}", get(f"{_PENALTY}.{name}")


def _loop(get: Get) -> Iterator[tuple[str, Any]]:
    # An absent name is ours, which differs from veRL's.
    project, name = (get(key) or default_at((key,))[1] for key in ("project", "name"))
    yield "trainer.project_name", project
    yield "trainer.experiment_name", name
    root = get("checkpoint_root_dir")
    if root is not None:
        yield "trainer.default_local_dir", str(PurePath(str(root)) / str(project) / str(name))
    warmup = get("trainer.critic_warmup")
    yield "trainer.critic_warmup", None if warmup is None else warmup + 1
    yield "trainer.val_only", True if get("mode") == "bench" else None
    monitors = get("monitor.monitor_type")
    asked = [monitors] if isinstance(monitors, str) else list(monitors or ())
    yield "trainer.logger", None if monitors is None else ["console", *filter(None, asked)]
    upload = get("trainer.checkpoint_upload_dir")
    if upload is not None:
        yield "trainer.default_hdfs_dir", f"{str(upload).rstrip('/')}/{project}/{name}"
    if get("trainer.save_interval") is None:
        yield "trainer.save_freq", -1


def _engine_args(get: Get) -> Iterator[tuple[str, Any]]:
    own = {row.to[0] for row in by_name().values() if row.via == "engine" and row.to}
    for name, value in (get(f"{_ENGINE}.extra_engine_args") or {}).items():
        if f"{_ENGINE}.extra_engine_args.{name}" not in own:
            yield f"{_ROLLOUT}.engine_kwargs.vllm.{name}", value
    if get(f"{VERL_TREE}.reward_model.enable"):
        yield "reward_model.enable", True
