"""Models of the trainer: the language model, and the value model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._weights_only_unpickler import UnpicklingError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from trinity.common.checkpoint import hash_tree
from trinity.common.config import Config
from trinity.common.constants import LORA_FOLDER
from trinity.common.errors import CheckpointError, EnvironmentProblem
from trinity.common.models.model_config import (
    MODEL_KEY,
    NOISE,
    check_loaded,
    import_libraries,
    read_trained_config,
    silence,
)
from trinity.common.models.rotary import settle_rotary
from trinity.common.models.vision import is_vision
from trinity.trainer.verl.checkpoint import read_weights

if TYPE_CHECKING:
    from trinity.trainer.verl.lora import Adapter

HEAD_NAMES = ("score", "classifier")
CRITIC_KEY = "trainer.trainer_config.critic.model"
HEAD_STD = 0.02  # initializer_range of the common families


def load_model(path: str, device: torch.device, *, config: Config) -> PreTrainedModel:
    """Return the model of the folder `path` in float32 on `device`.

    `model.override_config` changes its configuration.

    Raises:
        ConfigError: `override_config` names what the model's configuration does not have (E1885), `external_lib` a
            module that cannot be imported (E1863), or rotary frequencies follow the length of a row (E1895).
        EnvironmentProblem: it cannot be loaded, or `override_config` does not fit its weights (E3101), or it asks for
            a loss of its experts (E3125).
    """
    transformers_logging.disable_progress_bar()
    detailed, trusted = config.trainer.trainer_config.actor_rollout_ref.model, config.model.trust_remote_code
    import_libraries(detailed.external_lib)
    overrides = detailed.override_config
    try:
        wanted = read_trained_config(path, overrides, trust_remote_code=trusted)
        noise = silence(wanted)
        kind = AutoModelForImageTextToText if is_vision(wanted) else AutoModelForCausalLM
        loaded: Any = kind.from_pretrained(
            path,
            config=wanted,
            dtype=torch.float32,
            trust_remote_code=trusted,
            ignore_mismatched_sizes=bool(overrides),
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load model.model_path {path}: {error}", code="E3101") from error
    model, info = loaded
    check_loaded(info, overrides, path=path, section=MODEL_KEY)
    settle_rotary(model, max_model_len=config.model.max_model_len)
    return _ready(model, device, noise)


def attach_adapter(model: PreTrainedModel, config: Config) -> Adapter | None:
    """Put the adapter of `model.lora_configs` into `model` and return it.

    Return None if there is no adapter to train.

    Raises:
        ConfigError: it names modules that the model does not have.
        EnvironmentProblem: an existing adapter cannot be read or does not fit.
    """
    if not config.model.lora_configs:
        return None
    from trinity.trainer.verl.lora import attach  # PEFT takes two seconds to import

    path = str(config.model.model_path)
    return attach(model, config.model.lora_configs[0], seed=config.seed, base_hash=model_hash(path))


def initial_weights(config: Config) -> Mapping[str, Tensor]:
    """Return the merged weights at the start of an adapter's training, on CPU.

    Raises:
        EnvironmentProblem: model or adapter cannot be loaded.
    """
    model = load_model(str(config.model.model_path), torch.device("cpu"), config=config)
    adapter = attach_adapter(model, config)
    assert adapter is not None, "asked for only with model.lora_configs"
    return adapter.weights()


def checkpoint_weights(checkpoint: Path, config: Config) -> Mapping[str, Tensor]:
    """Return the policy's weights in a checkpoint, on the CPU.

    They are listed by Hugging Face name, with an adapter merged.

    Raises:
        CheckpointError: they cannot be read (E7043).
    """
    folder = checkpoint / "actor"
    try:
        if not (folder / LORA_FOLDER).is_dir():
            return read_weights(folder)
        model = load_model(str(config.model.model_path), torch.device("cpu"), config=config)
        adapter = attach_adapter(model, config)
        if adapter is None:
            raise ValueError("it holds an adapter; write model.lora_configs as it was")
        adapter.load(folder)
        return adapter.weights()
    except (OSError, RuntimeError, ValueError, KeyError, UnpicklingError) as error:
        raise CheckpointError(f"cannot read the policy of {checkpoint}: {error}", code="E7043") from error


def model_hash(path: str) -> str:
    """Return the hash of the files in a model's folder; empty for a hub id."""
    return hash_tree(Path(path)) if Path(path).is_dir() else ""


def load_value_model(path: str, device: torch.device, *, config: Config) -> PreTrainedModel:
    """Return the value model of the folder `path` in float32 on `device`.

    Its head gives one number per token. The head of a token or sequence classifier with one label is taken as it is.
    Another model, such as a causal language model, gets a head that depends on `seed` alone; its bias is 0.
    `critic.model.override_config` changes the model's configuration.

    Raises:
        ConfigError: as for `load_model`.
        EnvironmentProblem: it cannot be loaded (E3101), or its head does not have exactly one output (E3120).
    """
    transformers_logging.disable_progress_bar()
    import_libraries(config.trainer.trainer_config.critic.model.external_lib, section=CRITIC_KEY)
    try:
        with torch.random.fork_rng(devices=[]), _without_report():
            model, info, noise = _classifier(path, config, names={})
            if "score.weight" in info["unexpected_keys"] and not hasattr(model, "score"):
                # Token and sequence classifiers of a family name their heads differently.
                model, info, noise = _classifier(path, config, names={r"^score\.": "classifier."})
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load model.critic_model_path {path}: {error}", code="E3101") from error
    check_loaded(
        {kind: [key for key in keys if not _is_of_head(key)] for kind, keys in info.items() if kind.endswith("_keys")},
        config.trainer.trainer_config.critic.model.override_config,
        path=path,
        section=CRITIC_KEY,
    )
    wrong = sorted(f"{name} of shape {list(shape)}" for name, shape, _ in info["mismatched_keys"])
    if wrong:
        raise EnvironmentProblem(
            f"model.critic_model_path {path} does not fit a value model: {', '.join(wrong)}; give a classifier with "
            "one label, or a causal language model",
            code="E3120",
        )
    head = value_head(model)
    missing = {name.rpartition(".")[2] for name in info["missing_keys"] if name.split(".")[0] in HEAD_NAMES}
    if "weight" in missing:
        digest = hashlib.sha256(f"value head/{config.seed}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        nn.init.normal_(head.weight, std=HEAD_STD, generator=generator)
    if "bias" in missing and head.bias is not None:
        nn.init.zeros_(head.bias)
    model.config.architectures = [type(model).__name__]
    settle_rotary(model, max_model_len=config.model.max_model_len)
    return _ready(model, device, noise)


def value_head(model: PreTrainedModel) -> nn.Linear:
    """Return the linear layer from hidden states to values.

    Raises:
        EnvironmentProblem: the model type has none that is known (E3120).
    """
    for name in HEAD_NAMES:
        head = getattr(model, name, None)
        if isinstance(head, nn.Linear):
            return head
    raise EnvironmentProblem(
        f"model.critic_model_path: {type(model).__name__} has no head named {' or '.join(HEAD_NAMES)}, so that it "
        "cannot be a value model; give a model of another type",
        code="E3120",
    )


def num_embeddings(model: PreTrainedModel) -> int:
    """Return the number of tokens in a model's embedding table."""
    table = model.get_input_embeddings().weight
    assert isinstance(table, Tensor), "token embeddings are a table"
    return len(table)


def _is_of_head(key: str | tuple[Any, ...]) -> bool:
    """Return whether a tensor that was not loaded unchanged is of a head."""
    name = key if isinstance(key, str) else str(key[0])
    return name.split(".")[0] in (*HEAD_NAMES, "lm_head")


def _classifier(
    path: str, config: Config, *, names: dict[str, str]
) -> tuple[PreTrainedModel, dict[str, Any], dict[str, float]]:
    overrides, trusted = config.trainer.trainer_config.critic.model.override_config, config.model.trust_remote_code
    made = read_trained_config(path, overrides, trust_remote_code=trusted, section=CRITIC_KEY)
    made.num_labels = 1
    noise = silence(made)
    loaded: tuple[PreTrainedModel, dict[str, Any]] = AutoModelForTokenClassification.from_pretrained(
        path,
        config=made,
        dtype=torch.float32,
        trust_remote_code=trusted,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **{"key_mapping": names} if names else {},
    )
    return *loaded, noise


@contextmanager
def _without_report() -> Iterator[None]:
    """Suppress transformers' report of a new head, which is intended."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def move_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Move buffers to `device`; sharding has moved the parameters there."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def _ready(model: PreTrainedModel, device: torch.device, noise: dict[str, float]) -> PreTrainedModel:
    """Record the configured `noise`, turn dropout off, and move to `device`."""
    setattr(model, NOISE, noise)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    moved: PreTrainedModel = nn.Module.to(model, device)
    return moved
