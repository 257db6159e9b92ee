"""Conversions of the rows: files, columns, scorers, order, long prompts."""

from __future__ import annotations

from typing import Any

from trinity.common.config.dialects.data_keys import TASKSET, TESTS
from trinity.common.config.dialects.foreign_key import KINDS, is_off
from trinity.common.config.dialects.translation import Translation
from trinity.common.config.problems import described

WORKFLOW = "verl_workflow"
_VALIDATION = "actor_rollout_ref.rollout.val_kwargs"
_MANAGER, _KWARGS = "reward_model.reward_manager", "reward_model.reward_kwargs"
MANAGERS = ("naive", "prime", "batch", "dapo")


def tasks(t: Translation) -> None:
    """Take over the files, their columns and what scores a response."""
    for name, place in (("data.train_files", TASKSET), ("data.val_files", f"{TESTS}[0]")):
        if not t.is_written(name):
            continue
        t.put(f"{place}.name", "train" if place == TASKSET else "val", name)
        t.put(f"{place}.path", t.value(name), name)
        t.put(f"{place}.format.prompt_type", "messages", name)
        t.put(f"{place}.format.messages_key", t.value("data.prompt_key"), "data.prompt_key")
        t.put(f"{place}.default_workflow_type", WORKFLOW, name)
        t.put(f"{place}.workflow_args.source_key", t.value("data.reward_fn_key"), "data.reward_fn_key")
        _scorer(t, place)
    if t.is_written("data.val_files"):
        _evaluation(t, f"{TESTS}[0]")


def _scorer(t: Translation, place: str) -> None:
    path, function, arguments = (f"custom_reward_function.{name}" for name in ("path", "name", "reward_kwargs"))
    if t.is_written(path):
        t.put(f"{place}.workflow_args.path", t.value(path), path)
        t.put(f"{place}.workflow_args.function", t.value(function), function)
        if t.value(arguments):
            t.put(f"{place}.workflow_args.arguments", t.value(arguments), arguments)
    elif place == TASKSET:
        for name in (function, arguments):
            if not is_off(t.value(name)):
                t.tell_unused(name, f"there is no {path}, so that the source of a row names its scorer")
    section = f"{_KWARGS}.overlong_buffer_cfg"
    if place != TASKSET:
        return
    manager = t.chosen(_MANAGER, *MANAGERS)
    if manager != "dapo":
        if not is_off(t.value(section)):
            t.tell_unused(section, f"it counts with {_MANAGER}: dapo, which is {manager} here")
        return
    values: dict[str, Any] = t.value(section) or {}
    is_on, factor = values.get("enable") or False, values.get("penalty_factor")
    factor = 1.0 if factor is None else factor
    for key, kind, value in (("enable", "flag", is_on), ("penalty_factor", "number", factor)):
        rule, is_kept = KINDS[kind]
        if not is_kept(value):
            message = f"`{t.written(section)}.{key}` must be {rule}, got {described(key, value)}"
            t.tell("E1101", section, message, value=value, rule=rule)
            return
    if not is_on:
        return
    longest = t.value(f"{_KWARGS}.max_resp_len") or t.value("data.max_response_length")
    margin = values.get("len")
    if not isinstance(margin, int) or not isinstance(longest, int) or not 0 < margin <= longest:
        message = f"`{t.written(section)}.len` must be from 1 to the longest response ({longest}), got {margin}"
        t.tell("E1302", section, message)
        return
    overlong = {"max_length": longest, "margin": margin, "factor": float(factor)}
    t.put(f"{place}.workflow_args.overlong", overlong, section)


def _evaluation(t: Translation, place: str) -> None:
    is_sampled = bool(t.value(f"{_VALIDATION}.do_sample"))
    t.put(f"{place}.rollout_args.temperature", t.value(f"{_VALIDATION}.temperature") if is_sampled else 0.0,
          f"{_VALIDATION}.temperature" if is_sampled else f"{_VALIDATION}.do_sample")  # fmt: skip
    if is_sampled:
        t.put(f"{place}.rollout_args.top_p", t.value(f"{_VALIDATION}.top_p"), f"{_VALIDATION}.top_p")
        candidates = t.value(f"{_VALIDATION}.top_k")
        t.put(f"{place}.rollout_args.top_k", -1 if candidates == 0 else candidates, f"{_VALIDATION}.top_k")
    else:
        for name in ("temperature", "top_p", "top_k"):
            t.tell_unused(f"{_VALIDATION}.{name}", f"an evaluation is greedy without {_VALIDATION}.do_sample: true")
    t.put(f"{place}.repeat_times", t.value(f"{_VALIDATION}.n"), f"{_VALIDATION}.n")


def reward_model(t: Translation) -> None:
    """Let a reward model score rollouts in place of a function."""
    name = "reward_model.enable"
    if t.value(name):
        t.put("trainer.trainer_config.reward_model.enable", True, name)
        if t.is_written("data.train_files"):
            t.put(f"{TASKSET}.workflow_args.is_scored", False, name)


def order(t: Translation) -> None:
    """Choose the order of the prompts."""
    if t.is_written("data.train_files"):
        is_shuffled = t.value("data.shuffle")
        t.put(f"{TASKSET}.data_selector.selector_type", "shuffle" if is_shuffled else "sequential", "data.shuffle")
    if t.is_written("data.seed") and t.is_written("data.train_files"):
        t.put(f"{TASKSET}.data_selector.seed", t.value("data.seed"), "data.seed")


def truncation(t: Translation) -> None:
    """Choose what happens to prompts that are too long."""
    mode, filtered = "data.truncation", "data.filter_overlong_prompts"
    chosen = t.chosen(mode, "error", "left", "right", "middle")
    if chosen is None:
        return
    drops = bool(t.value(filtered))
    if chosen != "error":
        t.put("model.prompt_truncation", chosen, mode)
    fate = "drop" if drops else "refuse" if chosen == "error" else "keep"
    for name, place in (("data.train_files", TASKSET), ("data.val_files", f"{TESTS}[0]")):
        if t.is_written(name):
            t.put(f"{place}.long_prompts", fate, filtered if drops else mode)


def images(t: Translation) -> None:
    """Read images from the column that the file names."""
    name = "data.image_key"
    if not t.is_written(name):
        return
    t.put("explorer.rollout_model.enable_multimodal", True, name)
    for files, place in (("data.train_files", TASKSET), ("data.val_files", f"{TESTS}[0]")):
        if t.is_written(files):
            t.put(f"{place}.format.image_key", t.value(name), name)
