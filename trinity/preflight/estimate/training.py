"""The memory of one training worker.

It has policy, reference, critic, and what a micro-batch needs.

Dimension key: N = tokens of a micro-batch, M = scored ones, d = hidden size, F = feed-forward width, V = vocabulary,
q = numbers of a token's queries, k = of its keys, b = bytes of a product, W = workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.common.config.resolved import critic_products, has_critic, num_workers
from trinity.preflight.estimate.limits import LOGIT_CHUNK
from trinity.preflight.estimate.parts import BOUND, MemoryPart, millions, small, working
from trinity.preflight.estimate.work import MicroBatch, keeps_versions, micro_batch, product_bytes, sequence_ranks

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.config.model import LoraConfig
    from trinity.preflight.estimate.sizes import ModelSizes

FLOAT32, MOMENTS = 4, 2
HF_LAYER = 1.6  # of what our own layer keeps, in 16 bits: Hugging Face's norms, rotations and casts save more
CHUNKS_AT_ONCE = 4.5  # logits, their logarithms, probabilities, the gradient and its copy for the products
_TARGETS = {"q_proj": "q", "k_proj": "k", "v_proj": "k", "o_proj": "o", "gate_proj": "f", "up_proj": "f",
            "down_proj": "g"}  # fmt: skip


@dataclass(frozen=True)
class TrainedModels:
    """The models of a trainer.

    Attributes:
        policy: the trained model.
        critic: the value model's sizes; None: there is none.
        has_reference: a reference model is loaded or computed.
        is_gpu: trainer workers compute on GPUs.
        is_sharded: the workers are ranks that divide the weights.
    """

    policy: ModelSizes
    critic: ModelSizes | None
    has_reference: bool
    is_gpu: bool
    is_sharded: bool


def trainer_parts(config: Config, models: TrainedModels) -> list[MemoryPart]:
    """Return what a worker holds on its device, without what is offloaded."""
    world = num_workers(config) if models.is_sharded else 1
    tree = config.trainer.trainer_config
    actor = tree.actor_rollout_ref.actor
    width = product_bytes(actor.fsdp_config, is_gpu=models.is_gpu)
    batch = micro_batch(config, shares_prefixes=models.policy.is_own and not models.is_gpu)
    parts = [*_policy(config, models, world=world, width=width)]
    if models.has_reference:
        parts += _reference(config, models, world=world, width=width)
    if models.critic is not None and has_critic(config):
        parts += _critic(config, models.critic, models, world=world)
    recomputes = tree.actor_rollout_ref.model.enable_gradient_checkpointing
    parts.append(activations(models.policy, batch, width=width, recomputes=recomputes, ranks=sequence_ranks(config)))
    parts += _logits(config, models, batch, width=width)
    return parts


def _policy(config: Config, models: TrainedModels, *, world: int, width: int) -> Iterator[MemoryPart]:
    sizes, offloads = models.policy, models.is_gpu and models.is_sharded and _offloads(config)
    count, adapter = sizes.num_parameters, _adapter_parameters(config, sizes)
    trained = adapter if config.model.lora_configs else count
    over = f" / {world} workers" if world > 1 else ""
    if not offloads:
        name = f"{millions(count)} parameters"
        yield MemoryPart("weights", (count + adapter) * FLOAT32 // world, rule=f"4 bytes x {name}{over}")
        rule = f"4 bytes x {millions(trained)} trained{over}"
        pieces = trained * FLOAT32 if adapter else small(_pieces(sizes, width=FLOAT32))
        yield working("gradients", trained * FLOAT32 // world, rule, small_bytes=pieces // world)
        is_sgd = config.algorithm.optimizer.optimizer_type == "sgd"
        moments = 0 if is_sgd else MOMENTS
        rule = f"{moments * FLOAT32} bytes x {millions(trained)} trained{over}"
        yield working("optimizer state", trained * moments * FLOAT32 // world, rule)
    yield _copies(sizes, models, width=width, is_adapted=bool(config.model.lora_configs))
    if keeps_versions(config):
        rule = f"4 bytes x {millions(count)} parameters, a version that the explorer may still ask for"
        yield working("published weights", count * FLOAT32, rule)
    elif adapter and config.mode == "both":
        rule = f"4 bytes x {millions(count)} parameters, merged with the adapter for the engine"
        yield working("merged weights", count * FLOAT32, rule)
    if adapter and not models.is_gpu:
        size = 3 * FLOAT32 * max(size for size, _ in _pieces(sizes, width=1, has_embedding=False))
        yield working("merges of the adapter", size, "4 bytes x the three matrices that the merge of a matrix takes")


def _copies(sizes: ModelSizes, models: TrainedModels, *, width: int, is_adapted: bool = False) -> MemoryPart:
    """Return the copies of weights in the type of the products."""
    if models.is_sharded:
        block = 2 * sizes.largest_layer + sizes.embedding * (1 if sizes.is_tied else 2)
        return working("gathered weights", block * width, f"{width} bytes x two layers and the embeddings")
    pieces = small(_pieces(sizes, width=width))
    if not sizes.is_own:
        rule = f"{width} bytes x {millions(sizes.num_parameters)} parameters, of autocast"
        size = sizes.num_parameters * width if width < FLOAT32 else 0
        return working("copies for products", size, rule, small_bytes=min(size, pieces))
    matrices = sizes.matrices
    if width < FLOAT32:
        count = sizes.layers * sum(matrices.values()) + sizes.embedding
        rule = f"{width} bytes x {millions(count)} of the matrices"
        return working("copies for products", count * width, rule, small_bytes=pieces)
    joined = ("qkv", "gate_up", "out", "down") if is_adapted else ("qkv", "gate_up")
    count = sizes.layers * sum(matrices[name] for name in joined)
    rule = f"4 bytes x {millions(count)} of matrices that are joined"
    return working("copies for products", count * FLOAT32, rule, small_bytes=min(count * FLOAT32, pieces))


def _pieces(sizes: ModelSizes, *, width: int, has_embedding: bool = True) -> list[tuple[int, int]]:
    """Return size and number of the matrices, in bytes."""
    found = [(size * width, sizes.layers) for size in sizes.matrices.values()]
    return [*found, (sizes.embedding * width, 1 if sizes.is_tied else 2)] if has_embedding else found


def _reference(config: Config, models: TrainedModels, *, world: int, width: int) -> Iterator[MemoryPart]:
    loras = config.model.lora_configs
    section = config.trainer.trainer_config.actor_rollout_ref.ref.fsdp_config
    if loras and loras[0].path is None:
        return  # it is the policy without its adapter
    sizes = models.policy
    if models.is_gpu and (section.param_offload or section.offload_policy):
        return  # it is on the device while it computes, when gradients and activations are not
    over = f" / {world} workers" if world > 1 else ""
    rule = f"4 bytes x {millions(sizes.num_parameters)} parameters{over}"
    yield MemoryPart("reference model", sizes.num_parameters * FLOAT32 // world, rule=rule)
    if not models.is_sharded and sizes.is_own:
        copies = _copies(sizes, models, width=width)
        yield working("reference copies for products", copies.num_bytes, copies.rule)


def _critic(config: Config, sizes: ModelSizes, models: TrainedModels, *, world: int) -> Iterator[MemoryPart]:
    count, over = sizes.of_critic(), f" / {world} workers" if world > 1 else ""
    section = config.trainer.trainer_config.critic.model.fsdp_config
    if not (models.is_gpu and models.is_sharded and section.offload_policy):
        yield MemoryPart("critic weights", count * FLOAT32 // world, rule=f"4 bytes x {millions(count)}{over}")
        pieces = small(_pieces(sizes, width=FLOAT32)) // world
        rule = f"4 bytes x {millions(count)}{over}"
        yield working("critic gradients", count * FLOAT32 // world, rule, small_bytes=pieces)
        rule = f"8 bytes x {millions(count)}{over}"
        yield working("critic optimizer state", count * FLOAT32 * MOMENTS // world, rule)
    width = product_bytes(critic_products(config), is_gpu=models.is_gpu)
    copies = _copies(sizes, models, width=width)
    yield working("critic copies for products", copies.num_bytes, copies.rule, small_bytes=copies.small_bytes)


def layer_bytes(sizes: ModelSizes, *, width: int) -> float:
    """Return what a layer keeps of a token for its backward pass, in bytes.

    Both norms keep what they have normed in float32; products, rotation, attention and gate keep their inputs.
    """
    hidden, query, key, inner = sizes.hidden, sizes.query, sizes.key, sizes.feed_forward
    norms = 2 * hidden * (FLOAT32 + width)
    attention = (query + 2 * key) + (query + key) + 2 * query
    heads = (query + key) * (FLOAT32 + 2 * width) if sizes.has_head_norms else 0
    kept = norms + width * attention + heads + width * 3 * inner
    return kept if sizes.is_own or width == FLOAT32 else HF_LAYER * kept


def activations(sizes: ModelSizes, batch: MicroBatch, *, width: int, recomputes: bool, ranks: int = 1) -> MemoryPart:
    """Return what the passes of a micro-batch keep and compute with."""
    tokens = -(-batch.tokens // ranks)
    layer = layer_bytes(sizes, width=width)
    at_work = sizes.hidden * 3 * FLOAT32 + width * (3 * sizes.feed_forward + sizes.query + 2 * sizes.key)
    if recomputes:
        size = tokens * (sizes.layers * sizes.hidden * FLOAT32 + layer + at_work)
        rule = f"{batch.rows} rows, {tokens} tokens, of which a layer keeps its input and is computed again"
    else:
        size = tokens * (sizes.layers * layer + at_work)
        rule = f"{batch.rows} rows, {tokens} tokens x {layer:.0f} bytes x {sizes.layers} layers"
    return working("activations of a micro-batch", size, rule, how=BOUND, small_bytes=size)


def _logits(config: Config, models: TrainedModels, batch: MicroBatch, *, width: int) -> Iterator[MemoryPart]:
    sizes = models.policy
    chunk = min(LOGIT_CHUNK["cuda" if models.is_gpu else "cpu"], batch.scored * sizes.vocabulary * FLOAT32)
    rule = f"{CHUNKS_AT_ONCE:g} x a chunk of at most {batch.scored} x {sizes.vocabulary} in float32"
    yield working("logits", chunk * CHUNKS_AT_ONCE, rule, how=BOUND, small_bytes=chunk * CHUNKS_AT_ONCE)
    if config.model.lora_configs:
        return
    size, rule = max((sizes.embedding, "output layer"), (_largest_matrix(sizes), "largest matrix"))
    if models.is_sharded:  # ranks exchange the gradients of embedding and output layer together, those of a layer too
        outer = sizes.embedding * (1 if sizes.is_tied else 2)
        size, rule = max((outer, "outer layers"), (sizes.largest_layer, "largest layer"))
    rule = f"{FLOAT32 + width} bytes x {millions(size)} of the {rule}, before it is added"
    pieces = small([(size * FLOAT32, 1), (size * width, 1)])
    yield working("gradient in work", size * (FLOAT32 + width), rule, small_bytes=pieces)


def _largest_matrix(sizes: ModelSizes) -> int:
    return max(sizes.matrices.values()) if sizes.is_own else sizes.embedding


def _offloads(config: Config) -> bool:
    return config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.offload_policy


def _adapter_parameters(config: Config, sizes: ModelSizes) -> int:
    """Return the numbers of the adapter; 0: there is none."""
    if not config.model.lora_configs:
        return 0
    settings = config.model.lora_configs[0]
    shapes = {
        "q": sizes.hidden + sizes.query, "k": sizes.hidden + sizes.key, "o": sizes.hidden + sizes.query,
        "f": sizes.hidden + sizes.feed_forward, "g": sizes.hidden + sizes.feed_forward,
    }  # fmt: skip
    return settings.lora_rank * sizes.layers * sum(shapes[_TARGETS[name]] for name in _TARGETS if _has(settings, name))


def _has(settings: LoraConfig, name: str) -> bool:
    targets = settings.target_modules
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(f"(?:{targets})", f"model.layers.0.x.{name}") is not None
    return any(name == each or name.endswith(f".{each}") or each.endswith(name) for each in targets or ())
