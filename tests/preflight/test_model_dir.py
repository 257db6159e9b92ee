"""Every way in which a model directory can be unusable, found before anything is loaded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_model
from trinity.common.config import Finding
from trinity.preflight.model_dir import check_model_dir, known_model_types


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny-llama"
    tiny_model(path, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    return path


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "tiny-llama"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), "utf-8")


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [finding.render() for finding in findings]
    return findings[0]


def remove_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    edit(model / "tokenizer_config.json", lambda data: data.pop("chat_template", None))


def test_a_whole_model_has_no_findings(model: Path) -> None:
    assert check_model_dir(model) == []
    assert check_model_dir(str(model), trust_remote_code=True, need_chat_template=False) == []


def test_a_missing_path_names_the_nearest_sibling(model: Path) -> None:
    finding = only(check_model_dir(model.parent / "tiny-lama"))
    assert finding.code == "E3101" and finding.is_error
    assert finding.message.endswith(f"tiny-lama does not exist; did you mean {model}?")


def test_a_hub_id_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finding = only(check_model_dir("Qwen/Qwen3-0.6B"))
    assert finding.code == "W3111" and "a run downloads it first" in finding.message
    assert "hub id" not in only(check_model_dir("./models/none")).message
    (tmp_path / "file").write_text("")
    assert "is not a directory" in only(check_model_dir(tmp_path / "file")).message


def test_everything_that_is_missing_is_listed(tmp_path: Path, model: Path) -> None:
    finding = check_model_dir(tmp_path, need_chat_template=False)
    assert only(finding).code == "E3102"
    assert "config.json; a tokenizer (tokenizer.json, tokenizer.model, ...); weights" in only(finding).message
    (model / "tokenizer.json").unlink()
    finding = check_model_dir(model)
    assert only(finding).code == "E3102" and "it lacks: a tokenizer" in only(finding).message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_broken_json_file_is_named(model: Path, name: str, content: str) -> None:
    (model / name).write_text(content)
    finding = only(check_model_dir(model, need_chat_template=False))
    assert finding.code == "E3102" and name in finding.message


def test_a_tokenizer_of_another_shape_is_named(model: Path) -> None:
    edit(model / "tokenizer.json", lambda data: data["added_tokens"].append({"id": None}))
    finding = only(check_model_dir(model))
    assert finding.code == "E3102" and "is no tokenizer" in finding.message


@pytest.mark.parametrize("cut", [1, 1000])
def test_truncated_weights_say_expected_and_actual_bytes(model: Path, cut: int) -> None:
    weights = model / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-cut])
    finding = only(check_model_dir(model))
    assert finding.code == "E3103"
    assert f"truncated: expected {size} bytes, got {size - cut}" in finding.message


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"\xff" * 100, (20).to_bytes(8, "little") + b"not json at all ....."]
)
def test_weights_without_a_readable_header(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    finding = only(check_model_dir(model))
    assert finding.code == "E3103" and "model.safetensors" in finding.message


def test_weights_with_bytes_too_many(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert "too long" in only(check_model_dir(model)).message


def test_an_index_that_names_a_missing_shard(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    finding = only(check_model_dir(model))
    assert finding.code == "E3103" and finding.message.endswith("missing files: model-00002-of-00002.safetensors")
    index.write_text("{}")
    assert "has no weight_map" in only(check_model_dir(model)).message


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    finding = only(check_model_dir(model))
    assert finding.code == "E3104" and "convert them to safetensors" in finding.message


def test_code_that_comes_with_the_model_is_not_run(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (model / "modeling_own.py").write_text(f"open({str(marker)!r}, 'w').close()")
    edit(model / "config.json", lambda data: data.update(auto_map={"AutoModel": "modeling_own.Own"}, model_type="own"))
    finding = only(check_model_dir(model))
    assert finding.code == "E3105" and "model.trust_remote_code: true" in finding.message
    assert check_model_dir(model, trust_remote_code=True) == []
    assert not marker.exists()


def test_a_tokenizer_larger_than_the_embedding(model: Path) -> None:
    added = {"id": 5000, "content": "<extra>", "special": True}
    edit(model / "tokenizer.json", lambda data: data["added_tokens"].append(added))
    finding = only(check_model_dir(model))
    assert finding.code == "E3106"
    rows = json.loads((model / "config.json").read_text("utf-8"))["vocab_size"]
    assert f"token '<extra>' with id 5000, the model's embedding has only {rows} rows" in finding.message


def test_no_chat_template(model: Path) -> None:
    remove_template(model)
    finding = only(check_model_dir(model))
    assert finding.code == "E3107" and "model.custom_chat_template" in finding.message
    assert check_model_dir(model, need_chat_template=False) == []
    assert check_model_dir(model, custom_chat_template="{{ messages[0]['content'] }}") == []


def test_no_pad_token_is_a_warning(model: Path) -> None:
    edit(model / "tokenizer_config.json", lambda data: data.pop("pad_token"))
    (model / "special_tokens_map.json").unlink(missing_ok=True)
    finding = only(check_model_dir(model))
    assert finding.code == "W3108" and finding.severity == "warning"
    (model / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    assert check_model_dir(model) == []


def test_a_template_file_that_is_missing_or_no_text(model: Path, tmp_path: Path) -> None:
    finding = only(check_model_dir(model, chat_template_path=tmp_path / "none.jinja"))
    assert finding.code == "E3109" and "none.jinja cannot be read" in finding.message
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    assert only(check_model_dir(model, chat_template_path=tmp_path / "binary.jinja")).code == "E3109"


def test_a_template_with_an_error_names_its_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{% for m in messages %}\n{{ m.content }}\n{% endfro %}\n")
    finding = only(check_model_dir(model, chat_template_path=path, custom_chat_template="{% not read"))
    assert finding.code == "E3109" and "chat.jinja line 3" in finding.message and "{% endfro %}" in finding.message
    assert "custom_chat_template line 1" in only(check_model_dir(model, custom_chat_template="{% if %}")).message
    remove_template(model)
    (model / "chat_template.jinja").write_text("ok\n{{ broken")
    assert "chat_template.jinja line 2" in only(check_model_dir(model)).message


def test_tags_of_the_template_library_are_known(model: Path) -> None:
    text = "{% for m in messages %}{%- generation %}{{ m.content }}{% endgeneration -%}{% break %}{% endfor %}"
    assert check_model_dir(model, custom_chat_template=text) == []


def test_a_template_is_parsed_and_not_run(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    text = "{{ cycler.__init__.__globals__.os.system('touch " + str(marker) + "') }}"
    assert check_model_dir(model, custom_chat_template=text) == []
    assert not marker.exists()


def test_named_templates_of_the_tokenizer(model: Path) -> None:
    remove_template(model)
    templates = [{"name": "default", "template": "fine"}, {"name": "tool_use", "template": "{% if %}"}]
    edit(model / "tokenizer_config.json", lambda data: data.update(chat_template=templates))
    finding = only(check_model_dir(model))
    assert finding.code == "E3109" and "(tool_use) line 1" in finding.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama' of config.json is unknown to the installed transformers; did you"),
        ({"model_type": None}, "must name its model_type, got None"),
        ({"architectures": []}, "must list its architectures, got []"),
        ({"architectures": "LlamaForCausalLM"}, "must list its architectures, got 'LlamaForCausalLM'"),
        ({"architectures": ["BertForMaskedLM"]}, "architecture BertForMaskedLM generates no text"),
    ],
)
def test_an_architecture_that_cannot_be_used(model: Path, change: dict[str, Any], message: str) -> None:
    edit(model / "config.json", lambda data: data.update(change))
    finding = only(check_model_dir(model))
    assert finding.code == "E3110" and message in finding.message


def test_the_supported_types_can_be_given(model: Path) -> None:
    assert only(check_model_dir(model, supported={"qwen3"})).code == "E3110"
    assert check_model_dir(model, supported={"llama"}) == []


def test_the_model_types_are_those_of_the_installed_transformers() -> None:
    from transformers import CONFIG_MAPPING

    assert {"llama", "qwen2", "qwen3", "gpt2"} <= known_model_types()
    assert set(CONFIG_MAPPING) <= known_model_types()


def test_findings_come_together(model: Path) -> None:
    remove_template(model)
    (model / "model.safetensors").write_bytes(b"")
    edit(model / "config.json", lambda data: data.update(model_type="none_such", vocab_size=3))
    codes = [finding.code for finding in check_model_dir(model, chat_template_path="none.jinja")]
    assert sorted(codes) == ["E3103", "E3106", "E3109", "E3110"]
    assert all(finding.render().startswith(f"error[{finding.code}]: ") for finding in check_model_dir(model))


def test_the_check_imports_neither_torch_nor_transformers(model: Path) -> None:
    code = (
        "import sys; from trinity.preflight.model_dir import check_model_dir;"
        "print(check_model_dir(sys.argv[1]), [n for n in ('torch', 'transformers', 'tokenizers') if n in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[] []"
