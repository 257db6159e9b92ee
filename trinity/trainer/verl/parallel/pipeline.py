"""Pipeline parallelism: stages of layers (arXiv:1811.06965).

    tokens -> [embedding, layers] -stream-> [layers] -stream-> [layers, norm, output layer] -> loss
               first stage                                      last stage

Dimension key: d = hidden size, M = scored positions, n = positions of a rank's residual stream. Every stage has
embedding, last norm and output layer, which the first and the last one use; their gradients are summed over the stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed, nn

from trinity.common.errors import ConfigError
from trinity.preflight.division import pipeline_problem
from trinity.trainer.verl.parallel.exchange import local

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trinity.trainer.verl.packing import Packed

STAGE = "pp"
_LAYER = re.compile(r"\blayers\.(\d+)\.")

# Makes a micro-batch's summand of the loss from its number and the last hidden states [M d] of its scored positions.
LossOf = Callable[[int, Tensor], Tensor]


@runtime_checkable
class StagedDecoder(Protocol):
    """A sharded decoder whose layers are divided into stages."""

    width: int
    stages: Stages | None

    def stream_shape(self, packed: Packed) -> tuple[int, int]:
        """Return the shape [n, d] of this rank's stream between two layers."""

    def outer(self) -> list[nn.Parameter]:
        """Return the parameters outside of the layers, which every stage has."""

    def __call__(self, packed: Packed, incoming: Tensor | None = None) -> Any:
        """Return the last hidden states [M, d], or an earlier stage's stream."""


class Stages:
    """The stages of one model, one of which this rank computes.

    Args:
        mesh: the ranks of the stages, in one dimension.
        device: where this one computes.
    """

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device
        self.group: Any = mesh.get_group()
        self.size, self.index = mesh.size(), mesh.get_local_rank()
        self.ranks = distributed.get_process_group_ranks(self.group)
        self.tensors: tuple[str, ...] = ()
        self.parameters: tuple[str, ...] = ()
        self._last_layers: list[int] = []

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage has the last hidden states."""
        return self.index == self.size - 1

    def take(self, model: Any) -> range:
        """Keep only this stage's layers of a Hugging Face model.

        Record the names of all tensors; return the numbers of the layers that are kept.

        Raises:
            ConfigError: there are more stages than layers (E1849).
        """
        problem = pipeline_problem(model.config.to_dict(), self.size)
        if problem is not None:
            raise ConfigError(problem, code="E1849")
        self.tensors = tuple(model.state_dict())
        self.parameters = tuple(name for name, _ in model.named_parameters())
        layers = model.model.layers
        numbers = torch.arange(len(layers)).tensor_split(self.size)
        self._last_layers = [int(part[-1]) for part in numbers]
        own = numbers[self.index].tolist()
        for number in set(range(len(layers))) - set(own):
            layers[number] = nn.Identity()
        return range(own[0], own[-1] + 1)

    def stage_of(self, name: str) -> int | None:
        """Return the stage that holds the model's tensor `name`; None: all do."""
        found = _LAYER.search(name)
        if found is None:
            return None
        return next(stage for stage, last in enumerate(self._last_layers) if int(found.group(1)) <= last)

    def counts(self, name: str) -> bool:
        """Return whether this stage's tensor `name` is counted in totals.

        A tensor that all stages hold is counted in the first stage only.
        """
        return self.is_first or self.stage_of(name) is not None

    # ------------------------------------------------------------- computation
    @torch.no_grad()
    def forward(self, decoder: StagedDecoder, packed: Packed) -> Float[Tensor, "M d"] | None:
        """Return the last stage's hidden states; other stages send theirs on."""
        incoming = None
        if not self.is_first:
            incoming = torch.empty(decoder.stream_shape(packed), device=self.device)
            distributed.recv(incoming, src=self.ranks[self.index - 1], group=self.group)
        hidden: Tensor = decoder(packed, incoming)
        if self.is_last:
            return hidden
        distributed.send(hidden.contiguous(), dst=self.ranks[self.index + 1], group=self.group)
        return None

    def accumulate(self, decoder: StagedDecoder, packs: Sequence[Packed], *, loss_of: LossOf) -> None:
        """Add the gradient of the micro-batches to the parameters.

        At most as many micro-batches are in flight as there are stages.

        Args:
            decoder: of this stage.
            packs: the micro-batches, the same on every stage.
            loss_of: called on the last stage.
        """
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        if not packs:
            return
        assert isinstance(decoder, FSDPModule), "what has stages is sharded"
        length = max(decoder.stream_shape(packed)[0] for packed in packs)
        stream = torch.zeros(length, decoder.width, device=self.device, requires_grad=True)
        numbers = torch.arange(len(packs), device=self.device)
        stage = PipelineStage(
            _Stage(decoder, packs, length),
            self.index,
            self.size,
            self.device,
            input_args=(numbers[:1],) if self.is_first else (stream,),
            output_args=(stream,),
            group=self.group,
        )

        def loss_fn(hidden: Float[Tensor, "M d"], number: Int[Tensor, "1"]) -> Float[Tensor, ""]:
            return loss_of(int(number), hidden)

        kind = Schedule1F1B if len(packs) >= self.size else ScheduleGPipe
        schedule = kind(stage, len(packs), loss_fn=loss_fn, scale_grads=False)
        # A backward pass begins with the output layer, which must still be whole for the next micro-batch.
        decoder.set_reshard_after_backward(False, recurse=False)
        arguments = (numbers,) if self.is_first else ()
        try:
            schedule.step(*arguments, target=numbers if self.is_last else None, return_outputs=False, number=numbers)
        except RuntimeError as error:
            # The schedule wraps an error of a layer, and its own text would not say that memory ran out.
            raise error.__cause__ if isinstance(error.__cause__, Exception) else error from None
        decoder.set_reshard_after_backward(True, recurse=False)
        decoder.reshard()
        self._sum_outer(decoder)

    def _sum_outer(self, decoder: StagedDecoder) -> None:
        """Sum the gradients of the parameters that every stage has."""
        for parameter in decoder.outer():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            own = local(parameter.grad)
            if own.numel():
                distributed.all_reduce(own, group=self.group)

    # ---------------------------------------------------------------- exchange
    def broadcast(self, tensor: Tensor | None, stage: int) -> Tensor:
        """Return the tensor of `stage`, of any shape; other stages pass None."""
        facts: list[Any] = [None if tensor is None else (tensor.shape, tensor.dtype, tensor.device.type)]
        distributed.broadcast_object_list(facts, src=self.ranks[stage], group=self.group)
        if tensor is None:
            shape, dtype, kind = facts[0]
            tensor = torch.empty(shape, dtype=dtype, device=self.device if kind == self.device.type else kind)
        tensor = tensor.contiguous()
        distributed.broadcast(tensor, src=self.ranks[stage], group=self.group)
        return tensor

    def of_all(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain values of all stages by name."""
        together: list[Any] = [None] * self.size
        distributed.all_gather_object(together, dict(own), group=self.group)
        return {name: value for values in together for name, value in values.items()}


class _Stage(nn.Module):
    """This stage's layers for micro-batch `number`, with a padded stream."""

    def __init__(self, decoder: StagedDecoder, packs: Sequence[Packed], length: int) -> None:
        super().__init__()
        # No child of this module: the schedule would treat a sharded one in its own way.
        self._outside: dict[str, Any] = {"decoder": decoder}
        self.packs, self.length = packs, length

    def forward(self, stream: Tensor, *, number: Int[Tensor, "1"]) -> Float[Tensor, "rows d"]:
        """Return the stream [length, d] after this stage's layers.

        The last stage returns the last hidden states [M, d]; the first one ignores `stream`.
        """
        decoder, packed = self._outside["decoder"], self.packs[int(number)]
        stages = decoder.stages
        rows = decoder.stream_shape(packed)[0]
        hidden: Tensor = decoder(packed, None if stages.is_first else stream[:rows])
        if stages.is_last:
            return hidden
        return nn.functional.pad(hidden, (0, 0, 0, self.length - rows))
