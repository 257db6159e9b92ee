"""Tensor parallelism (arXiv:1909.08053): ranks share the matrices of each decoder layer, and with them its heads.

Dimension key: N = packed tokens, n = a rank's tokens, M = scored positions, d = hidden size. q, k, v, gate and up are
cut by outputs, o and down by inputs; a rank's products are summands of the layer's. Norms, embedding and output layer
are whole on each rank. With sequence parallelism (arXiv:2205.05198) a rank keeps n of the N tokens between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from trinity.common.errors import ConfigError
from trinity.common.models.preflight_division import tensor_problem

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

TENSOR = "tp"
BY_OUTPUTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
BY_INPUTS = ("self_attn.o_proj", "mlp.down_proj")


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that share the matrices of a layer.

    Attributes:
        mesh: of one dimension.
        is_by_tokens: between the products each rank keeps its part of the tokens only (`sequence_parallel`).
    """

    mesh: DeviceMesh
    is_by_tokens: bool = False

    @property
    def group(self) -> Any:
        """The ranks, as torch.distributed knows them."""
        return self.mesh.get_group()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.size()

    @property
    def index(self) -> int:
        """Number of this one."""
        return self.mesh.get_local_rank()

    def cut(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "n d"]:
        """Return this rank's tokens, padded with zeros, where it keeps a part of them; `x` is alike on all ranks."""
        result: Tensor = _Cut.apply(x, self) if self.is_by_tokens else x
        return result

    def join(self, x: Float[Tensor, "n d"], num_tokens: int) -> Float[Tensor, "N d"]:
        """Return all tokens, for what each rank computes alike; undoes `cut`."""
        result: Tensor = _Join.apply(x, self)[:num_tokens] if self.is_by_tokens else x
        return result

    def enter(self, x: Float[Tensor, "n d"], num_tokens: int | None) -> Float[Tensor, "N d"]:
        """Return the input of a product that is cut by outputs; its gradient is the sum over the ranks.

        Args:
            x: of this rank's tokens, or of all tokens.
            num_tokens: N where `x` is of this rank's tokens; None: it is of all.
        """
        if num_tokens is None or not self.is_by_tokens:
            result: Tensor = _Enter.apply(x, self)
            return result
        gathered: Tensor = _Gather.apply(x, self)
        return gathered[:num_tokens]

    def leave(self, x: Float[Tensor, "N d"], *, is_whole: bool) -> Float[Tensor, "n d"]:
        """Return the sum over the ranks of a product that is cut by inputs, of all tokens or of this rank's."""
        if is_whole or not self.is_by_tokens:
            result: Tensor = _Leave.apply(x, self)
            return result
        scattered: Tensor = _Scatter.apply(x, self)
        return scattered

    def shared(self, parameter: Tensor) -> Tensor:
        """Return a parameter that is whole on each rank and used for a part of its heads or tokens."""
        result: Tensor = _Enter.apply(parameter, self)
        return result

    def share(self, layer: nn.Module) -> None:
        """Keep this rank's part of the matrices of a Hugging Face decoder layer; the rest of it stays whole."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan: dict[str, Any] = {name: ColwiseParallel() for name in BY_OUTPUTS}
        plan |= {name: RowwiseParallel() for name in BY_INPUTS}
        parallelize_module(layer, self.mesh, plan)

    def replicate(self, module: nn.Module) -> None:
        """Hold what is not shared as whole tensors of the mesh, so that all parameters live on one."""
        from torch.distributed.tensor import DTensor, Replicate

        made: dict[Tensor, nn.Parameter] = {}  # a tied layer stays tied
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if isinstance(parameter, DTensor):
                    continue
                if parameter not in made:
                    whole = DTensor.from_local(parameter.detach(), self.mesh, [Replicate()], run_check=False)
                    made[parameter] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
                setattr(part, name, made[parameter])


def held(parameter: Tensor) -> Tensor:
    """Return what this rank computes with of a gathered parameter: its part of a shared one, else the parameter.

    Its gradient is that of the part; ranks that compute alike with a whole parameter have the same.
    """
    if not hasattr(parameter, "to_local"):
        return parameter
    names = getattr(parameter, "device_mesh").mesh_dim_names  # noqa: B009  a plain tensor has none
    assert names == (TENSOR,), f"the parameter is not gathered: it lies on {names}"
    part: Tensor = parameter.to_local()
    return part


def _padded(x: Tensor, size: int) -> Tensor:
    """Return `x` with rows of zeros, so that their number is a multiple of `size`."""
    missing = -len(x) % size
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def _total(x: Tensor, ranks: TensorGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=ranks.group)
    return total


def _own_rows(x: Tensor, ranks: TensorGroup) -> Tensor:
    return _padded(x, ranks.size).chunk(ranks.size)[ranks.index].contiguous()


def _all_rows(x: Tensor, ranks: TensorGroup) -> Tensor:
    rows = x.new_empty(len(x) * ranks.size, *x.shape[1:])
    distributed.all_gather_into_tensor(rows, x.contiguous(), group=ranks.group)
    return rows


def _own_total(x: Tensor, ranks: TensorGroup) -> Tensor:
    padded = _padded(x, ranks.size).contiguous()
    total = padded.new_empty(len(padded) // ranks.size, *padded.shape[1:])
    distributed.reduce_scatter_tensor(total, padded, group=ranks.group)
    return total


class _Enter(torch.autograd.Function):
    """The input as it is; the sum of the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _total(grad, ctx.ranks), None


class _Leave(torch.autograd.Function):
    """The sum over the ranks; each of them has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        return _total(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    """All tokens from those of each rank; the sum over the ranks of the gradients by this rank's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return _all_rows(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _own_total(grad, ctx.ranks), None


class _Scatter(torch.autograd.Function):
    """The sum over the ranks at this rank's tokens; the gradient by those of all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks, ctx.num_tokens = ranks, len(x)
        return _own_total(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_rows(grad, ctx.ranks)[: ctx.num_tokens], None


class _Cut(torch.autograd.Function):
    """This rank's tokens of what all ranks have alike; they have the gradient alike, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks, ctx.num_tokens = ranks, len(x)
        return _own_rows(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_rows(grad, ctx.ranks)[: ctx.num_tokens], None


class _Join(torch.autograd.Function):
    """All tokens, of which each rank computes the same and has the same gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return _all_rows(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _own_rows(grad, ctx.ranks), None


def check_matrices(model: PreTrainedModel, size: int) -> None:
    """Check that `size` ranks can share the matrices of `model`.

    Raises:
        ConfigError: they cannot (E1855).
    """
    problem = tensor_problem(model.config.to_dict(), size)
    if size > 1 and problem is not None:
        raise ConfigError(problem, code="E1855")
