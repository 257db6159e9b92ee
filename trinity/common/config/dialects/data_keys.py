"""veRL's section `data`, and what scores a response."""

from __future__ import annotations

from trinity.common.config.dialects.foreign_key import ForeignKey, harmless, honoured, older, refused, section

_INPUT = "buffer.explorer_input"
TASKSET = f"{_INPUT}.taskset"
TESTS = f"{_INPUT}.eval_tasksets"

_KEPT = "the messages of a row are always kept, and nothing else is read from them"
_LOADED = "rows are read and checked once, in the process of the explorer"

DATA_KEYS: tuple[ForeignKey, ...] = (
    refused(
        "data.tokenizer",
        "the tokenizer is that of the model's folder",
        "put its files into `actor_rollout_ref.model.path`",
    ),
    honoured("data.train_files", TASKSET, via="tasks", note="a file or a list of files"),
    honoured("data.val_files", TESTS, via="tasks", note="a file or a list of files"),
    honoured("data.prompt_key", f"{TASKSET}.format.messages_key", TESTS, via="tasks", default="prompt"),
    honoured("data.max_prompt_length", "model.max_prompt_tokens", via="lengths", default=512, note="tokens"),
    honoured("data.max_response_length", "model.max_response_tokens", via="lengths", default=512, note="tokens"),
    honoured("data.gen_batch_size", "buffer.batch_size", via="batch", note="only that of `data.train_batch_size`"),
    honoured(
        "data.train_batch_size",
        "buffer.batch_size",
        default=1024,
        note="prompts; a training step has `rollout.n` times as many rollouts",
    ),
    harmless("data.val_batch_size", "an evaluation runs all tasks at once, as the engine has room for them"),
    harmless("data.return_raw_input_ids", _KEPT, False),
    harmless("data.return_raw_chat", _KEPT, False),
    harmless("data.return_full_prompt", _KEPT, False),
    harmless("data.return_multi_modal_inputs", _KEPT, True),
    honoured(
        "data.shuffle",
        f"{TASKSET}.data_selector.selector_type",
        via="order",
        default=True,
        note="`shuffle`, or `sequential`",
    ),
    refused("data.validation_shuffle", "evaluations go through the file in its order", "remove it", False),
    honoured("data.seed", f"{TASKSET}.data_selector.seed"),
    honoured(
        "data.truncation",
        "model.prompt_truncation",
        f"{TASKSET}.long_prompts",
        TESTS,
        via="truncation",
        default="error",
        note="`error`, `left`, `right` or `middle`, in tokens of the rendered prompt",
    ),
    honoured(
        "data.filter_overlong_prompts",
        f"{TASKSET}.long_prompts",
        TESTS,
        via="truncation",
        default=False,
        note="rows with a longer prompt are left out, and counted",
    ),
    harmless("data.filter_overlong_prompts_workers", _LOADED, 1),
    harmless("data.dataloader_num_workers", _LOADED, 8),
    honoured(
        "data.image_key",
        f"{TASKSET}.format.image_key",
        TESTS,
        "explorer.rollout_model.enable_multimodal",
        via="images",
        note="a column with another name than `images` is named here; rows with images are refused without it",
    ),
    refused("data.video_key", "videos are not read", "remove it", "videos"),
    refused("data.audio_key", "sound is not read", "remove it", "audios"),
    refused("data.prompt_id_key", "it is no key of any release of veRL", "remove it"),
    refused("data.max_prompt_id_length", "it is no key of any release of veRL", "remove it"),
    refused("data.train_max_samples", "the whole file is read", "make a smaller file", -1),
    refused("data.val_max_samples", "the whole file is read", "make a smaller file", -1),
    honoured(
        "data.reward_fn_key",
        f"{TASKSET}.workflow_args.source_key",
        TESTS,
        via="tasks",
        default="data_source",
        note="the column that names the scorer",
    ),
    refused(
        "data.custom_cls",
        "rows are read by this project",
        "register a workflow that reads them otherwise",
        is_section=True,
    ),
    refused(
        "data.sampler",
        "the order of rows is a selector's",
        "register one in SELECTORS, and name it in our own file",
        is_section=True,
    ),
    refused("data.datagen", "rows are not generated on the way", "write them to a file first", is_section=True),
    refused(
        "data.apply_chat_template_kwargs",
        "a chat template gets no further arguments",
        "write the template with their values into the tokenizer's folder",
        is_section=True,
    ),
    refused("data.mm_processor_kwargs", "images are prepared as the model's files say", "remove it", is_section=True),
    refused("data.tool_config_path", "rows have their tools in the column `tools`", "write them there"),
    refused("data.function_tool_path", "rows have their tools in the column `tools`", "write them there"),
    harmless("data.image_patch_size", "it is read from the model's files", 14),
    harmless("data.use_shm", "files are read where they are", False),
    honoured("data.trust_remote_code", "model.trust_remote_code", via="trust", default=False),
    honoured(
        "custom_reward_function.path",
        f"{TASKSET}.workflow_args.path",
        TESTS,
        via="tasks",
        kind="text",
        note="a Python file; the function gets data_source, solution_str, ground_truth and extra_info",
    ),
    honoured(
        "custom_reward_function.name", f"{TASKSET}.workflow_args.function", TESTS, via="tasks", default="compute_score"
    ),
    section("custom_reward_function.reward_kwargs", f"{TASKSET}.workflow_args.arguments", TESTS, via="tasks"),
    older("reward.custom_reward_function.path", "custom_reward_function.path"),
    older("reward.custom_reward_function.name", "custom_reward_function.name"),
    older("reward.custom_reward_function.reward_kwargs", "custom_reward_function.reward_kwargs", is_section=True),
)
