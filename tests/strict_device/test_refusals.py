"""What the device refuses and what it lets pass, each as CUDA does."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.strict_device.device import install, synchronizations, use_deterministic_algorithms
from tests.strict_device.memory import to_host
from trinity.utils.scan import cumulative_sum

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, strict:0 and cpu!"
Call = Callable[[Tensor, Tensor], Any]


@pytest.fixture
def x() -> Tensor:
    return torch.arange(12.0).view(3, 4).to("strict")


@pytest.fixture
def host() -> Tensor:
    return torch.arange(12.0).view(3, 4)


@pytest.fixture
def determinism(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    use_deterministic_algorithms(True)
    yield
    use_deterministic_algorithms(False)


ROWS = torch.tensor([0, 2])
PLACES = torch.tensor([[0], [1], [2]])
MIXED: dict[str, tuple[Call, str]] = {
    "add": (lambda x, h: x + h, TWO_DEVICES),
    "add to the host": (lambda x, h: h + x, TWO_DEVICES),
    "number of the device beside a tensor of the host": (lambda x, h: h * x.sum(), TWO_DEVICES),
    "in place into the host": (lambda x, h: h.add_(x), TWO_DEVICES),
    "compare": (lambda x, h: x > h, TWO_DEVICES),
    "two numbers of the host": (
        lambda x, h: torch.addcmul(x, h[0, 0], h[0, 1]),
        "too many CPU scalars to non-CPU kernel",
    ),
    "clamp by a number of the host": (lambda x, h: x.clamp(h[0, 0], h[0, 0]), TWO_DEVICES),
    "where": (lambda x, h: torch.where(h > 1, x, x), TWO_DEVICES),
    "assigned values": (lambda x, h: x.index_put_((ROWS,), h[ROWS]), TWO_DEVICES),
    "out": (lambda x, h: torch.add(x, x, out=h), TWO_DEVICES),
    "product": (lambda x, h: x @ h.t(), "got mat2 is on cpu, different from other tensors on strict:0"),
    "linear": (lambda x, h: functional.linear(x, h), "is on cpu, different from other tensors on strict:0"),
    "cat": (lambda x, h: torch.cat([x, h]), "got tensors is on cpu"),
    "stack": (lambda x, h: torch.stack([x, h]), "got tensors is on cpu"),
    "index_select": (lambda x, h: x.index_select(0, ROWS), "got index is on cpu"),
    "gather": (lambda x, h: x.gather(1, PLACES), "got index is on cpu"),
    "scatter": (lambda x, h: x.scatter(1, PLACES, 1.0), "got index is on cpu"),
    "scatter_add": (lambda x, h: x.scatter_add(1, PLACES, x), "got index is on cpu"),
    "index_add": (lambda x, h: x.index_add(0, ROWS, x[:2]), "self, index and source expected to be in the same device"),
    "embedding": (lambda x, h: functional.embedding(ROWS, x), "got index is on cpu"),
    "cross entropy": (lambda x, h: functional.cross_entropy(x, PLACES[:, 0]), "got target is on cpu"),
    "searchsorted": (lambda x, h: torch.searchsorted(x, h), "is on cpu"),
    "masked_fill": (lambda x, h: x.masked_fill(h > 1, 0.0), "expected self and mask to be on the same device"),
    "repeats": (lambda x, h: x.repeat_interleave(torch.tensor([1, 2, 3]), 0), "got index is on cpu"),
    "indices of the device into the host": (lambda x, h: h[ROWS.to("strict")], "indices should be either on cpu or on"),
    "equal": (lambda x, h: torch.equal(x, h), "Cannot compare two tensors on different devices"),
    "attention": (
        lambda x, h: functional.scaled_dot_product_attention(x[None], h[None], h[None]),
        "on cpu|same device",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_refused(name: str, x: Tensor, host: Tensor) -> None:
    call, message = MIXED[name]
    with pytest.raises(RuntimeError, match=message):
        call(x, host)


ALLOWED: dict[str, Call] = {
    "one number of the host": lambda x, h: x * h[0, 1],
    "a number of the host first": lambda x, h: h[0, 1] / x.add(1),
    "python numbers": lambda x, h: (2 * x - 1) ** 2 % 3,
    "shifts of integers": lambda x, h: (x.long() >> 1) & 3 ^ 1,
    "weight of lerp": lambda x, h: x.lerp(x + 1, h[0, 1]),
    "compare with a number": lambda x, h: x > h[1, 1],
    "numbers in where": lambda x, h: torch.where(x > 1, h[0, 1], h[0, 2]),
    "value of masked_fill": lambda x, h: x.masked_fill(x > 1, h[0, 1]),
    "host indices": lambda x, h: x[ROWS.to(h.device), :2],
    "host mask": lambda x, h: x[torch.tensor([True, False, True])],
    "assignment at host indices": lambda x, h: x.index_put_((ROWS,), torch.tensor(7.0)),
    "assignment of host values": lambda x, h: x[:2].copy_(h[1:]),
    "fill with a host number": lambda x, h: x.fill_(h[0, 3]),
    "views and shapes": lambda x, h: x.t().reshape(2, 6)[:, ::2].unfold(1, 2, 1).flatten().view(2, -1).squeeze()[None],
    "softmax and sort": lambda x, h: x.softmax(-1).sort(-1, descending=True).values,
    "out of another shape": lambda x, h: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "growing": lambda x, h: x.clone().resize_(5, 4)[:3],
    "new tensors": lambda x, h: torch.full_like(x, 2.0) + torch.arange(4, device=x.device) + x.new_zeros(3, 4),
    "layer norm": lambda x, h: functional.layer_norm(x, (4,)),
    "in float64": lambda x, h: x.double().cumsum(0),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_cuda_allows_gives_the_values_of_the_cpu(name: str, x: Tensor, host: Tensor) -> None:
    made = ALLOWED[name](x, host.clone())
    wanted = ALLOWED[name](host.clone(), host.clone())
    assert made.device.type == "strict" and made.dtype == wanted.dtype
    assert torch.equal(made.cpu(), wanted)


def test_a_view_shares_its_memory_and_its_place_in_the_graph(x: Tensor) -> None:
    row = x[1]
    row += 100
    assert x[1].tolist() == [104.0, 105.0, 106.0, 107.0] and row._base is x
    leaf = torch.ones(3, device="strict", requires_grad=True)
    doubled = leaf * 2
    doubled[1] = 5.0
    doubled.square().sum().backward()
    assert leaf.grad is not None and leaf.grad.device.type == "strict" and leaf.grad.tolist() == [8.0, 0.0, 8.0]


def test_the_host_does_not_read_the_memory_of_the_device(x: Tensor) -> None:
    for call in (x.numpy, lambda: np.asarray(x), lambda: np.add(np.ones(4), x)):
        with pytest.raises(TypeError, match="can't convert strict:0 device type tensor to numpy"):
            call()
    assert x.data_ptr() != to_host(x).data_ptr() and x.data_ptr() > 2**59, "no address of this process"
    assert x.cpu().numpy().sum() == 66.0 and x.tolist()[0] == [0.0, 1.0, 2.0, 3.0] and x.sum().item() == 66.0


def test_generators_belong_to_a_device() -> None:
    probabilities = torch.ones(3, 4, device="strict")
    for call in (
        lambda g: torch.rand(3, device="strict", generator=g),
        lambda g: torch.multinomial(probabilities, 1, generator=g),
        lambda g: torch.randperm(5, device="strict", generator=g),
        lambda g: probabilities.normal_(generator=g),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'strict' device type for generator but found 'cpu'"):
            call(torch.Generator())


def test_the_random_stream_of_the_device_is_its_own() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = torch.rand(4, device="strict")
    functional.dropout(first, 0.5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(4)
    torch.strict.set_rng_state(torch.get_device_module("strict").get_rng_state())
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="strict").cpu(), first.cpu())


NONDETERMINISTIC: dict[str, Callable[[Tensor], Any]] = {
    "cumsum_cuda_kernel": lambda x: x.cumsum(0),
    "_bincount_cuda": lambda x: torch.bincount(x.view(-1).long(), weights=x.view(-1)),
    "_histc_cuda": lambda x: x.histc(),
    "median CUDA with indices output": lambda x: x.median(0),
    "put_": lambda x: x.put_(torch.tensor([0]).to("strict"), torch.ones(1).to("strict")),
    "scatter_reduce_cuda_prod_": lambda x: x[0].scatter_reduce(0, torch.zeros(4).long().to("strict"), x[0], "prod"),
}


@pytest.mark.parametrize("kernel", NONDETERMINISTIC)
def test_deterministic_mode_refuses_what_has_no_such_kernel(kernel: str, x: Tensor, determinism: None) -> None:
    with pytest.raises(RuntimeError, match=f"{kernel} does not have a deterministic implementation"):
        NONDETERMINISTIC[kernel](x)
    use_deterministic_algorithms(False)
    NONDETERMINISTIC[kernel](x)


def test_deterministic_mode_lets_the_rest_pass(x: Tensor, determinism: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert x.long().cumsum(0).tolist()[2] == [12, 15, 18, 21]
    assert torch.bincount(x.view(-1).long()).sum().item() == 12 and x.median().item() == 5.0
    with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        x @ x.t()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert (x @ x.t())[0, 0].item() == 14.0
    use_deterministic_algorithms(True, warn_only=True)
    x.cumsum(0)


def test_our_cumulative_sum_is_not_refused(x: Tensor, determinism: None) -> None:
    assert torch.equal(cumulative_sum(x).cpu(), to_host(x).cumsum(-1))
    assert cumulative_sum(x, torch.float64).dtype == torch.float64


def test_products_of_integers_are_refused(x: Tensor) -> None:
    whole = x.long()
    with pytest.raises(RuntimeError, match="\"addmm_cuda\" not implemented for 'Long'"):
        whole @ whole.t()
    with pytest.raises(RuntimeError, match="\"baddbmm_cuda\" not implemented for 'Long'"):
        whole[None] @ whole.t()[None]


def test_only_tensors_of_the_host_are_pinned(x: Tensor, host: Tensor) -> None:
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="strict", pin_memory=True)
    assert host.pin_memory().is_pinned() and not host.is_pinned()


def test_waits_of_the_host_are_counted(x: Tensor, host: Tensor) -> None:
    def waits(call: Callable[[], Any]) -> int:
        before = synchronizations()
        call()
        return synchronizations() - before

    pinned, target = host.pin_memory(), torch.empty_like(host)
    assert waits(lambda: (x + 1).softmax(-1)[1:].index_select(0, torch.zeros(1, device="strict").long())) == 0
    assert waits(lambda: x.copy_(pinned, non_blocking=True)) == 0
    assert waits(lambda: target.copy_(x, non_blocking=True)) == 0
    for call in (x.sum().item, x.cpu, x.tolist, lambda: bool(x.any()), (x > 1).nonzero, lambda: x[x > 1]):
        assert waits(call) >= 1


def test_the_backward_pass_runs_in_a_thread_of_the_device() -> None:
    class Where(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            found.append(threading.get_ident())
            return grad

    found: list[int] = []
    for device in ("cpu", "strict"):
        Where.apply(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    assert found[0] == threading.get_ident() != found[1]


def test_autocast_has_the_lists_of_cuda(x: Tensor) -> None:
    with torch.autocast("strict", torch.bfloat16):
        narrow = functional.linear(x, x)
        assert narrow.dtype == (x @ x.t()).dtype == torch.bfloat16
        assert narrow.softmax(-1).dtype == narrow.sum().dtype == narrow.exp().dtype == torch.float32
        assert torch.cat([narrow, x[:, :3]]).dtype == torch.float32 and (narrow + narrow).dtype == torch.bfloat16
    assert functional.linear(x, x).dtype == torch.float32


@pytest.mark.parametrize("kind", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_a_step_of_a_module_is_that_of_the_cpu(kind: dict[str, bool]) -> None:
    def trained(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
        made.to(device)
        optimizer = torch.optim.AdamW(made.parameters(), lr=0.1, **kind)
        for _ in range(3):
            data = torch.arange(8.0).view(2, 4).to(device)
            torch.utils.checkpoint.checkpoint(made, data, use_reentrant=False).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        made.to("cpu")  # the parameters stay those of the optimizer
        assert all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"])
        return [p.detach() for p in made.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained("cpu"), trained("strict"), strict=True))


def test_tensors_are_saved_and_read_on_the_host(x: Tensor) -> None:
    file = io.BytesIO()
    torch.save({"x": x, "view": x[1]}, file)
    file.seek(0)
    read = torch.load(file, weights_only=True, map_location="cpu")
    assert torch.equal(read["x"], to_host(x)) and torch.equal(read["view"], to_host(x)[1])


def test_a_second_installation_changes_nothing() -> None:
    assert install() == torch.device("strict", 0) == torch.empty(1, device="strict").device
