"""The ranks that train one model: work, communication, sharding.

Every rank holds the whole batch, so that advantages, corrections and every divisor are computed alike everywhere and
without communication. A rank computes its own rows; columns are summed, gradients are summed by FSDP2's reduce-scatter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from trinity.common.errors import ConfigError
from trinity.trainer.batch import TrainBatch, micro_batches
from trinity.trainer.prefixes import NOTHING, Sharing
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.parallel.balance import Work, split_work, work_in_order
from trinity.trainer.verl.parallel.exchange import local
from trinity.trainer.verl.parallel.pipeline import STAGE, Stages
from trinity.trainer.verl.parallel.tensor import TENSOR, TensorGroup
from trinity.trainer.verl.parallel.ulysses import Slice

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trinity.trainer.verl.decoder import PackedDecoder

T = TypeVar("T")

MESH_NAMES = ("ddp", "fsdp")  # those of veRL's checkpoints


@dataclass(frozen=True)
class ShardOptions:
    """How a model is sharded; the names are those of veRL's `fsdp_config`.

    Attributes:
        fsdp_size: ranks over which one copy of the weights is spread; -1 means all.
        reshard_after_forward: free gathered weights of a layer after its forward pass.
        forward_prefetch: gather the next layer while one is computed.
        offload_policy: keep the shards in host memory, also during a step.
        reduce_dtype: data type in which gradients are summed.
        layer_classes: class names of the layers that are gathered on their own; None means all layers.
        min_num_params: layers of fewer parameters are gathered with the root.
        is_whole: gather the whole model at once.
    """

    fsdp_size: int = -1
    reshard_after_forward: bool = True
    forward_prefetch: bool = False
    offload_policy: bool = False
    reduce_dtype: torch.dtype = torch.float32
    layer_classes: tuple[str, ...] | None = None
    min_num_params: int = 0
    is_whole: bool = False


class Ranks:
    """One of `world` processes of torch.distributed's group, or one alone.

    Args:
        rank: 0-based.
        world: number of processes.
        device: where this one computes.
        is_balanced: give all ranks equal work (`balance_batch`).
        sequence_size: ranks that share the tokens of a micro-batch; divides `world`.
        tensor_size: ranks that share the matrices of a layer; divides `world`, and excludes `sequence_size`.
        is_by_tokens: those ranks also share the tokens between the matrices (`sequence_parallel`).
        num_stages: ranks, or groups of `tensor_size`, that share the layers; excludes `sequence_size`.
        is_grouped: one process alone forms a group, too, so that its model is sharded.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        device: torch.device | None = None,
        is_balanced: bool = True,
        sequence_size: int = 1,
        tensor_size: int = 1,
        is_by_tokens: bool = False,
        num_stages: int = 1,
        is_grouped: bool = False,
    ) -> None:
        self.rank = rank
        self.world = world
        self.device = device or torch.device("cpu")
        self.is_balanced = is_balanced
        self.sequence_size = sequence_size
        self.tensor_size = tensor_size
        self.is_by_tokens = is_by_tokens
        self.num_stages = num_stages
        self.is_grouped = is_grouped
        self._sequence_groups: dict[int, Any] = {}
        self._meshes: dict[tuple[tuple[str, int], ...], DeviceMesh] = {}

    @property
    def is_alone(self) -> bool:
        """Whether this process trains the model by itself, and nothing is sharded."""
        return self.world == 1 and not self.is_grouped

    @property
    def share_size(self) -> int:
        """Number of ranks that compute the same rows together."""
        return self.sequence_size * self.tensor_size * self.num_stages

    @property
    def num_shares(self) -> int:
        """Number of shares of a mini-batch's rows."""
        return self.world // self.share_size

    @property
    def is_divided(self) -> bool:
        """Whether matrices or layers are shared, beside the shards of weights."""
        return self.tensor_size * self.num_stages > 1

    @property
    def speaker(self) -> int:
        """Rank in a share that gives its results: the first of the last stage."""
        return (self.num_stages - 1) * self.tensor_size

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what all ranks know."""
        return self.rank == 0

    def device_of(self, model: nn.Module) -> torch.device:
        """Return the device that computes `model`; its shards may be elsewhere."""
        return next(model.parameters()).device if self.is_alone else self.device

    def loading_device(self, device: torch.device) -> torch.device:
        """Return where to load a model for `device`: the CPU, if it is sharded."""
        return device if self.is_alone else torch.device("cpu")

    # --------------------------------------------------------------------- work
    def split(
        self,
        batch: TrainBatch,
        rows: Iterable[int],
        *,
        max_tokens: int | None,
        max_rows: int | None,
        sharing: Sharing = NOTHING,
        is_in_order: bool = False,
    ) -> list[Work]:
        """Return the micro-batches of this rank; every rank has the same number.

        `is_in_order`: they are consecutive rows, each normalised by itself.
        """
        rows = list(rows)
        if is_in_order and rows:
            index = self.rank // self.share_size
            return work_in_order(batch, rows, index=index, num_shares=self.num_shares, max_rows=max_rows)
        if self.is_alone:
            limits = {"max_tokens": max_tokens, "max_rows": max_rows}
            return [Work(group) for group in micro_batches(batch, rows, **limits, sharing=sharing)]
        if not rows:
            return []
        return split_work(
            batch,
            rows,
            index=self.rank // self.share_size,
            num_shares=self.num_shares,
            is_balanced=self.is_balanced,
            max_tokens=None if max_tokens is None else max_tokens * self.sequence_size,
            max_rows=max_rows,
            sharing=sharing,
        )

    def cut(self, packed: Packed) -> Packed:
        """Return `packed` with this rank's slice, if ranks share sequences."""
        if self.sequence_size == 1:
            return packed
        from torch.distributed.device_mesh import init_device_mesh

        size = self.sequence_size
        if size not in self._sequence_groups:
            mesh = init_device_mesh(self.device.type, (self.world // size, size), mesh_dim_names=("share", "sequence"))
            self._sequence_groups[size] = mesh.get_group("sequence")
        index, num_tokens = self.rank % size, len(packed.tokens)
        length = -(-num_tokens // size)
        scored = torch.nonzero(packed.sources // length == index).squeeze(-1)
        piece = Slice(self._sequence_groups[size], size, index, num_tokens, scored)
        return dataclasses.replace(packed, piece=piece)

    # ------------------------------------------------------------ communication
    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each CPU tensor of any shape by its sum over the shares.

        The ranks of a share hold the same tensors.
        """
        if self.is_alone:
            return
        for tensor in tensors:
            if self.rank % self.share_size != self.speaker:
                tensor.zero_()
            distributed.all_reduce(tensor)

    def gather_shares(self, value: T) -> list[T]:
        """Return the plain `value` of every share; its ranks have the same one."""
        return self.gather(value)[self.speaker :: self.share_size]

    def gather(self, value: T) -> list[T]:
        """Return the plain `value` of every rank, in the order of ranks."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank has reached this call."""
        self.gather(None)

    # ----------------------------------------------------------------- sharding
    def mesh(self, fsdp_size: int) -> DeviceMesh:
        """Return the mesh of shard groups of `fsdp_size` ranks.

        Several groups are one more dimension. Dimensions of stages and of ranks that share matrices come last, if any.

        Raises:
            ConfigError: the ranks cannot be divided in this way (E5680).
        """
        whole = self.world // (self.tensor_size * self.num_stages)
        size = whole if fsdp_size < 1 or fsdp_size >= whole else fsdp_size
        if whole % size:
            raise ConfigError(
                f"fsdp_size {size} does not divide the {whole} ranks of trainer.num_workers that hold the same part of "
                "the matrices; choose a divisor, or -1 for one group of all of them",
                code="E5680",
            )
        is_flat = size == whole
        shape, names = ((size,), MESH_NAMES[1:]) if is_flat else ((whole // size, size), MESH_NAMES)
        for name, inner in ((STAGE, self.num_stages), (TENSOR, self.tensor_size)):
            if inner > 1:
                shape, names = (*shape, inner), (*names, name)
        return self._mesh_of(shape, names)

    def flat_mesh(self) -> DeviceMesh:
        """Return the mesh of all ranks in one dimension, as checkpoints use it."""
        return self._mesh_of((self.world,), MESH_NAMES[1:])

    def _mesh_of(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        from torch.distributed.device_mesh import init_device_mesh

        key = tuple(zip(names, shape, strict=True))
        if key not in self._meshes:
            self._meshes[key] = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return self._meshes[key]

    def shard(self, decoder: PackedDecoder, options: ShardOptions) -> None:
        """Shard the parameters of `decoder` layer by layer; alone, keep them.

        Raises:
            ConfigError: a class of the wrap policy is no layer of the model (E5681), or E5680.
        """
        if self.is_alone:
            return
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

        assert isinstance(decoder, nn.Module), "what computes a model's hidden states is a module"
        mesh = self.mesh(options.fsdp_size)
        decoder.shard(
            None if self.tensor_size == 1 else TensorGroup(mesh[TENSOR], self.is_by_tokens),
            None if self.num_stages == 1 else Stages(mesh[STAGE], self.device),
        )
        outer = tuple(name for name in mesh.mesh_dim_names or () if name in MESH_NAMES)
        arguments: dict[str, Any] = {
            "mesh": mesh if len(outer) == mesh.ndim else mesh[outer],
            # Weights are gathered in their own type and cast where one worker casts them, so that numbers agree.
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=options.reduce_dtype, cast_forward_inputs=False),
        }
        if options.offload_policy:
            arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type != "cpu")
        blocks = blocks_of(decoder, options)
        for block in blocks:
            fully_shard(block, reshard_after_forward=options.reshard_after_forward, **arguments)
        fully_shard(decoder, **arguments)
        for module in decoder.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # the loss is the sum of the ranks' shares, not their mean
                module.set_force_sum_reduction_for_comms(True)
        if options.forward_prefetch:
            for block, following in zip(blocks, blocks[1:], strict=False):
                assert isinstance(block, FSDPModule) and isinstance(following, FSDPModule), "fully_shard made them so"
                block.set_modules_to_forward_prefetch([following])

    def free(self, decoder: PackedDecoder) -> None:
        """Keep only this rank's shards; free what a forward pass has gathered."""
        if self.is_alone:
            return
        from torch.distributed.fsdp import FSDPModule

        if isinstance(decoder, FSDPModule):
            decoder.reshard()

    def total_norm(self, tensors: Sequence[Tensor]) -> float:
        """Return the Euclidean norm of sharded tensors, equal on every rank.

        It is not finite if a number is not. Tensors that all stages of a pipeline hold are given by one stage.
        """
        counted = [local(tensor) for tensor in tensors if counts(tensor)]
        own = torch.nn.utils.get_total_norm(counted) if counted else torch.zeros(())
        return math.sqrt(sum(self.gather(float(own.double().square()))))

    def not_finite(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return, in order, the names of tensors that are not finite on any rank."""
        own = {name for name, tensor in tensors.items() if not bool(local(tensor).isfinite().all())}
        bad = set().union(*self.gather(own))
        return [name for name in tensors if name in bad] + sorted(bad - tensors.keys())  # those of other stages last


ALONE = Ranks()


def counts(tensor: Tensor) -> bool:
    """Return whether this rank's part of a tensor of any shape counts.

    Of the ranks that hold the same part, only the first one's counts.
    """
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return True
    spread: Any = tensor
    coordinates = zip(mesh.get_coordinate(), spread.placements, strict=True)
    return all(place == 0 for place, placement in coordinates if placement.is_replicate())


def blocks_of(decoder: PackedDecoder, options: ShardOptions) -> list[nn.Module]:
    """Return the layers that are gathered one at a time.

    Raises:
        ConfigError: a class of the wrap policy is no layer of the model (E5681).
    """
    blocks = [] if options.is_whole else decoder.blocks()
    if options.layer_classes is not None and blocks:
        known = sorted({_layer_class(block) for block in decoder.blocks()})
        unknown = sorted(set(options.layer_classes) - set(known))
        if unknown:
            raise ConfigError(
                f"fsdp_config.wrap_policy.transformer_layer_cls_to_wrap: {', '.join(unknown)} is no layer of the "
                f"model; it has {', '.join(known)}",
                code="E5681",
            )
        blocks = [block for block in blocks if _layer_class(block) in options.layer_classes]
    return [block for block in blocks if sum(p.numel() for p in block.parameters()) >= options.min_num_params]


def _layer_class(block: nn.Module) -> str:
    return type(getattr(block, "wrapped", block)).__name__
