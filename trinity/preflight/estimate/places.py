"""Which processes a stage has, and what each of them holds where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trinity.common.config.resolved import num_workers
from trinity.preflight.estimate.limits import LARGEST_PIECE, MIB
from trinity.preflight.estimate.parts import HOST, MEASURED, MemoryPart, PlacedMemory, kept, millions, working
from trinity.preflight.estimate.sampling import torch_parts, uses_kernels, vllm_parts
from trinity.preflight.estimate.training import FLOAT32, MOMENTS, TrainedModels, trainer_parts
from trinity.preflight.estimate.work import explores, trains

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.preflight.estimate.sizes import ModelSizes

TRAINER_MIB, ENGINE_MIB, VLLM_MIB, CONTROL_MIB = 475, 90, 525, 530
"""Python and libraries, measured on Linux x86-64 with the CPU build of PyTorch 2.13: of a process that trains, what an
engine in it adds, what vLLM adds, and of a process that computes nothing on a CPU, whatever it waits for."""
KERNELS_MIB = 85
"""Numba and the kernels that it compiles or reads (`utils.fused`), of which the import alone takes 65."""
KEPT_FRAC = 0.3
"""Memory that a process holds in addition, as a share of what each step frees and allocates in small pieces: the pieces
do not fit without gaps, although all threads share a pool and freed pieces are joined (`runtime.allocator`). Fitted to
the runs of `benchmarks/estimate.py`."""
CUDA_MIB = 500
"""What CUDA takes of a card for each process, by NVIDIA's documents of recent drivers; not measured here."""
TRAINER_GPU, ENGINE_GPU, ONE_GPU = "GPU of the trainer", "GPU of an engine", "the GPU"


@dataclass(frozen=True)
class PlannedModels:
    """The sizes of all models of a stage.

    Attributes:
        policy: the trained model, or that which answers.
        critic: None: there is none.
        engine: of the rollout model.
        auxiliary: of the auxiliary models that have an engine here, with their index.
        has_reference: a reference is read.
    """

    policy: ModelSizes
    critic: ModelSizes | None
    engine: ModelSizes
    auxiliary: tuple[tuple[int, ModelSizes], ...]
    has_reference: bool


def placed(config: Config, models: PlannedModels, *, card_bytes: int | None) -> list[PlacedMemory]:
    """Return the memory of every process of a stage.

    Args:
        config: resolved configuration of the stage.
        models: the sizes of its models.
        card_bytes: memory of a GPU; None: not known.
    """
    total = config.cluster.total_gpu_num or 0
    is_apart = config.cluster.runtime == "ray"
    main: list[MemoryPart] = []
    found: list[PlacedMemory] = []
    if trains(config):
        found += _trainer(config, models, main)
    if explores(config):
        found += _engines(config, models, main, card_bytes=card_bytes)
    size = CONTROL_MIB if is_apart or not main else TRAINER_MIB + (ENGINE_MIB if explores(config) else 0)
    libraries = [_libraries(size)]
    if main and not is_apart:
        libraries += _kernels(config, models.policy)
    on_card = [each for each in found if each.place != HOST]
    if total == 1 and on_card:
        found = [each for each in found if each.place == HOST]
        parts = [replace(part, num_bytes=part.num_bytes * each.count) for each in on_card for part in each.parts]
        found.append(PlacedMemory("trainer and engine", ONE_GPU, tuple(parts)))
    run = PlacedMemory("run", HOST, (*libraries, *main))
    return [_with_kept(each) if each.place == HOST else _without_empty(each) for each in (run, *found)]


def _with_kept(place: PlacedMemory) -> PlacedMemory:
    """Return a process with the freed memory that its C library keeps."""
    size = int(KEPT_FRAC * sum(part.small_bytes for part in place.parts))
    rule = f"{KEPT_FRAC:.0%} of what each step frees in pieces below {LARGEST_PIECE // MIB} MiB"
    return replace(place, parts=kept([*place.parts, working("kept by the C library", size, rule, how=MEASURED)]))


def _without_empty(place: PlacedMemory) -> PlacedMemory:
    return replace(place, parts=kept(place.parts))


def _trainer(config: Config, models: PlannedModels, main: list[MemoryPart]) -> Iterator[PlacedMemory]:
    """Yield the trainer's processes; what the run holds goes to `main`."""
    world, is_gpu = num_workers(config), bool(config.cluster.trainer_gpu_num)
    offloads = config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.offload_policy
    is_sharded = world > 1 or (is_gpu and offloads)
    parts = trainer_parts(
        config,
        TrainedModels(models.policy, models.critic, models.has_reference, is_gpu=is_gpu, is_sharded=is_sharded),
    )
    count, libraries = models.policy.num_parameters, [_libraries(), *_kernels(config, models.policy)]
    if is_gpu:
        yield PlacedMemory("trainer", TRAINER_GPU, kept([_cuda(), *parts]), count=world)
        in_host = [_libraries(CONTROL_MIB), *_offloaded(config, count, world, has_reference=models.has_reference)]
        yield PlacedMemory("trainer", HOST, kept(in_host), count=world)
    elif is_sharded:
        shared = MemoryPart("weights to publish", count * FLOAT32 // world, rule=f"{millions(count)} / {world} workers")
        yield PlacedMemory("trainer rank", HOST, kept([*libraries, *parts, shared]), count=world)
    elif config.cluster.runtime == "ray":
        yield PlacedMemory("trainer", HOST, kept([*libraries, *parts]))
    else:
        main += parts


def _offloaded(config: Config, count: int, world: int, *, has_reference: bool) -> Iterator[MemoryPart]:
    tree = config.trainer.trainer_config.actor_rollout_ref
    fsdp, per = tree.actor.fsdp_config, f"{millions(count)} / {world} workers"
    if fsdp.offload_policy or fsdp.param_offload:
        yield MemoryPart("weights in host memory", count * FLOAT32 // world, rule=f"4 bytes x {per}")
    if fsdp.offload_policy or fsdp.optimizer_offload:
        size = count * FLOAT32 * MOMENTS // world
        yield MemoryPart("optimizer state in host memory", size, rule=f"8 bytes x {per}")
    if has_reference and (tree.ref.fsdp_config.param_offload or tree.ref.fsdp_config.offload_policy):
        yield MemoryPart("reference in host memory", count * FLOAT32 // world, rule=f"4 bytes x {per}")


def _engines(
    config: Config, models: PlannedModels, main: list[MemoryPart], *, card_bytes: int | None
) -> Iterator[PlacedMemory]:
    rollout, is_apart = config.explorer.rollout_model, config.cluster.runtime == "ray"
    is_gpu = bool(config.cluster.rollout_gpu_num or (config.cluster.total_gpu_num or 0) == 1)
    each = _engine_parts(config, models.engine, is_gpu=is_gpu, card_bytes=card_bytes)
    over = max(1, rollout.tensor_parallel_size * rollout.pipeline_parallel_size)
    is_inside = rollout.engine_num == 1 and not is_apart
    if is_gpu:
        yield PlacedMemory("engine", ENGINE_GPU, kept([_cuda(), *each]), count=rollout.engine_num * over)
        if not is_inside or rollout.engine_type == "vllm":
            yield PlacedMemory("engine", HOST, (_libraries(CONTROL_MIB),), count=rollout.engine_num * over)
    elif is_inside:
        main += each
    else:
        kernels = () if rollout.engine_type in ("vllm", "vllm_async") else _kernels(config, models.engine)
        yield PlacedMemory("engine", HOST, kept([_libraries(), *kernels, *each]), count=rollout.engine_num)
    if is_apart:
        yield PlacedMemory("explorer", HOST, (_libraries(CONTROL_MIB),))
    for index, sizes in models.auxiliary:
        of = config.explorer.auxiliary_models[index]
        parts = [replace(part, name=f"{part.name} of auxiliary model {index}")
                 for part in _engine_parts(config, sizes, is_gpu=is_gpu, card_bytes=card_bytes)]  # fmt: skip
        if is_gpu or of.engine_num > 1 or is_apart:
            place = ENGINE_GPU if is_gpu else HOST
            yield PlacedMemory(f"auxiliary model {index}", place, kept([_libraries(), *parts]), count=of.engine_num)
        else:
            main += parts


def _engine_parts(config: Config, sizes: ModelSizes, *, is_gpu: bool, card_bytes: int | None) -> Sequence[MemoryPart]:
    if config.explorer.rollout_model.engine_type in ("vllm", "vllm_async"):
        libraries = 0 if is_gpu else VLLM_MIB * MIB
        return list(vllm_parts(config, sizes, is_gpu=is_gpu, card_bytes=card_bytes, libraries=libraries))
    return list(torch_parts(config, sizes, is_gpu=is_gpu))


def _libraries(mib: int = TRAINER_MIB) -> MemoryPart:
    return MemoryPart("Python and libraries", mib * MIB, MEASURED)


def _kernels(config: Config, sizes: ModelSizes) -> Iterator[MemoryPart]:
    """Yield what compiled kernels take in a process that computes on a CPU."""
    if uses_kernels(config, sizes):
        yield MemoryPart("compiled kernels", KERNELS_MIB * MIB, MEASURED)


def _cuda() -> MemoryPart:
    return MemoryPart("CUDA", CUDA_MIB * MIB, "assumed")


def total_bytes(places: Sequence[PlacedMemory], *, is_host: bool) -> int:
    """Return the sum over all processes in host memory, or over all GPUs."""
    return sum(each.num_bytes * each.count for each in places if (each.place == HOST) == is_host)
