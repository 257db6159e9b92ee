"""The prompt of a task, its length and its system prompt, are the same wherever they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_model
from trinity.buffer.prompt_limit import PromptLimit
from trinity.buffer.task_prompts import TaskPrompts
from trinity.buffer.task_reader import TaskReader
from trinity.buffer.training_rows import prompt_messages, split_pair
from trinity.common.config.buffer import TasksetConfig
from trinity.common.config.model import ModelConfig
from trinity.common.errors import DataError
from trinity.common.models.chat_template import load_tokenizer, render_chat
from trinity.preflight.prompts import _texts

ROW = {"question": "1+1=", "answer": "2"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder, "llama", seed=1)
    return ModelConfig(model_path=str(folder))


def taskset(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> TasksetConfig:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fmt = {"prompt_key": "question", "response_key": "answer"} | changes.pop("format", {})
    made = {"name": "t", "path": str(folder / "rows.jsonl"), "format": fmt, "default_reward_fn_type": "math_reward"}
    return TasksetConfig.model_validate(made | {"default_workflow_type": "simple_workflow"} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workflow_args": {"system_prompt": "Be brief. " * 5}},
        {"default_workflow_type": "math_workflow"},
        {"format": {"reply_prefix": "Let me think about it."}},
        {"format": {"system_prompt": "Be kind."}},
    ],
)
def test_a_prompt_is_as_long_as_what_the_workflow_sends(
    changes: dict[str, Any], model: ModelConfig, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(model)
    config = taskset(tmp_path, [ROW], **changes)
    (task,) = TaskReader(config).tasks()
    messages = task.workflow(task=task, model=None).format_messages()
    prefix = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    sent = len(render_chat(tokenizer, messages)[0]) + len(tokenizer(prefix, add_special_tokens=False)["input_ids"])
    prompts = TaskPrompts(tokenizer, model=model)
    assert prompts.num_tokens(prompts.of(task)) == sent
    for limit, num_left in ((sent, 1), (sent - 1, 0)):
        with_limit = PromptLimit(prompts, limit)
        refusing = config.model_copy(update={"long_prompts": "refuse"})
        if num_left:
            assert len(TaskReader(refusing, limit=with_limit)) == 1
        else:
            with pytest.raises(DataError, match=f"more than {limit} tokens"):
                TaskReader(refusing, limit=with_limit)


@pytest.mark.parametrize(("of_row", "expected"), [("", None), (None, "of the format"), ("of the row", "of the row")])
def test_an_empty_system_prompt_of_a_row_is_none_wherever_the_row_is_used(
    of_row: str | None, expected: str | None, model: ModelConfig, tmp_path: Path
) -> None:
    fmt = {"system_prompt_key": "system", "system_prompt": "of the format"}
    row = ROW | {"system": of_row, "chosen": "2", "rejected": "3"}
    config = taskset(tmp_path, [row], format=fmt)
    (task,) = TaskReader(config).tasks()
    own = task.workflow(task=task, model=None).format_messages()
    assert own == [
        *([{"role": "system", "content": expected}] if expected else []),
        {"role": "user", "content": "1+1="},
    ]
    assert prompt_messages(config.format, row) == own, "supervised warm-up sees what is sampled from"
    pair = split_pair(config.format, row, kind="plaintext")
    assert pair[0] == own
    assert list(_texts(row, config.format, kind="plaintext")) == [each["content"] for each in own]
    prompts, turns = TaskPrompts(load_tokenizer(model), model=model), TaskReader(config).tasks()[0]
    rendered = prompts.of(turns).text
    turns.workflow = None  # as one that makes its own prompts
    assert prompts.of(turns).text == rendered and not prompts.of(turns).is_rendered
