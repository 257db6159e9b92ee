"""Conversions of how a run goes: sizes, devices, names, intervals."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from trinity.common.config.dialects.algorithms import has_critic
from trinity.common.config.dialects.translation import Translation
from trinity.utils.log import redact
from trinity.utils.remote.addresses import scheme_name

_ACTOR, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_ROLLOUT, _ENGINE = "actor_rollout_ref.rollout", "explorer.rollout_model"
_TREE = "trainer.trainer_config"
EMBEDDED = ("torch", "hf")
MONITORS = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "tracking": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
}
ALWAYS_WRITTEN = ("console", "file")


def model(t: Translation) -> None:
    """Take over the folders of policy and critic."""
    name = "actor_rollout_ref.model.path"
    if t.is_written(name):
        t.put("model.model_path", t.value(name), name)
    critic = "critic.model.path"
    if t.is_written(critic) and has_critic(t):
        t.put("model.critic_model_path", t.value(critic), critic)
    tokenizer = "critic.model.tokenizer_path"
    if t.is_written(tokenizer) and t.value(tokenizer) != t.value(name):
        t.refuse(tokenizer, "a critic has the policy's tokens", f"write the path of `{name}`, or remove it")


def trust(t: Translation) -> None:
    """Run a model's own code where either section allows it."""
    for name in ("data.trust_remote_code", "actor_rollout_ref.model.trust_remote_code"):
        if t.value(name):
            t.put("model.trust_remote_code", True, name)
    if t.value("critic.model.trust_remote_code") and has_critic(t):
        t.put(f"{_TREE}.critic.model.trust_remote_code", True, "critic.model.trust_remote_code")


def adapter(t: Translation) -> None:
    """Turn the keys of an adapter into one of `model.lora_configs`."""
    place = "actor_rollout_ref.model"
    rank, path = t.number(f"{place}.lora_rank"), t.value(f"{place}.lora_adapter_path")
    if not rank and not path:
        return
    first = f"{place}.lora_adapter_path" if path else f"{place}.lora_rank"
    t.put("model.lora_configs[0]", {"path": path} if path else {"lora_rank": rank}, first)
    for name in ("lora_rank", "lora_alpha", "target_modules", "exclude_modules"):
        value = t.value(f"{place}.{name}")
        if path:
            t.tell_unused(f"{place}.{name}", f"an adapter that {place}.lora_adapter_path names says it itself")
        elif value is not None and name != "lora_rank":
            t.put(f"model.lora_configs[0].{name}", value, f"{place}.{name}")


def lengths(t: Translation) -> None:
    """Take over the lengths of prompts, responses and both."""
    for what in ("prompt", "response"):
        own, other = f"data.max_{what}_length", f"{_ROLLOUT}.{what}_length"
        size, written = t.value(own), t.value(other)
        if written is not None and written != size:
            t.tell(
                "E1943", other, f"`{t.written(other)}` is {written}, but {own} is {size}", suggestion=f"keep `{own}`"
            )
        t.put(f"model.max_{what}_tokens", size, own)
    longest = f"{_ROLLOUT}.max_model_len"
    if t.is_written(longest):
        t.put("model.max_model_len", t.value(longest), longest)


def sampling(t: Translation) -> None:
    """Take over how rollouts are sampled; without sampling, one is greedy."""
    n, greedy = f"{_ROLLOUT}.n", f"{_ROLLOUT}.do_sample"
    if t.value(greedy) is False:
        t.put("model.temperature", 0.0, greedy)
        t.put("algorithm.repeat_times", 1, greedy)
        return
    t.put("model.temperature", t.value(f"{_ROLLOUT}.temperature"), f"{_ROLLOUT}.temperature")
    if t.value(f"{_ROLLOUT}.top_k") not in (0, -1):
        t.put("model.top_k", t.value(f"{_ROLLOUT}.top_k"), f"{_ROLLOUT}.top_k")
    t.put("model.top_p", t.value(f"{_ROLLOUT}.top_p"), f"{_ROLLOUT}.top_p")
    if t.number(n, 1):
        t.put("algorithm.repeat_times", t.value(n), n)


def repeats(t: Translation) -> int:
    """Return the rollouts of a prompt."""
    return 1 if t.value(f"{_ROLLOUT}.do_sample") is False else int(t.value(f"{_ROLLOUT}.n") or 1)


def batch(t: Translation) -> None:
    """Refuse to sample more prompts than are trained."""
    name = "data.gen_batch_size"
    size, trained = t.number(name, 1), t.value("data.train_batch_size")
    if size is not None and size != trained:
        t.refuse(name, f"as many prompts are sampled as are trained ({trained})", f"remove it, or write {trained}")


def mini_batch(t: Translation) -> None:
    """Turn prompts of a mini-batch into rollouts."""
    own, name = f"{_ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"
    size, batch = t.number(own, 1), t.value("data.train_batch_size")
    if size is None or not isinstance(batch, int):
        return
    if size > batch:
        if t.is_written(own) or t.is_written("data.train_batch_size"):
            t.tell(
                "E1943", own,
                f"`{t.written(own)}` ({size}) must be at most {t.written('data.train_batch_size')} ({batch})",
                suggestion=f"write `{own}: {batch}`",
            )  # fmt: skip
        return
    if size < batch:
        t.put("trainer.mini_batch_size", size * repeats(t), own)
    of_critic = t.number(name, 1)
    if of_critic is not None and has_critic(t) and of_critic != size:
        t.refuse(name, f"policy and critic have the same mini-batches ({size})", f"write `{name}: {size}`")


def micro_batches(t: Translation) -> None:
    """Take over micro-batches: of all workers, or of one."""
    families = {
        _ACTOR: ("ppo_micro_batch_size",),
        _REF: ("log_prob_micro_batch_size",),
        "critic": ("ppo_micro_batch_size", "forward_micro_batch_size"),
        "reward_model": ("micro_batch_size",),
    }
    workers = num_trainers(t) // max(1, int(t.value(f"{_ACTOR}.ulysses_sequence_parallel_size") or 1)) or 1
    for place, names in families.items():
        if (place == "critic" and not has_critic(t)) or (place == "reward_model" and not t.value(f"{place}.enable")):
            continue
        for name in names:
            _micro_batch(t, f"{place}.{name}", workers)


def _micro_batch(t: Translation, name: str, workers: int) -> None:
    each, to = f"{name}_per_gpu", f"{_TREE}.{name}_per_gpu"
    if t.is_written(name) and t.is_written(each):
        t.tell("E1943", name, f"`{t.written(name)}` and {each} are two sizes of one thing", suggestion=f"keep `{each}`")
    elif t.is_written(each):
        if t.number(each, 1):
            t.put(to, t.value(each), each)
    elif t.is_written(name) and (size := t.number(name, 1)):
        if size < workers:
            message = f"`{t.written(name)}` ({size}) must be at least the number of workers ({workers})"
            t.tell("E1943", name, message, suggestion=f"write `{each}: 1`")
            return
        t.put(to, size // workers, name)
        t.tell(
            "W1941", name, f"`{t.written(name)}`: {size} for all {workers} workers is {size // workers} for each",
            suggestion=f"write `{each}: {size // workers}`",
        )  # fmt: skip


def token_budgets(t: Translation) -> None:
    """Take over budgets in tokens, where micro-batches are made by tokens."""
    budget, switch = f"{_ACTOR}.ppo_max_token_len_per_gpu", f"{_ACTOR}.use_dynamic_bsz"
    if t.value(switch):
        t.put("trainer.max_token_len_per_gpu", t.value(budget), budget)
    elif t.is_written(budget):
        message = f"`{t.written(budget)}` changes nothing here: it counts with {switch}: true"
        t.tell("W1940", budget, message)
    name = f"{_REF}.log_prob_max_token_len_per_gpu"
    own = f"{_REF}.log_prob_use_dynamic_bsz"
    if not t.value(own) and not t.value(switch):
        t.tell_unused(name, f"it counts with {own}: true, or {switch}: true")
    elif t.is_written(name):
        t.put(f"{_TREE}.{name}", t.value(name), name)


def num_gpus(t: Translation) -> int:
    """Return the GPUs of the run; 0 on a CPU."""
    return int(t.number("trainer.nnodes", 1) or 1) * int(t.number("trainer.n_gpus_per_node") or 0)


def num_engines(t: Translation) -> tuple[int, int]:
    """Return the engines of a run, and the GPUs of each.

    Of several GPUs half are for engines, as far as engines fit into them.
    """
    tensor, pipeline = engine_sizes(t)
    each = tensor * pipeline
    return max(1, num_gpus(t) // 2 // each), each


def engine_sizes(t: Translation) -> tuple[int, int]:
    """Return the tensor and pipeline parallel sizes of an engine.

    veRL lets an engine have all GPUs, since the trainer waits meanwhile; here at least one is the trainer's. The tensor
    parallel size divides that of the file, so that it divides the heads of the model as well.
    """
    asked = [int(t.number(f"{_ROLLOUT}.{name}_model_parallel_size", 1) or 1) for name in ("tensor", "pipeline")]
    total = num_gpus(t)
    if total < 2 or is_embedded(t):
        return 1, 1
    tensor, pipeline = asked
    if tensor * pipeline < total:
        return tensor, pipeline
    pipeline = pipeline if pipeline < total else 1
    return max(size for size in range(1, tensor + 1) if tensor % size == 0 and size * pipeline < total), pipeline


def num_trainers(t: Translation) -> int:
    """Return the workers that train."""
    engines, each = num_engines(t)
    return max(1, num_gpus(t) - engines * each) if num_gpus(t) > 1 else 1


def is_embedded(t: Translation) -> bool:
    """Return whether the engine is that of this process."""
    return t.value(f"{_ROLLOUT}.name") in EMBEDDED


def devices(t: Translation) -> None:
    """Divide the GPUs among engines and trainer."""
    nodes, gpus = "trainer.nnodes", "trainer.n_gpus_per_node"
    if t.number(nodes, 1) is None or t.number(gpus) is None:
        return
    t.put("cluster.node_num", t.value(nodes), nodes)
    t.put("cluster.gpu_per_node", t.value(gpus), gpus)
    engines, each = num_engines(t)
    if num_gpus(t) > 1:
        t.put(f"{_ENGINE}.engine_num", engines, gpus)
        t.tell(
            "W1941", gpus,
            f"`{t.written(gpus)}`: of {num_gpus(t)} GPUs {engines * each} are for engines and {num_trainers(t)} for "
            "the trainer, which veRL lets take turns on all of them",
            suggestion="write --set explorer.rollout_model.engine_num=N for another division",
        )  # fmt: skip
    for name, have in zip(("tensor", "pipeline"), engine_sizes(t), strict=True):
        size = f"{_ROLLOUT}.{name}_model_parallel_size"
        asked = t.value(size) or 1
        if have > 1:
            t.put(f"{_ENGINE}.{name}_parallel_size", have, size)
        if asked == have:
            continue
        if num_gpus(t) < 2 or is_embedded(t):
            t.tell("W1940", size, f"`{t.written(size)}` changes nothing here: the engine is on one device")
        else:
            t.tell(
                "W1941", size,
                f"`{t.written(size)}` is {have} instead of {asked}: of {num_gpus(t)} GPUs at least one trains "
                "alone",
                suggestion=f"write `{size}: {have}`, or more GPUs in `{gpus}` if the model does not fit",
            )  # fmt: skip


def engine(t: Translation) -> None:
    """Choose the engine, and hand it what vLLM alone reads."""
    name = f"{_ROLLOUT}.name"
    chosen = t.chosen(name, "vllm", "sglang", *EMBEDDED)
    if chosen == "sglang":
        t.refuse(name, "SGLang is no engine here", f"write `{name}: vllm`, or `torch` for Trinity's own engine")
        return
    if chosen == "hf":
        t.tell(
            "W1941", name, f"`{t.written(name)}: hf` is Trinity's own engine here", suggestion=f"write `{name}: torch`"
        )
    if chosen is not None:
        t.put(f"{_ENGINE}.engine_type", "torch" if chosen in EMBEDDED else chosen, name)
    dtype = f"{_ROLLOUT}.dtype"
    kind = t.chosen(dtype, "bfloat16", "float16", "float32", "half", "float", "auto")
    if kind is not None and t.is_written(dtype):
        t.put(f"{_ENGINE}.dtype", {"half": "float16", "float": "float32"}.get(kind, kind), dtype)
    of_vllm = {
        "enforce_eager": f"{_ENGINE}.enforce_eager",
        "enable_chunked_prefill": f"{_ENGINE}.enable_chunked_prefill",
        "max_num_batched_tokens": f"{_ENGINE}.extra_engine_args.max_num_batched_tokens",
        "max_num_seqs": f"{_ENGINE}.extra_engine_args.max_num_seqs",
    }
    for key, to in of_vllm.items():
        own = f"{_ROLLOUT}.{key}"
        if not t.is_written(own):
            continue
        if chosen == "vllm" or (key == "max_num_seqs" and chosen in EMBEDDED):
            t.put(to, t.value(own), own)
        else:
            t.tell("W1940", own, f"`{t.written(own)}` changes nothing here: it is for vLLM")


def engine_kwargs(t: Translation) -> None:
    """Hand vLLM's arguments over; those of images are every engine's."""
    place = f"{_ROLLOUT}.engine_kwargs.vllm"
    for name, value in t.below(place).items():
        own = f"{place}.{name}"
        if value is None:
            continue
        if not t.value("data.image_key") and "mm_" in name:
            t.tell("W1940", own, f"`{t.written(own)}` changes nothing here: the rows have no images (`data.image_key`)")
        elif is_embedded(t) and "mm_" not in name:
            t.tell("W1940", own, f"`{t.written(own)}` changes nothing here: it is for vLLM")
        else:
            t.put(f"{_ENGINE}.extra_engine_args.{name}", value, own)


def steps(t: Translation) -> None:
    """Take over the length of the run."""
    name = "trainer.total_training_steps"
    asked = t.value(name)
    if asked is not None and asked > 0:
        t.put("buffer.total_steps", asked, name)
    elif asked not in (None, -1):  # which leave the length to the epochs
        t.number(name, 1)


def intervals(t: Translation) -> None:
    """Take over when is saved and evaluated."""
    save, test = "trainer.save_freq", "trainer.test_freq"
    frequency = t.value(save)
    if frequency > 0:
        t.put("trainer.save_interval", frequency, save)
    elif t.is_written(save):
        t.tell("W1941", save, f"`{t.written(save)}: {frequency}` keeps the last step's weights only, and no others")
    has_tests = t.is_written("data.val_files")
    value = t.value(test)
    t.put("explorer.eval_interval", value if has_tests and value > 0 else None, test)
    t.put(
        "explorer.eval_on_startup", bool(t.value("trainer.val_before_train")) and has_tests, "trainer.val_before_train"
    )
    if not has_tests and value > 0:
        t.tell_unused(test, "the file has no data.val_files to evaluate with")
    if t.value("trainer.val_only"):
        t.put("mode", "bench", "trainer.val_only")
    warm = t.number("trainer.critic_warmup")
    if warm and has_critic(t):
        t.put("trainer.critic_warmup", warm - 1, "trainer.critic_warmup")
    elif warm:
        t.tell_unused(
            "trainer.critic_warmup",
            "without a critic the policy learns from the first step on, where veRL leaves out its first updates",
        )


def names(t: Translation) -> None:
    """Take over the names of the run and the folder of its outputs."""
    project, name = t.value("trainer.project_name"), t.value("trainer.experiment_name")
    t.put("project", str(project), "trainer.project_name")
    t.put("name", str(name), "trainer.experiment_name")
    folder = "trainer.default_local_dir"
    if t.is_written(folder):
        written = str(t.value(folder))
        if scheme_name(written) is not None:  # as it is: the rule of our key refuses it
            t.put("checkpoint_root_dir", written, folder)
            _upload(t, f"/{project}/{name}")
            return
        path = PurePath(written)
        is_usual = path.parts[-2:] == (str(project), str(name))
        root = path.parent.parent if is_usual else path
        t.put("checkpoint_root_dir", str(root), folder)
        if not is_usual:
            told = f"`{t.written(folder)}`: outputs are in {root / str(project) / str(name)}"
            t.tell("W1941", folder, told)
    _upload(t, f"/{project}/{name}")


def _upload(t: Translation, usual: str) -> None:
    remote, folder = "trainer.default_hdfs_dir", "trainer.default_local_dir"
    if t.is_written(remote):
        address = str(t.value(remote)).rstrip("/")
        if "://" in address:
            t.put("trainer.checkpoint_upload_dir", address.removesuffix(usual), remote)
            if not address.endswith(usual):
                t.tell("W1941", remote, f"`{t.written(remote)}`: checkpoints are copied to {redact(address)}{usual}")
        else:
            t.tell("W1940", remote, f"`{t.written(remote)}` changes nothing here: checkpoints are in {folder}")


def logger(t: Translation) -> None:
    """Choose the monitors beside the console and `metrics.jsonl`."""
    name = "trainer.logger"
    t.put("monitor.verl_names", True, name)
    written: Any = t.value(name)
    if written is None:
        return
    asked = written if isinstance(written, list) else [written]
    unknown = [each for each in asked if each not in (*MONITORS, *ALWAYS_WRITTEN)]
    found = list(dict.fromkeys(MONITORS[each] for each in asked if each in MONITORS))
    if unknown:
        known = ", ".join((*ALWAYS_WRITTEN, *MONITORS))
        t.refuse(name, f"{', '.join(map(str, unknown))} is no monitor here", f"write some of {known}")
    else:
        t.put("monitor.monitor_type", found if len(found) > 1 else "".join(found), name)
