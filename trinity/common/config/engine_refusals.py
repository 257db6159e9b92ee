"""What an engine does not serve of its section; rules and engines ask."""

from __future__ import annotations

from collections.abc import Iterator

from trinity.common.config.config import Config
from trinity.common.config.engine_args import FIXED_ARGS, IMAGE_CACHE_ARGS, TORCH_ENGINE_ARGS
from trinity.common.config.keys import KEYS, Key, part_of, path_of, value_of
from trinity.common.config.model import InferenceModelConfig
from trinity.common.config.refusals import Refusal
from trinity.common.config.schema_index import facts_at

REPLICAS = "replicas are engines here, each watched and started again on its own"


def divisions(model: Key[InferenceModelConfig]) -> tuple[Key[int], ...]:
    """Return the keys of how many devices one engine is divided over."""
    return model.tensor_parallel_size, model.pipeline_parallel_size


def foreign_arguments(config: Config, model: Key[InferenceModelConfig]) -> list[str]:
    """Return names in `extra_engine_args` that the torch engine lacks."""
    return sorted(set(value_of(config, model.extra_engine_args)) - {*TORCH_ENGINE_ARGS, *IMAGE_CACHE_ARGS})


def vllm_refusals(config: Config, model: Key[InferenceModelConfig]) -> Iterator[Refusal]:
    """Yield what the vLLM engine does not serve.

    That is `deterministic` (E3220), arguments that have a key or that only the engine sets (E3224), and wrong ones of
    the cache of images (E1926).
    """
    if config.deterministic:
        yield Refusal(
            "E3220",
            model.engine_type,
            "`deterministic: true` does not fit engine_type vllm: the bits of its sums depend on which requests share "
            "a batch",
            f"use --set {model.engine_type}=torch, or write `deterministic: false`",
            rule="torch",
            involves=(KEYS.deterministic, *divisions(model)),
        )
    yield from _image_cache(config, model)
    for name in value_of(config, model.extra_engine_args):
        key = model.extra_engine_args[name]
        if facts_at(path_of(part_of(model, name)))[1].is_engine_arg:
            why, way_out = "has a key of its own", f"write `{model}.{name}`"
        elif name in FIXED_ARGS:
            why, way_out = "is set by the engine, whose samples and weight updates depend on it", "remove it"
        else:
            continue
        yield Refusal("E3224", key, f"`{key}` {why}", way_out, involves=(model.engine_type,))


def torch_refusals(config: Config, model: Key[InferenceModelConfig]) -> Iterator[Refusal]:
    """Yield what the torch engine does not serve.

    That is more than one device (E3223), arguments of vLLM (E1612), and wrong ones of the cache of images (E1926).
    """
    yield from _image_cache(config, model)
    for size in divisions(model):
        way_out = f"use --set {size}=1 or --set {model.engine_type}=vllm"
        yield from _other_size(config, model, size, why=" by the torch engine, which is on one device", way_out=way_out)
    for name in foreign_arguments(config, model):
        yield Refusal(
            "E1612",
            model.extra_engine_args[name],
            f"`{model.extra_engine_args[name]}` is no argument of the torch engine",
            f"remove it, or use --set {model.engine_type}=vllm",
            rule=f"one of {', '.join(TORCH_ENGINE_ARGS)}",
            involves=(model.engine_type,),
        )


def _image_cache(config: Config, model: Key[InferenceModelConfig]) -> Iterator[Refusal]:
    """Yield which arguments of the cache of prepared images are wrong."""
    size, switch = IMAGE_CACHE_ARGS
    given = value_of(config, model.extra_engine_args)
    for name, is_right, rule in (
        (size, lambda value: type(value) in (int, float) and value >= 0, "a number of GiB, >= 0"),
        (switch, lambda value: isinstance(value, bool), "true or false"),
    ):
        if name in given and not is_right(given[name]):
            key = model.extra_engine_args[name]
            yield Refusal("E1926", key, f"`{key}: {given[name]}` must be {rule}", "correct it", rule=rule)


def shared_replicas(config: Config, model: Key[InferenceModelConfig]) -> Iterator[Refusal]:
    """Yield the refusal of replicas that share experts (E3223)."""
    if value_of(config, model.enable_expert_parallel):
        why = f" with enable_expert_parallel: {REPLICAS}, and share no experts"
        way_out = f"write `{model.tensor_parallel_size}`"
        yield from _other_size(config, model, model.data_parallel_size, why=why, way_out=way_out)


def unspread_replicas(config: Config, model: Key[InferenceModelConfig]) -> Iterator[Refusal]:
    """Yield the refusal of replicas that no rule has made engines (E3223)."""
    why, way_out = f" inside an engine: {REPLICAS}", f"use `{model.engine_num}`"
    yield from _other_size(config, model, model.data_parallel_size, why=why, way_out=way_out)


def _other_size(
    config: Config, model: Key[InferenceModelConfig], key: Key[int], *, why: str, way_out: str
) -> Iterator[Refusal]:
    size = value_of(config, key)
    if size != 1:
        said = f"`{key}: {size}` is not served{why}"
        yield Refusal("E3223", key, said, way_out, rule="1", involves=(model.engine_type,))
