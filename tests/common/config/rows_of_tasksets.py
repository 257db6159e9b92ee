"""Wrong configurations of tasksets and selectors, as `rows` has others."""

from __future__ import annotations

from tests.common.config.conftest import MINIMAL
from tests.common.config.rows import SFT, with_


def _tasksets(*extra: str) -> str:
    """Return the minimal file with several tasksets, from line 10 on, each with further keys."""
    head = MINIMAL[: MINIMAL.index("    taskset:")]
    lines = [f"    - {{path: d.jsonl, default_workflow_type: math_workflow, {keys}}}\n" for keys in extra]
    return head + "    tasksets:\n" + "".join(lines)


TASKSETS = {
    "a prompt that the workflow makes": (
        with_(
            "      format: {reply_prefix: Sure}\n", default_workflow_type="default_workflow_type: frozen_lake_workflow"
        ),
        "W1902",
        "buffer.explorer_input.taskset.format.reply_prefix",
        13,
        "remove it",
    ),
    "a list of databases": (
        with_("      storage_type: sql\n", path="path: ['sqlite:///a.db', 'sqlite:///b.db']"),
        "E1889",
        "buffer.explorer_input.taskset.path",
        11,
        "tasksets",
    ),
    "an address in a list": (
        with_("", path="path: [a.jsonl, 'ftp://host/b.jsonl']"),
        "E1896",
        "buffer.explorer_input.taskset.path[1]",
        11,
        "download",
    ),
    "weight of one taskset": (
        with_("      weight: 2\n"),
        "W1902",
        "buffer.explorer_input.taskset.weight",
        13,
        "remove it",
    ),
    "weights for some": (
        _tasksets("weight: 2", "name: b"),
        "E1894",
        "buffer.explorer_input.tasksets[1].weight",
        11,
        "weight: 1",
    ),
    "repeats that differ": (
        _tasksets("name: a", "repeat_times: 3"),
        "E1893",
        "buffer.explorer_input.tasksets[1].repeat_times",
        11,
        "write 8 here",
    ),
    "temperatures that differ": (
        _tasksets("name: a", "rollout_args: {temperature: 0.5}"),
        "E1893",
        "buffer.explorer_input.tasksets[1].rollout_args.temperature",
        11,
        "write 1.0 here",
    ),
    "names of tasksets": (
        _tasksets("name: a", "name: a"),
        "E1305",
        "buffer.explorer_input.tasksets[1].name",
        11,
        "its own name",
    ),
    "columns of a selector": (
        with_("      data_selector: {selector_type: difficulty_based, feature_keys: [a]}\n"),
        "E1891",
        "buffer.explorer_input.taskset.data_selector.feature_keys",
        13,
        "strong_model",
    ),
    "columns that are not read": (
        with_("      data_selector: {selector_type: shuffle, feature_keys: [a]}\n"),
        "W1902",
        "buffer.explorer_input.taskset.data_selector.feature_keys",
        13,
        "remove it",
    ),
    "nobody tells the selector": (
        with_("      data_selector: {selector_type: difficulty_based, feature_keys: [a, b]}\n"),
        "W1903",
        "buffer.explorer_input.taskset.data_selector.selector_type",
        13,
        "pass_rate_calculator",
    ),
    "the order of an evaluation": (
        with_(
            "    eval_tasksets:\n    - {name: e, path: e.jsonl, data_selector: {selector_type: random}}\n",
        ),
        "W1902",
        "buffer.explorer_input.eval_tasksets[0].data_selector.selector_type",
        14,
        "remove it",
    ),
    "demonstrations have no rewards": (
        SFT.replace(
            "path: d.jsonl", "path: d.jsonl, data_selector: {selector_type: difficulty_based, feature_keys: [a, b]}"
        ),
        "E1892",
        "buffer.trainer_input.experience_buffer.data_selector.selector_type",
        14,
        "offline_easy2hard",
    ),
}
