"""Every example at full size, by the environment variables of its README, as far as that can be seen without a GPU.

The models stand in a cache of the hub as their publishers made them, but for the weights, whose files are holes of the
right size, and for the vocabulary. `trinity validate` has nothing to say, and `trinity estimate` computes that it fits.
"""

from __future__ import annotations

import json
import re
import socket
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2Config

from tests.examples import EXAMPLES, FOLDERS, ROOT, full_size, full_size_configurations, preparation
from tests.tiny import tiny_tokenizer
from tools.recipe_table import model_config
from trinity.launch.estimation import estimate
from trinity.launch.validation import check

TEMPLATE = ROOT / "tests" / "common" / "models" / "chat_templates" / "qwen2_5.jinja"
SHA = "0123456789abcdef0123456789abcdef01234567"
EXPECTED = {"W3702", "W1941"}  # a small disk of this machine; where keys of another framework's file lead
CARD_BYTES = 80 * 2**30  # READMEs: GPUs of 80 GiB
IMAGES = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
TEXT_MODELS = {
    "Qwen/Qwen2.5-1.5B": "Qwen2.5-1.5B",
    "Qwen/Qwen2.5-1.5B-Instruct": "Qwen2.5-1.5B",
    "Qwen/Qwen2.5-3B-Instruct": "Qwen2.5-3B",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen2.5-7B",
}
VISION_MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PREPARED = ("sums", "tools", "turns", "lake", "mails")
DATA = {  # what a README calls its reader's data, and the prepared files that stand there
    "pairs.jsonl": "sums/pairs.jsonl",
    "experts.jsonl": "sums/experts.jsonl",
    "rubrics": "sums/rubrics",
    "gsm8k": "sums/verl",
    "mail_questions": "mails/tasks",
    "mails.db": "mails/mails.db",
}


def text_config(name: str) -> dict[str, Any]:
    return Qwen2Config(**model_config(name)).to_dict()


def vision_config() -> dict[str, Any]:
    sizes = model_config("Qwen2.5-3B")
    del sizes["model_type"], sizes["architectures"]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    made = Qwen2_5_VLConfig(
        text_config=sizes | {"rope_parameters": rope}, vision_config=VISION, tie_word_embeddings=True, dtype="bfloat16"
    )
    return made.to_dict() | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]}


def write_weights(folder: Path, config: Qwen2Config | Qwen2_5_VLConfig) -> None:
    """Write the header of the weights; what follows is a hole."""
    of = AutoModelForCausalLM if isinstance(config, Qwen2Config) else AutoModelForImageTextToText
    with torch.device("meta"):
        model = of.from_config(config)
    entries, end = {}, 0
    for name, tensor in model.named_parameters():
        begin, end = end, end + 2 * tensor.numel()
        entries[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def publish(cache: Path, hub_id: str) -> None:
    """Put a model into a cache of the hub."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    folder = repository / "snapshots" / SHA
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(SHA)
    tokenizer = tiny_tokenizer(folder, characters=string.printable, chat_template=TEMPLATE.read_text(encoding="utf-8"))
    if hub_id == VISION_MODEL:
        tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGES)})
        tokenizer.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    values = vision_config() if hub_id == VISION_MODEL else text_config(TEXT_MODELS[hub_id])
    (folder / "config.json").write_text(json.dumps(values))
    kind = Qwen2_5_VLConfig if hub_id == VISION_MODEL else Qwen2Config
    write_weights(folder, kind.from_pretrained(folder))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hub")
    for hub_id in (*TEXT_MODELS, VISION_MODEL):
        publish(made, hub_id)
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, their tasks, and a reader's data; nothing in it has imitated anything."""
    made = tmp_path_factory.mktemp("full_size")
    (made / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    module = preparation()
    for name in PREPARED:
        (made / "tiny" / name).mkdir(parents=True)
        module.written(name, made / "tiny" / name)
    (made / "data").mkdir()
    for name, source in DATA.items():
        (made / "data" / name).symlink_to(made / "tiny" / source)
    return made


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a cluster's head: something listens there, and nothing is asked of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def there(cache: Path, place: Path, cluster: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process on a machine of the cluster, in `place`, with the models in the cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    monkeypatch.chdir(place)
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [file for folder in FOLDERS for file in full_size_configurations(folder)],
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_an_example_fits_at_full_size(file: Path, there: pytest.MonkeyPatch) -> None:
    """By environment variables alone, those of the README."""
    variables = full_size(file.parent)
    for name, value in variables.items():
        there.setenv(name, value)
    plan, findings = check(file.relative_to(ROOT))
    assert [finding for finding in findings if finding.code not in EXPECTED] == []
    config = plan.stages[-1].config
    assert config.cluster.gpu_per_node >= 2 and config.model.max_response_tokens >= 256
    assert variables["TRINITY_MODEL_PATH"] == config.model.model_path
    (stage,), _ = estimate(file.relative_to(ROOT), card_bytes=CARD_BYTES)
    assert stage.advice == ()
    on_cards = {each.place: each.num_bytes for each in stage.places if "GPU" in each.place}
    assert on_cards and max(on_cards.values()) <= CARD_BYTES, on_cards


def test_what_the_readmes_set_is_read() -> None:
    for folder in FOLDERS:
        texts = "".join(path.read_text(encoding="utf-8") for path in full_size_configurations(folder))
        unread = [name for name in full_size(folder) if not re.search(rf"oc\.env:{name}[,}}]", texts)]
        assert [name for name in unread if f"base_url_env: {name}" not in texts] == [], folder
