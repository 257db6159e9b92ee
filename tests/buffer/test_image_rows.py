"""Rows with images: what a cell may hold, what is left out with its line, and what a workflow makes of it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from tests.buffer.files import write_jsonl
from tests.tiny import tiny_model
from tests.tiny_vision import picture, tiny_vision_model
from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.prompt_limit import PromptLimit
from trinity.buffer.task_prompts import TaskPrompts
from trinity.buffer.task_reader import TaskReader
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig, FormatConfig, TasksetConfig
from trinity.common.config.model import ModelConfig
from trinity.common.errors import DataError, WorkflowError
from trinity.common.images.messages import MisplacedImages, with_images, without_images
from trinity.common.images.picture import ImageReader
from trinity.common.images.reading import opened
from trinity.common.images.sizes import ImageSizes
from trinity.common.models.chat_template import load_tokenizer
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.task import Task
from trinity.launch.trial.preview import previewed
from trinity.preflight.data import check_taskset
from trinity.preflight.prompts import LongPrompts, long_prompts

ONE, TWO = picture(1), picture(2)
FORMAT = {"image_key": "images", "prompt_key": "prompt", "response_key": "response"}


def reader(path: Path, **changes: Any) -> TaskReader:
    config = TasksetConfig(
        name="t",
        path=str(path),
        format=FormatConfig(**FORMAT),
        default_workflow_type="simple_mm_workflow",
        default_reward_fn_type="accuracy_reward",
    )
    return TaskReader(config, **{"max_bad_row_ratio": 1.0, **changes})


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def row(images: Any, prompt: Any = "<image>how many?") -> dict[str, Any]:
    return {"prompt": prompt, "response": "1", "images": images}


def test_bytes_paths_and_decoded_images_become_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(ONE)
    stored = write(
        tmp_path / "a.parquet", [row([{"bytes": ONE, "path": None}]), row([{"bytes": None, "path": "one.png"}])]
    )
    found = reader(stored)
    assert [task.raw_task["images"] for task in found.tasks()] == [[ONE], [ONE]]
    single = write(tmp_path / "b.parquet", [row({"bytes": ONE, "path": "x.png"})])
    assert [task.raw_task["images"] for task in reader(single).tasks()] == [[ONE]]
    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "response": datasets.Value("string"),
            "images": datasets.List(datasets.Image()),
        }
    )
    image = Image.open(io.BytesIO(ONE))
    datasets.Dataset.from_list([row([image])], features=features).to_parquet(tmp_path / "c.parquet")
    (task,) = reader(tmp_path / "c.parquet").tasks()
    assert opened(task.raw_task["images"][0]).tobytes() == image.convert("RGB").tobytes()


def test_a_row_whose_images_cannot_be_used_is_left_out_with_its_line(tmp_path: Path) -> None:
    """B99."""
    broken = [
        row([{"bytes": ONE[:-30], "path": None}]),
        row([{"bytes": b"GIF89a nothing", "path": None}]),
        row([{"bytes": None, "path": "absent.png"}]),
        row([{"bytes": None, "path": "http://example.org/a.png"}]),
        row([{"bytes": ONE, "path": None}], "<image> and <image>"),
        row([], "<image>"),
    ]
    path = write(tmp_path / "a.parquet", [row([{"bytes": ONE, "path": None}]), *broken])
    found = reader(path)
    assert len(found) == 1
    assert [(bad.line, bad.key, bad.code) for bad in found.quarantined] == [
        (line, "images", "E4031" if line < 6 else "E4032") for line in range(2, 8)
    ]
    assert [bad.file for bad in found.quarantined] == [str(path)] * 6
    reasons = [bad.reason for bad in found.quarantined]
    assert "not a readable image" in reasons[0] and "not a readable image" in reasons[1]
    assert "cannot be read" in reasons[2] and "is not fetched" in reasons[3]
    assert reasons[4] == "has 1 images, and the prompt names 2 (<image>)"


def test_images_stand_where_the_prompt_has_them() -> None:
    user = [{"role": "user", "content": "a <image>b<image>"}]
    assert with_images(user, [ONE, TWO]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a "},
                {"type": "image", "image": ONE},
                {"type": "text", "text": "b"},
                {"type": "image", "image": TWO},
            ],
        }
    ]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    assert with_images(parts, [ONE])[0]["content"][1] == {"type": "image", "image": ONE}
    before = with_images([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}], [ONE])
    assert [part["type"] for part in before[1]["content"]] == ["image", "text"] and before[0]["content"] == "s"
    assert with_images(user[:0], []) == []
    with pytest.raises(MisplacedImages, match="places for 2"):
        with_images(user, [ONE])
    uri = "data:image/png;base64," + base64.b64encode(ONE).decode()
    written, images = without_images(
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "?"}]}]
    )
    assert images == [ONE] and written[0]["content"] == [{"type": "image"}, {"type": "text", "text": "?"}]


@pytest.mark.parametrize("name", ["simple_mm_workflow", "async_simple_mm_workflow"])
def test_the_workflows_send_the_images_of_their_row(name: str) -> None:
    def task(images: Any, prompt: str) -> Task:
        return Task(
            workflow=WORKFLOWS.get(name),
            format_args=FormatConfig(**FORMAT),
            reward_fn=REWARD_FUNCTIONS.get("accuracy_reward"),
            raw_task=row(images, prompt),
        )

    made = task([ONE], "<image>how many?").to_workflow(None)
    assert made.format_messages() == with_images([{"role": "user", "content": "<image>how many?"}], [ONE])
    assert task(None, "text").to_workflow(None).format_messages() == [{"role": "user", "content": "text"}]
    with pytest.raises(WorkflowError) as caught:
        task([ONE], "<image><image>").to_workflow(None).format_messages()
    assert caught.value.code == "E5134"
    with pytest.raises(WorkflowError) as unread:
        task([{"bytes": None, "path": "https://example.org/a.png"}], "<image>").to_workflow(None)
    assert unread.value.code == "E5134"


def test_transparent_and_grey_images_are_rgb() -> None:
    def stored(image: Image.Image, kind: str) -> bytes:
        stream = io.BytesIO()
        image.save(stream, kind)
        return stream.getvalue()

    assert opened(stored(Image.new("RGBA", (2, 2), (255, 0, 0, 0)), "PNG")).getpixel((0, 0)) == (255, 255, 255)
    assert opened(stored(Image.new("L", (2, 2), 7), "PNG")).getpixel((0, 0)) == (7, 7, 7)
    assert opened(stored(Image.new("RGB", (2, 2), (9, 9, 9)), "BMP")).mode == "RGB"


def demonstrations(path: Path, folder: Path, **columns: Any) -> DatasetReader:
    """Return a reader for imitation that leaves out any number of rows."""
    config = ExperienceBufferConfig.model_validate(
        {"name": "sft", "storage_type": "file", "path": str(path), "format": columns}
    )
    tokenizer = load_tokenizer(ModelConfig(model_path=str(folder)))
    return DatasetReader(config, tokenizer=tokenizer, shuffle=False, total_epochs=1, max_bad_row_ratio=1.0)


def chat(content: Any, answer: Any = "1") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]


def test_a_demonstration_whose_images_cannot_be_used_is_left_out_with_its_line(tmp_path: Path) -> None:
    tiny_vision_model(tmp_path / "sees")
    tiny_model(tmp_path / "blind")
    uri = "data:image/png;base64," + base64.b64encode(ONE).decode()
    inline = {"type": "image_url", "image_url": {"url": uri}}
    rows = [
        chat([inline, {"type": "text", "text": "?"}]),
        chat([{"type": "image_url", "image_url": {"url": uri[:-80]}}]),
        chat("?", [inline]),
        chat([inline, {"type": "text", "text": "<|image_pad|>"}]),
        [*chat("?"), *chat([inline])],
    ]
    path = write_jsonl(tmp_path / "chats.jsonl", [{"messages": each} for each in rows])
    found = demonstrations(path, tmp_path / "sees", messages_key="messages", enable_concatenated_multi_turn=True)
    (good,) = found.read(10)
    assert good.multi_modal_inputs is not None and good.prompt_length == 2 + 6 + 1
    assert [(bad.line, bad.code) for bad in found.quarantined] == [
        (2, "E4031"), (3, "E4035"), (4, "E4032"), (5, "E4035"),
    ]  # fmt: skip
    last = demonstrations(path, tmp_path / "sees", messages_key="messages").read(10)
    assert [exp.info["index"] for exp in last] == [0, 4], "the last answer alone is learned, and the image is before it"
    blind = demonstrations(path, tmp_path / "blind", messages_key="messages")
    with pytest.raises(DataError, match="none of its 5 rows can be used; .* reads none here"):
        blind.read(1)
    assert {bad.code for bad in blind.quarantined} == {"E4035"}

    said = row([{"bytes": ONE, "path": None}], "?") | {"response": "<image>"}
    stored = write(tmp_path / "a.parquet", [said, row([{"bytes": ONE[:-30], "path": None}], "?")])
    texts = demonstrations(stored, tmp_path / "sees", **FORMAT)
    (exp,) = texts.read(10)
    assert exp.response_text is not None and exp.response_text.startswith("<image>"), "an answer's text is text"
    assert [(bad.line, bad.key, bad.code) for bad in texts.quarantined] == [(2, "images", "E4031")]
    assert [finding.code for finding in check_taskset(texts.config, "here", schema="sft")] == ["W4031"]


@pytest.mark.parametrize(
    "given", [{"size": {"shortest_edge": 256, "longest_edge": 4096}}, {"min_pixels": 1024, "max_pixels": 2048}, {}]
)
def test_the_size_of_an_image_says_how_many_tokens_it_is(tmp_path: Path, given: dict[str, Any]) -> None:
    sizes = {"patch_size": 4, "merge_size": 2} if given else {}
    processor = Qwen2VLImageProcessorPil(temporal_patch_size=2, **sizes, **given)
    processor.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(json.loads((tmp_path / "preprocessor_config.json").read_text()) | given)
    )
    reader, counted = ImageReader(tmp_path, merge_size=2), ImageSizes.of_folder(tmp_path)
    assert counted is not None
    for width, height in ((16, 16), (20, 12), (100, 7), (12, 20), (300, 200), (3, 3), (61, 63), (1, 150)):
        image = picture(1, width, height)
        assert counted.num_tokens(image) == reader.read(image).num_tokens, (width, height)
    assert counted.num_tokens(b"no image") == 0
    assert ImageSizes.of_folder(tmp_path / "absent") is None


def test_validate_and_preview_count_the_tokens_of_images(tmp_path: Path) -> None:
    tiny_vision_model(tmp_path / "model")
    large = picture(3, 64, 64)
    rows = [row([{"bytes": each, "path": None}], "<image>?") for each in (ONE, large, TWO, ONE)]
    path = write(tmp_path / "a.parquet", rows)
    shape = {
        "name": "t", "path": str(path), "format": FORMAT, "default_workflow_type": "simple_mm_workflow",
        "default_reward_fn_type": "accuracy_reward",
    }  # fmt: skip
    found = long_prompts(TasksetConfig.model_validate(shape), model=tmp_path / "model", limit=60)
    assert found == LongPrompts(1, 4, 64 + 1)
    config = Config.model_validate({
        "model": {"model_path": str(tmp_path / "model"), "max_model_len": 60},
        "buffer": {"explorer_input": {"taskset": shape}},
    })  # fmt: skip
    limit = PromptLimit(TaskPrompts(load_tokenizer(config.model), model=config.model), max_tokens=60)
    assert len(TaskReader(TasksetConfig.model_validate(shape | {"long_prompts": "drop"}), limit=limit)) == 3
    with pytest.raises(DataError, match="1 of 4 prompts have more than 60 tokens.* with 67;"):
        TaskReader(TasksetConfig.model_validate(shape | {"long_prompts": "refuse"}), limit=limit)
    (preview,) = previewed(config, num_shown=1)
    assert preview.counts_images and preview.num_images == 4
    assert preview.lengths == [2 + 6 + 1, 2 + 64 + 1, 2 + 6 + 1, 2 + 6 + 1] and preview.is_rendered
    assert preview.num_repeated == 1, "another image is another prompt"
    assert preview.prompts == ["<|vision_start|><|image_pad|><|vision_end|>?"]
