"""Tensor parallelism: ranks share the matrices of each decoder layer.

    n tokens --enter--> N tokens: q, k, v; heads of this rank; o --leave--> n tokens

Dimension key: N = packed tokens, n = a rank's tokens, M = scored positions, d = hidden size. q, k, v, gate and up are
cut by outputs, o and down by inputs; a rank's products are summands of the layer's (arXiv:1909.08053). Norms,
embedding and output layer are whole on each rank. With sequence parallelism (arXiv:2205.05198) a rank keeps n of the N
tokens between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel

from trinity.common.errors import ConfigError
from trinity.preflight.division import tensor_problem
from trinity.trainer.verl.parallel.exchange import as_it_is, exchange

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
        is_by_tokens: between the products each rank keeps only its part of the tokens (`sequence_parallel`).
    """

    mesh: DeviceMesh
    is_by_tokens: bool = False

    @property
    def group(self) -> Any:
        """The process group of the ranks."""
        return self.mesh.get_group()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.size()

    @property
    def index(self) -> int:
        """Index of this rank in the group."""
        return self.mesh.get_local_rank()

    def cut(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "n d"]:
        """Return this rank's tokens, zero-padded, of `x` (equal on all ranks)."""
        return exchange(x, self._own_rows, self._all_rows) if self.is_by_tokens else x

    def join(self, x: Float[Tensor, "n d"], num_tokens: int) -> Float[Tensor, "N d"]:
        """Return all tokens, for work that every rank repeats; undo `cut`."""
        return exchange(x, self._all_rows, self._own_rows)[:num_tokens] if self.is_by_tokens else x

    def enter(self, x: Float[Tensor, "n d"], num_tokens: int | None) -> Float[Tensor, "N d"]:
        """Return the input of a product cut by outputs; ranks sum its gradients.

        Args:
            x: of this rank's tokens, or of all tokens.
            num_tokens: N if `x` is of this rank's tokens; None if it is of all.
        """
        if num_tokens is None or not self.is_by_tokens:
            return self.shared(x)
        return exchange(x, self._all_rows, self._own_total)[:num_tokens]

    def leave(self, x: Float[Tensor, "N d"], *, is_whole: bool) -> Float[Tensor, "n d"]:
        """Sum a product that is cut by inputs; return all tokens, or this rank's."""
        if is_whole or not self.is_by_tokens:
            return exchange(x, self._total, as_it_is)
        return exchange(x, self._own_total, self._all_rows)

    def shared(self, x: Tensor) -> Tensor:
        """Return `x` of any shape unchanged, with gradients summed over the ranks.

        For a tensor that is whole on each rank, such as a norm's weight that each rank uses for its heads.
        """
        return exchange(x, as_it_is, self._total)

    def share(self, layer: nn.Module) -> None:
        """Keep this rank's part of a layer's matrices, the rest of it whole."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan: dict[str, Any] = {name: ColwiseParallel() for name in BY_OUTPUTS}
        plan |= {name: RowwiseParallel() for name in BY_INPUTS}
        parallelize_module(layer, self.mesh, plan)

    def replicate(self, module: nn.Module) -> None:
        """Put unshared parameters on the mesh too, so that all use one mesh."""
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

    def _total(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        total = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=self.group)
        return total

    def _own_rows(self, x: Tensor) -> Tensor:
        """Return this rank's rows of `x`, which is equal on all ranks."""
        return _padded(x, self.size).chunk(self.size)[self.index].contiguous()

    def _all_rows(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks in their order, padding included."""
        rows = x.new_empty(len(x) * self.size, *x.shape[1:])
        distributed.all_gather_into_tensor(rows, x.contiguous(), group=self.group)
        return rows

    def _own_total(self, x: Tensor) -> Tensor:
        """Return this rank's rows of the sum over the ranks."""
        padded = _padded(x, self.size).contiguous()
        total = padded.new_empty(len(padded) // self.size, *padded.shape[1:])
        distributed.reduce_scatter_tensor(total, padded, group=self.group)
        return total


def held(parameter: Tensor) -> Tensor:
    """Return the part of a gathered parameter that this rank computes with.

    The parameter may have any shape.

    That is its part if ranks share the matrix, else the whole parameter. The gradient is that of the part; ranks that
    repeat a computation with a whole parameter have the same gradient.
    """
    if not hasattr(parameter, "to_local"):
        return parameter
    names = getattr(parameter, "device_mesh").mesh_dim_names  # noqa: B009  a plain tensor has none
    assert names == (TENSOR,), f"the parameter is not gathered: it lies on {names}"
    part: Tensor = parameter.to_local()
    return part


def _padded(x: Tensor, size: int) -> Tensor:
    """Pad `x` with rows of zeros to a multiple of `size` rows."""
    missing = -len(x) % size
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def check_matrices(model: PreTrainedModel, size: int) -> None:
    """Check that `size` ranks can share the matrices of `model`.

    Raises:
        ConfigError: they cannot (E1855).
    """
    problem = tensor_problem(model.config.to_dict(), size)
    if size > 1 and problem is not None:
        raise ConfigError(problem, code="E1855")
