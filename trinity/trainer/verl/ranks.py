"""The processes that train one model together: who computes what, what they tell each other, how weights are sharded.

Every rank holds the whole batch, so that advantages, corrections and every divisor are computed alike everywhere and
without a word. A rank computes its own rows; columns are summed, gradients are summed by FSDP2's reduce-scatter.
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
from trinity.trainer.verl.balance import Work, split_work
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.ulysses import Slice

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trinity.trainer.verl.decoder import Decoder

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
        reduce_dtype: number type in which gradients are summed.
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
    """One of `world` processes of the default process group of torch.distributed; alone, it needs no group.

    Args:
        rank: 0-based.
        world: number of processes.
        device: where this one computes.
        is_balanced: give all ranks equal work (`balance_batch`).
        sequence_size: ranks that share the tokens of a micro-batch; divides `world`.
        is_grouped: one process alone is a process group, too, so that its model is sharded.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        device: torch.device | None = None,
        is_balanced: bool = True,
        sequence_size: int = 1,
        is_grouped: bool = False,
    ) -> None:
        self.rank = rank
        self.world = world
        self.device = device or torch.device("cpu")
        self.is_balanced = is_balanced
        self.sequence_size = sequence_size
        self.is_grouped = is_grouped
        self._sequence_groups: dict[int, Any] = {}
        self._meshes: dict[int, DeviceMesh] = {}

    @property
    def is_alone(self) -> bool:
        """Whether this process trains the model by itself, and nothing is sharded."""
        return self.world == 1 and not self.is_grouped

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all: it writes what all of them know."""
        return self.rank == 0

    def device_of(self, model: nn.Module) -> torch.device:
        """Return where `model` is computed; of a sharded one, the parameters may be elsewhere."""
        return next(model.parameters()).device if self.is_alone else self.device

    def loading_device(self, device: torch.device) -> torch.device:
        """Return where a model is loaded that then computes on `device`: sharded, it goes there layer by layer."""
        return device if self.is_alone else torch.device("cpu")

    # --------------------------------------------------------------------- work
    def split(
        self, batch: TrainBatch, rows: Iterable[int], *, max_tokens: int | None, max_rows: int | None
    ) -> list[Work]:
        """Return the micro-batches of this rank; every rank has as many."""
        rows = list(rows)
        if self.is_alone:
            return [Work(group) for group in micro_batches(batch, rows, max_tokens=max_tokens, max_rows=max_rows)]
        if not rows:
            return []
        return split_work(
            batch,
            rows,
            index=self.rank // self.sequence_size,
            num_shares=self.world // self.sequence_size,
            is_balanced=self.is_balanced,
            max_tokens=None if max_tokens is None else max_tokens * self.sequence_size,
            max_rows=max_rows,
        )

    def cut(self, packed: Packed) -> Packed:
        """Return the packed list with this rank's part of it, where several ranks share one."""
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
        """Replace each tensor of the CPU by its sum over the shares; ranks of a sequence hold the same."""
        if self.is_alone:
            return
        for tensor in tensors:
            if self.rank % self.sequence_size:
                tensor.zero_()
            distributed.all_reduce(tensor)

    def gather_shares(self, value: T) -> list[T]:
        """Return the plain `value` of every share; ranks of a sequence measure the same."""
        return self.gather(value)[:: self.sequence_size]

    def gather(self, value: T) -> list[T]:
        """Return the plain `value` of every rank, in the order of ranks."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather(None)

    # ----------------------------------------------------------------- sharding
    def mesh(self, fsdp_size: int) -> DeviceMesh:
        """Return the mesh of shard groups of `fsdp_size` ranks; two dimensions where there are several groups.

        Raises:
            ConfigError: the ranks cannot be divided so (E5680).
        """
        from torch.distributed.device_mesh import init_device_mesh

        size = self.world if fsdp_size < 1 or fsdp_size >= self.world else fsdp_size
        if self.world % size:
            raise ConfigError(
                f"fsdp_size {size} does not divide the {self.world} ranks of trainer.num_workers; choose a divisor, or "
                "-1 for one group of all ranks",
                code="E5680",
            )
        if size not in self._meshes:
            is_flat = size == self.world
            shape, names = ((size,), MESH_NAMES[1:]) if is_flat else ((self.world // size, size), MESH_NAMES)
            self._meshes[size] = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return self._meshes[size]

    def shard(self, decoder: Decoder, options: ShardOptions) -> None:
        """Spread the parameters of `decoder` over the ranks, layer by layer; alone, leave them as they are.

        Raises:
            ConfigError: a class of the wrap policy is no layer of the model (E5681), or E5680.
        """
        if self.is_alone:
            return
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

        assert isinstance(decoder, nn.Module), "what computes a model's hidden states is a module"
        decoder.shard()
        arguments: dict[str, Any] = {
            "mesh": self.mesh(options.fsdp_size),
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
                module.set_gradient_divide_factor(1.0)  # shares of a loss add up; they are no means over ranks
                module.set_force_sum_reduction_for_comms(True)
        if options.forward_prefetch:
            for block, following in zip(blocks, blocks[1:], strict=False):
                assert isinstance(block, FSDPModule) and isinstance(following, FSDPModule), "fully_shard made them so"
                block.set_modules_to_forward_prefetch([following])

    def free(self, decoder: Decoder) -> None:
        """Keep only this rank's part of the parameters, also of those that the last forward pass has gathered."""
        if self.is_alone:
            return
        from torch.distributed.fsdp import FSDPModule

        if isinstance(decoder, FSDPModule):
            decoder.reshard()

    def total_norm(self, tensors: Sequence[Tensor]) -> float:
        """Return the Euclidean norm of sharded tensors, the same on every rank; not finite if a number is not."""
        own = torch.nn.utils.get_total_norm([local(tensor) for tensor in tensors]) if tensors else torch.zeros(())
        parts = self.gather((self._replica(tensors), float(own.double().square())))
        return math.sqrt(sum(square for replica, square in parts if replica == 0))

    def _replica(self, tensors: Sequence[Tensor]) -> int:
        """Return which copy of the weights this rank holds a part of."""
        mesh: DeviceMesh | None = getattr(next(iter(tensors), None), "device_mesh", None)
        return 0 if mesh is None or mesh.ndim == 1 else int(mesh.get_local_rank(MESH_NAMES[0]))

    def not_finite(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the tensors of which any rank's part is not finite, in order."""
        own = {name for name, tensor in tensors.items() if not bool(local(tensor).isfinite().all())}
        bad = set().union(*self.gather(own))
        return [name for name in tensors if name in bad]


ALONE = Ranks()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory; the tensor itself where it is not sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor gathered from all ranks, which all call this; the tensor itself where it is not sharded."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def blocks_of(decoder: Decoder, options: ShardOptions) -> list[nn.Module]:
    """Return the layers that are gathered on their own.

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
