"""Checkpoints as folders of Hugging Face: the same bits, the same logits, whatever interrupts them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from tests.tiny import tiny_model
from tests.tiny_vision import tiny_vision_model
from tests.verl_checkpoints import Written
from trinity.common.errors import CheckpointError, TrinityError
from trinity.launch.conversion.exporting import ExportRequest, export_checkpoint
from trinity.utils import failpoints

TOKENS = torch.arange(3, 15)[None]
TIED = {"lm_head.weight": "model.embed_tokens.weight"}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def one_rank(folder: Path, weights: dict[str, Any], model: Path) -> Path:
    """Write a checkpoint of one rank with the settings of a model's folder; return it."""
    actor = folder / "global_step_3" / "actor"
    settings = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(model, actor / "huggingface", ignore=settings)
    torch.save(weights, actor / "model_world_size_1_rank_0.pt")
    return actor


def refused(wanted: ExportRequest, code: str, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as found:
        export_checkpoint(wanted)
    assert found.value.code == code and not wanted.output.exists()


@pytest.fixture
def trained(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    """Return a model with an output layer of its own, and its folder."""
    return tiny_model(tmp_path / "model", "llama", seed=2, tie_word_embeddings=False), tmp_path / "model"


def test_shards_of_two_replicas_become_a_model_with_the_same_bits(verl: Written, tmp_path: Path) -> None:
    done = export_checkpoint(ExportRequest(verl.folder, tmp_path / "out"))
    assert (done.step, done.kind, done.num_ranks, done.tied) == (20, "shards", 4, TIED)
    read = load_file(tmp_path / "out" / "model.safetensors")
    assert read.keys() == verl.actor.keys() - TIED.keys()
    assert all(t.dtype == torch.bfloat16 and torch.equal(t, verl.actor[n]) for n, t in read.items())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    expected = AutoModelForCausalLM.from_pretrained(verl.model, dtype=torch.bfloat16)
    expected.load_state_dict(verl.actor)
    assert model.dtype == torch.bfloat16 and torch.equal(model(TOKENS).logits, expected(TOKENS).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("12+34=") == AutoTokenizer.from_pretrained(verl.model)(
        "12+34="
    )


def test_a_critic_keeps_its_value_head(verl: Written, tmp_path: Path) -> None:
    done = export_checkpoint(ExportRequest(verl.folder, tmp_path / "out", part="critic"))
    assert done.num_ranks == 2
    model, told = AutoModelForTokenClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(tensor, verl.critic[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_another_number_type_is_written_and_named(verl: Written, tmp_path: Path, dtype: str) -> None:
    export_checkpoint(ExportRequest(verl.folder, tmp_path / "out", dtype=dtype))
    wanted = getattr(torch, dtype)
    read = load_file(tmp_path / "out" / "model.safetensors")
    assert all(t.dtype == wanted and torch.equal(t, verl.actor[n].to(wanted)) for n, t in read.items())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == wanted


def test_files_have_at_most_the_size_and_an_index(verl: Written, tmp_path: Path) -> None:
    done = export_checkpoint(ExportRequest(verl.folder, tmp_path / "out", max_shard_size="60KB"))
    files = sorted(name for name in done.files if name.endswith(".safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for n, t in verl.actor.items() if n not in TIED)
    for name in files:
        held = load_file(tmp_path / "out" / name)
        assert sum(tensor.nbytes for tensor in held.values()) <= 60_000
        assert all(index["weight_map"][tensor] == name for tensor in held)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, verl.actor[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("place", ["convert.before_rename", "convert.after_file"])
def test_an_interrupted_export_goes_on_to_the_same_bytes(verl: Written, tmp_path: Path, place: str) -> None:
    whole = ExportRequest(verl.folder, tmp_path / "a" / "out", max_shard_size="60KB")
    export_checkpoint(whole)
    killed = ExportRequest(verl.folder, tmp_path / "b" / "out", max_shard_size="60KB")
    process = os.fork()
    if process == 0:  # a process of its own, which is killed in the middle
        failpoints.configure(f"{place}=kill@3")
        export_checkpoint(killed)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -9
    left = contents(tmp_path / "b" / "out.part")
    kept = sum(name.endswith(".safetensors") and not name.startswith(".") for name in left)
    assert kept == (2 if place == "convert.before_rename" else 3) and not killed.output.exists()
    assert export_checkpoint(killed).num_kept == kept
    assert contents(killed.output) == contents(whole.output) and len(contents(killed.output)) > 8
    again = export_checkpoint(killed)
    assert again.num_kept == len(again.files), "a third time, nothing is left to do"
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["out"]


def test_a_file_that_was_altered_in_between_is_written_again(verl: Written, tmp_path: Path) -> None:
    wanted = ExportRequest(verl.folder, tmp_path / "out", max_shard_size="60KB")
    expected = contents(
        Path(export_checkpoint(ExportRequest(verl.folder, tmp_path / "other", max_shard_size="60KB")).output)
    )
    failpoints.configure("convert.after_file=raise@2")
    with pytest.raises(RuntimeError, match="failpoint"):
        export_checkpoint(wanted)
    failpoints.configure("")
    file = tmp_path / "out.part" / next(name for name in expected if "00001" in name)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert export_checkpoint(wanted).num_kept == 1
    assert contents(wanted.output) == expected


def test_a_full_disk_is_told_and_what_is_there_stays(verl: Written, tmp_path: Path) -> None:
    wanted = ExportRequest(verl.folder, tmp_path / "out", max_shard_size="60KB")
    failpoints.configure("convert.before_rename=enospc@2")
    refused(wanted, "E7055", "no space left .*the same command continues")
    failpoints.configure("")
    assert export_checkpoint(wanted).num_kept == 1


def test_another_folder_is_not_written_over(verl: Written, tmp_path: Path) -> None:
    wanted = ExportRequest(verl.folder, tmp_path / "out")
    wanted.output.mkdir()
    (wanted.output / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is there already") as found:
        export_checkpoint(wanted)
    assert found.value.code == "E7055" and contents(wanted.output) == {"notes.txt": b"mine"}
    (wanted.output / "notes.txt").unlink()
    assert export_checkpoint(wanted).num_tensors == 26
    with pytest.raises(CheckpointError, match="is there already"):
        export_checkpoint(ExportRequest(verl.folder, tmp_path / "out", dtype="float32"))


def test_two_processes_do_not_write_one_folder(verl: Written, tmp_path: Path) -> None:
    from trinity.launch.conversion.output import opened

    with opened(tmp_path / "out", {}), pytest.raises(TrinityError, match="another process") as found:
        export_checkpoint(ExportRequest(verl.folder, tmp_path / "out"))
    assert found.value.code == "E8006"


def test_a_shard_that_is_missing_torn_or_altered_is_named(verl: Written, tmp_path: Path) -> None:
    def broken(change: Callable[[Path], object]) -> ExportRequest:
        folder = tmp_path / change.__name__ / "global_step_20"
        shutil.copytree(verl.folder / "actor", folder / "actor")
        change(folder / "actor" / "model_world_size_4_rank_2.pt")
        return ExportRequest(folder, tmp_path / "out")

    def torn(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:5000])

    def altered(file: Path) -> None:
        data = bytearray(file.read_bytes())
        with zipfile.ZipFile(file) as archive:
            largest = max(archive.infolist(), key=lambda info: info.file_size)
        data[largest.header_offset + largest.file_size // 2] ^= 1
        file.write_bytes(data)

    def other(file: Path) -> None:
        shutil.copy(file.with_name("extra_state_world_size_4_rank_2.pt"), file)

    refused(broken(Path.unlink), "E7003", "model_world_size_4_rank_2.pt: 1 of the files of 4 ranks are missing")
    refused(broken(torn), "E7052", "model_world_size_4_rank_2.pt.*copy it again")
    refused(broken(altered), "E7052", "model_world_size_4_rank_2.pt is damaged")
    refused(broken(other), "E7003", "model_world_size_4_rank_2.pt must hold|rank_2.pt holds objects")


def test_code_in_a_shard_is_refused_and_not_run(verl: Written, tmp_path: Path) -> None:
    """X12."""
    mark = tmp_path / "was run"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(mark),)

    actor = one_rank(tmp_path, {"model.norm.weight": Attack()}, verl.model)
    refused(ExportRequest(actor, tmp_path / "out"), "E7003", "objects other than tensors, (posix|os).mkdir")
    (actor / "model_world_size_1_rank_0.pt").write_bytes(pickle.dumps({"weight": Attack()}, protocol=2))
    refused(ExportRequest(actor, tmp_path / "out"), "E7003", "model_world_size_1_rank_0.pt")
    assert not mark.exists()


def test_tensors_of_another_model_are_named(trained: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    model, folder = trained
    weights = dict(model.state_dict())
    weights["model.layers.9.mlp.up_proj.weight"] = weights.pop("model.layers.1.mlp.up_proj.weight")
    found = "1 missing .first model.layers.1.mlp.up_proj.weight.; 1 unknown .first model.layers.9.mlp"
    refused(ExportRequest(one_rank(tmp_path, weights, folder), tmp_path / "out"), "E7053", found)
    weights = dict(model.state_dict()) | {"model.norm.weight": torch.ones(3)}
    refused(
        ExportRequest(one_rank(tmp_path / "b", weights, folder), tmp_path / "out"), "E7053", r"norm.weight is \[3\]"
    )
    weights = dict(model.state_dict()) | {"v_head.summary.weight": torch.ones(1, 3)}
    refused(ExportRequest(one_rank(tmp_path / "c", weights, folder), tmp_path / "out"), "E7053", "value head of TRL")


def test_tied_layers_that_differ_are_refused(verl: Written, tmp_path: Path) -> None:
    weights = dict(verl.actor) | {"lm_head.weight": verl.actor["lm_head.weight"] + 1}
    refused(
        ExportRequest(one_rank(tmp_path, weights, verl.model), tmp_path / "out"), "E7054", "tie_word_embeddings: false"
    )


def test_rows_of_padding_are_cut(trained: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    model, folder = trained
    weights = dict(model.state_dict())
    rows = len(weights["lm_head.weight"])
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        weights[name] = torch.cat([weights[name], torch.zeros(5, weights[name].shape[1])])
    done = export_checkpoint(ExportRequest(one_rank(tmp_path, weights, folder), tmp_path / "out"))
    assert done.cut == {"lm_head.weight": rows, "model.embed_tokens.weight": rows}
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(read(TOKENS).logits, model(TOKENS).logits)


def test_an_adapter_of_veRL_is_merged(trained: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    import peft

    model, folder = trained
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    actor = one_rank(tmp_path, dict(wrapped.state_dict()), folder)
    refused(ExportRequest(actor, tmp_path / "out"), "E7056", "lora_train_meta.json")
    (actor / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM"}')
    export_checkpoint(ExportRequest(actor, tmp_path / "out"))
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    merged = wrapped.merge_and_unload().state_dict()
    assert read.state_dict().keys() == merged.keys()
    assert all(torch.equal(tensor, merged[name]) for name, tensor in read.state_dict().items())


def test_names_and_shapes_of_experts_are_those_of_transformers_files(tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig

    sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4}
    tiny_model(tmp_path / "settings", "llama")
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(vocab_size=64, num_experts_per_tok=2, **sizes, **heads))
    model.save_pretrained(tmp_path / "expected")
    shutil.copy(tmp_path / "expected" / "config.json", tmp_path / "settings" / "config.json")
    actor = one_rank(tmp_path, dict(model.state_dict()), tmp_path / "settings")
    done = export_checkpoint(ExportRequest(actor, tmp_path / "out", max_shard_size="20KB"))
    expected, files = load_file(tmp_path / "expected" / "model.safetensors"), [*done.files]
    read = {
        n: t for name in files if name.endswith("safetensors") for n, t in load_file(tmp_path / "out" / name).items()
    }
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in read and read.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read.items())


def test_a_model_that_reads_images_keeps_its_names_and_its_preprocessor(tmp_path: Path) -> None:
    tiny_vision_model(tmp_path / "model")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    actor = one_rank(tmp_path, dict(model.state_dict()), tmp_path / "model")
    done = export_checkpoint(ExportRequest(actor, tmp_path / "out"))
    read, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "model"))
    assert read.keys() == expected.keys() and all(torch.equal(t, expected[n]) for n, t in read.items())
    assert done.tied and "preprocessor_config.json" in done.files


def test_a_size_that_is_none_is_refused(verl: Written, tmp_path: Path) -> None:
    with pytest.raises(TrinityError, match="--max-shard-size must be a size such as 5GB") as found:
        export_checkpoint(ExportRequest(verl.folder, tmp_path / "out", max_shard_size="many"))
    assert found.value.code == "E1956"


def test_weights_of_hugging_face_beside_megatron_are_taken_and_its_own_format_is_refused(
    trained: tuple[PreTrainedModel, Path], tmp_path: Path
) -> None:
    model, folder = trained
    actor = tmp_path / "global_step_7" / "actor"
    (actor / "dist_ckpt").mkdir(parents=True)
    refused(ExportRequest(actor.parent, tmp_path / "out"), "E7050", "dist_ckpt.*Megatron.*hf_model")
    shutil.copytree(folder, actor / "huggingface")
    done = export_checkpoint(ExportRequest(actor.parent, tmp_path / "out", dtype="bfloat16"))
    assert (done.step, done.kind) == (7, "weights")
    read = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(t, model.state_dict()[n].bfloat16()) for n, t in read.items())


def test_settings_that_the_checkpoint_lacks_are_those_of_the_model_given(
    trained: tuple[PreTrainedModel, Path], tmp_path: Path
) -> None:
    model, folder = trained
    actor = one_rank(tmp_path, dict(model.state_dict()), folder)
    shutil.rmtree(actor / "huggingface")
    refused(ExportRequest(actor, tmp_path / "out"), "E7051", "--model")
    export_checkpoint(ExportRequest(actor, tmp_path / "out", model=str(folder)))
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(read(TOKENS).logits, model(TOKENS).logits)
