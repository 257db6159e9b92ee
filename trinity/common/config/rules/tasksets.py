"""Rules of tasksets: inheritance, workflows, rewards, columns of datasets."""

from __future__ import annotations

from collections.abc import Mapping

from trinity.common.config.buffer import FormatConfig, TasksetConfig
from trinity.common.config.following import join_older_names, set_from
from trinity.common.config.keys import KEYS, REWARD_MODEL, ROLLOUT_MODEL, TASKSET, Key, part_of, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.row_schemas import MULTI_TURN, SCHEMAS
from trinity.common.config.rules.databases import resolve_database
from trinity.common.config.rules.registered import Chosen, check_arguments, check_name
from trinity.common.config.rules.rewards import has_reward_model
from trinity.common.config.rules.selectors import check_idle_selector, check_selector

INPUT = KEYS.buffer.explorer_input
_CONTENT = ("messages_key", "prompt_key", "response_key", "chosen_key", "rejected_key")
_PROMPT_PARTS = ("system_prompt", "system_prompt_key", "reply_prefix")
# What says of itself which form the rows have, and what is refused elsewhere.
_NOT_CHECKED = ("prompt_type", "video_key")


def tasksets(resolution: Resolution) -> list[Key[TasksetConfig]]:
    """Return the keys of all tasksets, those of training first."""
    section = resolution.config.buffer.explorer_input
    return trained_tasksets(resolution) + [INPUT.eval_tasksets[index] for index in range(len(section.eval_tasksets))]


def trained_tasksets(resolution: Resolution) -> list[Key[TasksetConfig]]:
    """Return the keys of the tasksets that are explored for training."""
    section = resolution.config.buffer.explorer_input
    keys = [TASKSET] if section.taskset else []
    return keys + [INPUT.tasksets[index] for index in range(len(section.tasksets))]


def is_evaluated(key: Key[TasksetConfig]) -> bool:
    """Return whether a taskset is evaluated, not trained on."""
    return "eval_tasksets" in path_of(key)


def resolve_tasksets(resolution: Resolution) -> None:
    """Fill inherited keys of tasksets; check that the explorer has tasks."""
    explorer_input = resolution.config.buffer.explorer_input
    if explorer_input.taskset and explorer_input.tasksets:
        resolution.problem(
            "E1806",
            INPUT.tasksets,
            "`buffer.explorer_input.tasksets` and taskset exclude each other",
            suggestion="keep one of them",
        )
    has_tasks = explorer_input.taskset or explorer_input.tasksets
    is_misfit = resolution.trains_on_dataset  # E1807 says that the mode is train
    if resolution.mode in ("both", "explore") and not has_tasks and not is_misfit:
        resolution.problem(
            "E1809",
            TASKSET,
            f"mode {resolution.mode} needs `{TASKSET}`",
            involves=(KEYS.mode,),
            suggestion="write `buffer: {explorer_input: {taskset: {name: train, path: data.jsonl}}}`",
        )
    if resolution.mode == "bench" and not explorer_input.eval_tasksets:
        resolution.problem(
            "E1845",
            INPUT.eval_tasksets,
            f"mode bench needs `{INPUT.eval_tasksets}`",
            involves=(KEYS.mode,),
            suggestion="write `buffer: {explorer_input: {eval_tasksets: [{name: test, path: test.jsonl}]}}`",
        )
    if not resolution.explores:
        return
    for index, key in enumerate(tasksets(resolution)):
        _resolve_taskset(resolution, key, index)


def _resolve_taskset(resolution: Resolution, key: Key[TasksetConfig], index: int) -> None:
    is_eval = is_evaluated(key)
    if not resolution.is_given(key.name) and key != TASKSET:
        *_, among, place = path_of(key)
        resolution.derive(key.name, f"{str(among).removesuffix('s')}_{place}", f"place in {among}")
    if not resolution.get(key.path):
        resolution.problem("E1827", key.path, f"`{key.path}` is missing", suggestion="write where the tasks are")
    elif resolution.get(key.storage_type) == "sql":
        resolve_database(resolution, key.path)
    _resolve_repeats(resolution, key, is_eval=is_eval)
    _resolve_workflow(resolution, key, is_eval=is_eval)
    resolve_format(resolution, key.format)
    _check_images(resolution, key)
    check_multi_turn(resolution, key.format)
    join_older_names(resolution, key)
    if is_eval:
        check_idle_selector(resolution, key.data_selector)
    else:
        check_selector(resolution, key.data_selector, is_trained=True)
    values = resolution.config.buffer
    set_from(resolution, key.index, index, "place among the tasksets")
    set_from(resolution, key.is_eval, is_eval, "listed in eval_tasksets")
    set_from(resolution, key.batch_size, values.batch_size, KEYS.buffer.batch_size)
    set_from(resolution, key.total_epochs, 1 if is_eval else values.total_epochs, KEYS.buffer.total_epochs)
    set_from(resolution, key.total_steps, None if is_eval else values.total_steps, KEYS.buffer.total_steps)
    set_from(resolution, key.ray_namespace, resolution.config.ray_namespace, KEYS.ray_namespace)


def _resolve_repeats(resolution: Resolution, key: Key[TasksetConfig], *, is_eval: bool) -> None:
    if resolution.get(key.repeat_times) is not None:
        return
    if is_eval:
        resolution.derive(key.repeat_times, 1, "evaluation tasksets are run once")
    else:
        resolution.derive(key.repeat_times, resolution.config.algorithm.repeat_times or 1, KEYS.algorithm.repeat_times)


def _resolve_workflow(resolution: Resolution, key: Key[TasksetConfig], *, is_eval: bool) -> None:
    workflow, reward = key.default_workflow_type, key.default_reward_fn_type
    shared = (INPUT.default_eval_workflow_type,) * is_eval + (INPUT.default_workflow_type,)
    for name, sources in ((workflow, shared), (reward, (INPUT.default_reward_fn_type,))):
        source = next((source for source in sources if resolution.get(source) is not None), None)
        if resolution.get(name) is None and source is not None:
            resolution.follow(name, source)
    if resolution.get(workflow) is None and not resolution.get(key.format.workflow_key):
        resolution.problem(
            "E1828",
            workflow,
            f"`{workflow}` is missing; known: {', '.join(resolution.catalogue.names('workflow'))}",
            involves=(INPUT,),
            suggestion="write `default_workflow_type: math_workflow`",
        )
    chosen, name = _home(resolution, workflow, *shared), resolution.get(workflow)
    is_known = check_name(resolution, chosen, "workflow", name)
    if is_known and name and not resolution.get(key.format.workflow_key):  # a column may name other workflows
        check_arguments(resolution, Chosen(chosen, key.workflow_args, "workflow", name))
    check_name(resolution, _home(resolution, reward, INPUT.default_reward_fn_type), "reward_fn", resolution.get(reward))
    if is_known and not resolution.get(key.format.workflow_key):
        _check_prompt_keys(resolution, key, name)


def _check_prompt_keys(resolution: Resolution, key: Key[TasksetConfig], name: str | None) -> None:
    """Warn of parts of the prompt that a built-in workflow does not read."""
    entry = resolution.catalogue.entry("workflow", name)
    if entry is None or entry.reads_format or not resolution.catalogue.is_built_in("workflow", name):
        return
    for part in _PROMPT_PARTS:
        if _is_set(resolution, key.format, part):
            idle = part_of(key.format, part)
            text = f"`{idle}` has no effect: workflow {name} makes its own prompts"
            workflow = key.default_workflow_type
            resolution.problem("W1902", idle, text, involves=(workflow,), suggestion="remove it")


def _check_images(resolution: Resolution, key: Key[TasksetConfig]) -> None:
    """Refuse images that the workflow, or the engine, would not read (E1887)."""
    image, name = key.format.image_key, resolution.get(key.default_workflow_type)
    if resolution.get(image) is None:
        return
    entry = resolution.catalogue.entry("workflow", name)
    is_reading = entry is None or not resolution.catalogue.is_built_in("workflow", name) or "images" in entry.needs
    if not (is_reading or resolution.get(key.format.workflow_key)):
        resolution.problem(
            "E1887",
            image,
            f"`{image}` has no effect: workflow {name} reads no images",
            involves=(key.default_workflow_type,),
            suggestion="write `default_workflow_type: simple_mm_workflow`, or remove it",
        )
    elif not resolution.get(ROLLOUT_MODEL.enable_multimodal):
        resolution.problem(
            "E1887",
            image,
            f"`{image}` needs an engine that reads images",
            involves=(ROLLOUT_MODEL.enable_multimodal,),
            suggestion=f"write `{ROLLOUT_MODEL.enable_multimodal}: true`",
        )


def _home(resolution: Resolution, *places: Key[object]) -> Key[object]:
    """Return where a workflow or reward name was written; the taskset first."""
    return next((place for place in places if resolution.is_given(place)), places[0])


def resolve_format(resolution: Resolution, key: Key[FormatConfig]) -> None:
    """Fill the row format from the columns; else the reader examines rows."""
    if resolution.get(key.prompt_type) is not None:
        return
    has_messages = resolution.is_given(key.messages_key) or resolution.get(key.enable_concatenated_multi_turn)
    has_text = resolution.is_given(key.prompt_key) or resolution.is_given(key.response_key)
    if has_messages and not has_text:
        resolution.derive(key.prompt_type, "messages", "messages_key or several turns are given")
    elif has_text and not has_messages:
        resolution.derive(key.prompt_type, "plaintext", "prompt_key or response_key is given")


def check_format(resolution: Resolution, section: Key[FormatConfig], schema: str) -> None:
    """Note a format that the schema does not have, and idle keys (E1834)."""
    forms = SCHEMAS[schema].forms
    kind = resolution.get(section.prompt_type)
    if kind is not None and kind not in forms:
        resolution.problem(
            "E1834",
            section.prompt_type,
            f"`{section.prompt_type}: {kind}` does not fit algorithm_type {schema}",
            rule=f"one of {', '.join(forms)}",
            involves=(KEYS.algorithm.algorithm_type,),
            suggestion=f"write `prompt_type: {next(iter(forms))}`",
        )
        return
    read = forms[kind] if kind is not None else frozenset().union(*forms.values())
    written = [
        name for name in FormatConfig.model_fields if name not in _NOT_CHECKED and _is_set(resolution, section, name)
    ]
    for name in written:
        if name not in read:
            _note_unread(resolution, section, name, schema)
    if kind is None:
        _check_mixture(resolution, section, [name for name in written if name in read], forms)
    _check_distinct(resolution, section, written, [forms[kind]] if kind is not None else list(forms.values()))


def check_multi_turn(resolution: Resolution, section: Key[FormatConfig]) -> None:
    """Refuse `enable_concatenated_multi_turn` without conversations (E1834)."""
    if _is_set(resolution, section, MULTI_TURN):
        _note_unread(resolution, section, MULTI_TURN, resolution.config.algorithm.algorithm_type)


def _is_set(resolution: Resolution, section: Key[FormatConfig], name: str) -> bool:
    key = part_of(section, name)
    return resolution.is_own(key) and resolution.get(key) is not False


def _note_unread(resolution: Resolution, section: Key[FormatConfig], name: str, algorithm: str) -> None:
    own = SCHEMAS[algorithm].forms if algorithm in SCHEMAS else {}
    form = next((form for form, keys in own.items() if name in keys), None)
    readers = [other for other, schema in SCHEMAS.items() if any(name in keys for keys in schema.forms.values())]
    if form is not None:
        why = f"is read with prompt_type {form}, and prompt_type is {resolution.get(section.prompt_type)}"
    elif readers:
        is_other = algorithm in SCHEMAS and resolution.config.algorithm.algorithm_type != algorithm
        rows = "demonstrations" if is_other else algorithm
        why = f"is read for algorithm_type {' and '.join(readers)}, not for {rows}"
    else:
        why = "belongs to tasks, not to a dataset that is trained on"
    resolution.problem(
        "E1834",
        part_of(section, name),
        f"`{part_of(section, name)}` has no effect: it {why}",
        involves=(KEYS.algorithm.algorithm_type, section.prompt_type),
        suggestion="remove it",
    )


def _check_distinct(
    resolution: Resolution, section: Key[FormatConfig], written: list[str], forms: list[frozenset[str]]
) -> None:
    """Refuse one column for two purposes, such as the prompt and the answer."""
    for name in (name for name in _CONTENT if name in written):
        beside = {other for keys in forms if name in keys for other in keys} - {name}
        column = resolution.get(part_of(section, name))
        same = [other for other in _CONTENT if other in beside and resolution.get(part_of(section, other)) == column]
        if not same or (same[0] in written and _CONTENT.index(same[0]) > _CONTENT.index(name)):
            continue
        resolution.problem(
            "E1834",
            part_of(section, name),
            f"`{part_of(section, name)}` is the column {column}, and so is {same[0]}",
            rule="a column of its own for each",
            involves=(KEYS.algorithm.algorithm_type, section.prompt_type),
            suggestion="name another column",
        )


def _check_mixture(
    resolution: Resolution, section: Key[FormatConfig], written: list[str], forms: Mapping[str, frozenset[str]]
) -> None:
    """Note keys of both forms if none is chosen."""
    own = {
        form: [name for name in written if not any(name in keys for other, keys in forms.items() if other != form)]
        for form in forms
    }
    if len(forms) < 2 or not all(own.values()):
        return
    texts, messages = own["plaintext"][0], own["messages"][0]
    resolution.problem(
        "E1834",
        part_of(section, messages),
        f"`{part_of(section, messages)}` is for rows of messages, and {texts} for rows of texts",
        involves=(part_of(section, texts),),
        suggestion="keep one of them, or write `prompt_type`",
    )


def check_rewards(resolution: Resolution) -> None:
    """Refuse unscored rollouts, and workflows without their reward function."""
    if not resolution.explores:
        return
    for key in tasksets(resolution):
        is_scored = has_reward_model(resolution) and not is_evaluated(key)
        _check_no_reward(resolution, key, is_scored=is_scored)
        _check_reward_function(resolution, key, is_scored=is_scored)


def _check_no_reward(resolution: Resolution, key: Key[TasksetConfig], *, is_scored: bool) -> None:
    """Refuse a function without scores unless a reward model scores.

    A reward model scores no evaluations.
    """
    name = resolution.get(key.default_reward_fn_type)
    reward = resolution.catalogue.entry("reward_fn", name)
    if is_scored or reward is None or reward.gives_scores:
        return
    is_eval = is_evaluated(key)
    why = "a reward model scores no evaluations" if is_eval else "no reward model is enabled"
    resolution.problem(
        "E1862",
        key.default_reward_fn_type,
        f"`{key.default_reward_fn_type}: {name}` leaves every reward at 0: {why}",
        involves=(INPUT.default_reward_fn_type,),
        suggestion="name a reward function" + ("" if is_eval else f", or set {REWARD_MODEL.enable}"),
    )


def _check_reward_function(resolution: Resolution, key: Key[TasksetConfig], *, is_scored: bool) -> None:
    """Refuse a missing reward function, or arguments that it does not take."""
    taskset = resolution.get(key)
    name = taskset.default_workflow_type
    entry = resolution.catalogue.entry("workflow", name)
    if entry is None or taskset.format.reward_fn_key:
        return
    needs_function = "reward_fn" in entry.needs
    function = taskset.default_reward_fn_type or entry.default_reward_fn
    if function and (needs_function or resolution.catalogue.is_built_in("workflow", name)):
        check_arguments(resolution, Chosen(key.default_reward_fn_type, key.reward_fn_args, "reward_fn", function))
    if function or not needs_function:
        return
    resolution.problem(
        "E1864",
        key.default_reward_fn_type,
        f"`{key.default_reward_fn_type}` is missing: workflow {name} needs a reward function, got none",
        involves=(INPUT.default_reward_fn_type, key.default_workflow_type),
        suggestion=f"write `default_reward_fn_type: {'no_reward' if is_scored else 'accuracy_reward'}`",
    )
