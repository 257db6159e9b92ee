"""A checkpoint as a folder that transformers loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from trinity.common.constants import LORA_FOLDER
from trinity.common.errors import CheckpointError, ConfigError
from trinity.common.models.hub import INDEX, model_folder
from trinity.common.models.shards import check_intact
from trinity.launch.conversion.adapters import with_adapter
from trinity.launch.conversion.card import card_of
from trinity.launch.conversion.output import RECORD, UnfinishedFolder, opened
from trinity.launch.conversion.sources import Located, WeightSource, located, source_of
from trinity.launch.conversion.structure import Structure, as_it_is, empty_model, is_transposed, structure_of
from trinity.utils.log import get_logger

logger = get_logger("launch")

DTYPES = {"keep": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CARD = "README.md"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json", ".gguf")


@dataclass(frozen=True)
class ExportRequest:
    """What is exported, and how.

    Attributes:
        source: folder of a job, of a checkpoint, or of a part of one.
        output: folder that is made.
        part: `actor` or `critic`.
        step: of the checkpoint; None: the newest of a job.
        model: folder or hub id of the configuration and tokenizer, and of the model under an adapter; None: those of
            the checkpoint.
        dtype: data type of the weights; `keep` as they are.
        max_shard_size: bytes of a file of weights at most, as in `5GB`.
        trust_remote_code: run Python code that comes with the model.
    """

    source: Path
    output: Path
    part: str = "actor"
    step: int | None = None
    model: str | None = None
    dtype: str = "keep"
    max_shard_size: str = "5GB"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Exported:
    """What an export has written.

    Attributes:
        output: the folder.
        source: the part of the checkpoint that it is of.
        step: training step of the checkpoint; None: unknown.
        kind: `shards`, `adapter` or `weights`.
        num_ranks: how many ranks wrote the shards; 0 without shards.
        num_tensors: in the files.
        num_parameters: numbers in them.
        tied: names that are left out, since they are the tensor of another name.
        cut: rows that stayed of tables with more rows than the vocabulary.
        num_kept: files that an earlier, interrupted conversion had written.
        files: size and SHA-256 of each file.
    """

    output: str
    source: str
    step: int | None
    kind: str
    num_ranks: int
    num_tensors: int
    num_parameters: int
    tied: dict[str, str]
    cut: dict[str, int]
    num_kept: int
    files: dict[str, dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the facts as plain containers."""
        return asdict(self)


def export_checkpoint(wanted: ExportRequest) -> Exported:
    """Write the weights of a checkpoint, with what belongs to them.

    Never more than one file of weights is in memory. A killed export continues where it was; its bytes are those of one
    that was not interrupted.

    Raises:
        CheckpointError: it cannot be read, is not of the model, or the folder is there with other content.
        AlreadyRunningError: another process writes the folder.
        ConfigError: a size that is none (E1956).
    """
    found = located(wanted.source, part=wanted.part, step=wanted.step)
    settings = _settings_folder(found, wanted.model)
    source = source_of(found, base=wanted.model)
    if found.kind == "weights":
        structure = as_it_is(source.like)
    else:
        model = empty_model(settings, trust_remote_code=wanted.trust_remote_code)
        source = with_adapter(source, found, is_transposed=is_transposed(model))
        # The model under an adapter of ours is in files already, whose names are not always those of its tensors.
        is_in_files = found.kind == "adapter"
        structure = as_it_is(source.like) if is_in_files else structure_of(source.like, model, where=found.folder)
    with opened(wanted.output.absolute(), _request(wanted, found, source, settings)) as output:
        if not output.is_complete:
            if found.kind == "shards":
                for file in source.files:
                    check_intact(file)
            _check_tied(source, structure, found.folder)
            _write(output, wanted, found, source=source, structure=structure, settings=settings)
    return _exported(output, found, source, structure)


def _exported(output: UnfinishedFolder, found: Located, source: WeightSource, structure: Structure) -> Exported:
    return Exported(
        output=str(output.final),
        source=str(found.folder),
        step=found.step,
        kind=found.kind,
        num_ranks=len(source.files) if found.kind == "shards" else 0,
        num_tensors=len(structure.like),
        num_parameters=sum(tensor.numel() for tensor in structure.like.values()),
        tied=structure.tied,
        cut=structure.cut,
        num_kept=output.num_kept,
        files=dict(sorted(output.files.items())),
    )


def _settings_folder(found: Located, model: str | None) -> Path:
    """Return the folder of configuration and tokenizer."""
    folder = (
        found.huggingface if model is None or (found.huggingface / "config.json").is_file() else model_folder(model)
    )
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{found.folder} has no huggingface/config.json; give the model that was trained with --model",
            code="E7051",
        )
    return folder


def _request(wanted: ExportRequest, found: Located, source: WeightSource, settings: Path) -> dict[str, Any]:
    """Return what decides the content of the folder."""
    adapter = [file for file in sorted((found.folder / LORA_FOLDER).glob("*")) if found.kind == "adapter"]
    read = [*source.files, *adapter, *_settings_files(settings)]
    return {
        "source": str(found.folder.absolute()),
        "step": found.step,
        "dtype": wanted.dtype,
        "max_shard_size": wanted.max_shard_size,
        "read": {str(file.absolute()): [file.stat().st_size, file.stat().st_mtime_ns] for file in read},
    }


def _settings_files(folder: Path) -> list[Path]:
    """Return what travels with the weights: configuration, tokenizer, code."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    kept = (file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))
    return [file for file in kept if not file.name.endswith(_WEIGHTS) and file.name not in (RECORD, CARD)]


def _check_tied(source: WeightSource, structure: Structure, where: Path) -> None:
    """Check that tensors which a model has once are equal in the checkpoint."""
    with source.opened() as weights:
        for name, other in structure.tied.items():
            if not torch.equal(weights[name], weights[other]):
                raise CheckpointError(
                    f"{where}: config.json says that {name} is {other} (tie_word_embeddings), and they differ; the "
                    "model was trained with two: write tie_word_embeddings: false into its config.json",
                    code="E7054",
                )


def _write(
    output: UnfinishedFolder,
    wanted: ExportRequest,
    found: Located,
    *,
    source: WeightSource,
    structure: Structure,
    settings: Path,
) -> None:
    dtype = DTYPES[wanted.dtype]
    like = {
        name: tensor.to(dtype or tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in structure.like.items()
    }
    try:
        split = split_torch_state_dict_into_shards(like, max_shard_size=wanted.max_shard_size)
    except ValueError as error:
        raise ConfigError(f"--max-shard-size must be a size such as 5GB or 500MB: {error}", code="E1956") from error
    weight_files = dict(split.filename_to_tensors)
    for name, tensors in weight_files.items():
        if output.has(name):
            logger.info("%s is there already", output.part / name)
            continue
        with source.opened() as weights:
            held: dict[str, Tensor] = {}
            for key, tensor in _converted(structure, tensors, weights):
                held[key] = _placed(tensor, like[key], held)
            output.write(name, partial(save_file, held, metadata={"format": "pt"}))
            held.clear()
    if split.is_sharded:
        document = {"metadata": split.metadata, "weight_map": dict(sorted(split.tensor_to_filename.items()))}
        _write_text(output, INDEX, json.dumps(document, indent=2) + "\n")
    for file in _settings_files(settings):
        name = file.relative_to(settings).as_posix()
        text = _with_dtype(file.read_text(encoding="utf-8"), like) if name == "config.json" else None
        content = file.read_bytes() if text is None else text.encode()
        if not output.has(name):
            output.write(name, partial(_put, content))
    hashes = {name: output.files[name]["sha256"] for name in sorted(weight_files)}
    _write_text(output, CARD, card_of(found, hashes=hashes, settings=settings, dtype=_main_dtype(like)))
    output.finish()


def _put(content: bytes, file: Path) -> None:
    file.write_bytes(content)


def _write_text(output: UnfinishedFolder, name: str, text: str) -> None:
    if not output.has(name):
        output.write(name, partial(_put, text.encode()))


def _converted(structure: Structure, names: list[str], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the wanted tensors, of any shape; each unit is converted once."""
    unit_of, wanted = structure.unit_of(), set(names)
    for unit in dict.fromkeys(unit_of[name] for name in names):
        for name, tensor in structure.convert(unit, weights).items():
            if name in wanted:
                yield name, tensor


def _placed(tensor: Tensor, like: Tensor, others: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor, of any shape, as it is written.

    It has the type of `like`, and shares no memory with `others`.
    """
    if tensor.shape != like.shape:
        raise AssertionError(f"a tensor of {list(tensor.shape)} was planned as {list(like.shape)}")
    made = tensor.detach().to(like.dtype).contiguous()
    storage = made.untyped_storage()
    is_apart = storage.nbytes() == made.nbytes and all(
        other.untyped_storage().data_ptr() != storage.data_ptr() for other in others.values()
    )
    return made if is_apart else made.clone()


def _main_dtype(like: Mapping[str, Tensor]) -> str:
    """Return the data type of most of the weights."""
    bytes_of: dict[str, int] = {}
    for tensor in like.values():
        if tensor.is_floating_point():
            name = str(tensor.dtype).removeprefix("torch.")
            bytes_of[name] = bytes_of.get(name, 0) + tensor.nbytes
    return max(bytes_of, key=lambda name: bytes_of[name], default="float32")


def _with_dtype(text: str, like: Mapping[str, Tensor]) -> str:
    """Return a configuration that names the data type of the weights."""
    document = json.loads(text)
    for section in (document, *(document[key] for key in ("text_config", "vision_config") if key in document)):
        if isinstance(section, dict) and (section is document or {"dtype", "torch_dtype"} & section.keys()):
            section["torch_dtype" if "torch_dtype" in section else "dtype"] = _main_dtype(like)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
