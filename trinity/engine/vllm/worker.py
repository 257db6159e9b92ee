"""Code that runs in vLLM's own processes: the sampler, and remote calls.

vLLM loads both by name: the sampler through `logits_processors`, the calls through `worker_extension_cls`.

Dimension key: B = rows of a step, V = vocabulary.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from trinity.common.models.weights import read_tensors
from trinity.engine.sampler import RowParams, sample, uniforms
from trinity.engine.vllm.reload import Reloader, loaded_dtypes
from trinity.engine.vllm.settings import OWN_ARGS, file_digest

_LEAST = -1e30
_OFF_TOP_P = 2.0
_MAX_LEFT = 4096


@dataclass(eq=False)
class _Row:
    """One request in the batch.

    Attributes:
        id: name of the request.
        key: key of its noise.
        temperature: 0 takes the most probable token.
        forced: tokens to take instead of samples, to get their logprobs.
        output: the tokens so far; vLLM extends this list.
    """

    id: str
    key: int
    temperature: float
    top_k: int
    top_p: float
    min_tokens: int
    forced: Sequence[int]
    output: list[int] = field(repr=False)


class RowSampler(LogitsProcessor):
    """Draws each row's token as the torch engine does, with the same noise.

    vLLM's own log-probabilities are those before temperature or those after top-k and top-p; training needs those at
    the temperature and before any token is removed. So each row of logits is replaced by one entry, the drawn token's
    log-probability: vLLM samples greedily, takes that token, and returns the entry (`processed_logits`).
    """

    live: weakref.WeakSet[RowSampler] = weakref.WeakSet()

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        config: Any = vllm_config.additional_config
        own = config[OWN_ARGS]
        self.device = device
        self.base_temperature = float(own["temperature"])
        self.num_tokens = int(own["num_tokens"])
        self.stop_ids = torch.tensor(own["stop_ids"], dtype=torch.long, device=device)
        self.unknown_ids = torch.tensor(own["unknown_ids"], dtype=torch.long, device=device)
        self.rows: dict[int, _Row] = {}
        self.left: OrderedDict[str, int] = OrderedDict()
        self._columns: dict[str, Tensor] = {}
        self.live.add(self)

    def is_argmax_invariant(self) -> bool:
        """Return false: the result decides which token is the largest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply vLLM's removals, additions and moves of rows."""
        if batch_update is None:
            return
        self._columns = {}
        for index in batch_update.removed:
            self._leave(index)
        for index, params, _, output in batch_update.added:
            self._leave(index)
            own = (params.extra_args or {}).get(OWN_ARGS)
            if own is not None:
                self.rows[index] = _Row(**own, output=output)
        for source, target, direction in batch_update.moved:
            moved, replaced = self.rows.pop(source, None), self.rows.pop(target, None)
            if moved is not None:
                self.rows[target] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                self.rows[source] = replaced

    def _leave(self, index: int) -> None:
        row = self.rows.pop(index, None)
        if row is not None:
            # A preempted row returns later; until then an update still needs its length.
            self.left[row.id] = len(row.output)
            while len(self.left) > _MAX_LEFT:
                self.left.popitem(last=False)

    def progress(self) -> dict[str, int]:
        """Return the token count of each request in the batch or recently left."""
        return dict(self.left) | {row.id: len(row.output) for row in self.rows.values()}

    def apply(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Return logits [B, V] with one entry in our rows; others do not change."""
        indices = [index for index in sorted(self.rows) if index < logits.shape[0]]
        if not indices:
            return logits
        rows = [self.rows[index] for index in indices]
        where = torch.tensor(indices, device=logits.device)
        chosen = logits[where]
        positions = torch.tensor([len(row.output) for row in rows], device=logits.device)
        params = self._params(rows, positions)
        tokens, logprobs = sample(chosen, params, uniform=uniforms(self._columns["key"], positions))
        if any(row.forced for row in rows):
            tokens, logprobs = self._force(rows, chosen, params, drawn=(tokens, logprobs))
        entry = torch.where(torch.isfinite(logprobs), logprobs.clamp(min=_LEAST), torch.inf)
        result = torch.full_like(chosen, float("-inf")).scatter_(1, tokens[:, None], entry[:, None])
        logits[where] = result
        return logits

    def _force(
        self, rows: list[_Row], logits: Tensor, params: RowParams, *, drawn: tuple[Tensor, Tensor]
    ) -> tuple[Int[Tensor, "B"], Float[Tensor, "B"]]:
        """Return tokens [B] with `forced` ones in place, and their logprobs [B]."""
        tokens, logprobs = drawn[0].tolist(), drawn[1].clone()
        for number, row in enumerate(rows):
            if row.forced:
                tokens[number] = row.forced[min(len(row.output), len(row.forced) - 1)]
                scaled = torch.log_softmax(logits[number] / params.temperature[number], -1)
                logprobs[number] = scaled[tokens[number]]
        return torch.tensor(tokens, device=logits.device), logprobs

    def _params(self, rows: list[_Row], positions: Int[Tensor, "B"]) -> RowParams:
        if not self._columns or len(self._columns["key"]) != len(rows):
            self._columns = {
                "key": self._column([row.key for row in rows], torch.long),
                # The logits arrive divided by the engine's temperature.
                "temperature": self._column(
                    [(row.temperature or 1.0) / self.base_temperature for row in rows], torch.float32
                ),
                "is_greedy": self._column([row.temperature == 0 for row in rows], torch.bool),
                "top_k": self._column([row.top_k if row.top_k > 0 else self.num_tokens for row in rows], torch.long),
                "top_p": self._column([row.top_p if row.top_p < 1 else _OFF_TOP_P for row in rows], torch.float32),
                "min": self._column([row.min_tokens for row in rows], torch.long),
            }
        no_stop = positions < self._columns["min"]
        return RowParams(
            **{name: self._columns[name] for name in ("temperature", "is_greedy", "top_k", "top_p")},
            no_stop=no_stop,
            stop_ids=self.stop_ids,
            num_tokens=self.num_tokens,
            unknown_ids=self.unknown_ids,
            has_temperature=any((row.temperature or 1.0) != self.base_temperature for row in rows),
            has_greedy=any(row.temperature == 0 for row in rows),
            max_top_k=max((row.top_k for row in rows if 0 < row.top_k < self.num_tokens), default=0),
            has_top_p=any(row.top_p < 1 for row in rows),
            has_min=bool(no_stop.any()),
        )

    def _column(self, values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


class WorkerCalls:
    """Methods that vLLM adds to its workers for `collective_rpc`."""

    _reload: Reloader | None = None
    _vectors: Set[str] = frozenset()

    def trinity_start(self, parent: int, temperature: float) -> dict[str, Any]:
        """Make logits log-probabilities at `temperature`; return worker facts.

        Prompts are scored from these logits without the sampler. From now on the worker ends with the process `parent`.
        """
        if torch.cpu._is_amx_tile_supported():
            # vLLM's kernels use AMX tiles without permission of the operating system, which then kills the process.
            torch.cpu._init_amx()
        model = self.get_model()  # type: ignore[attr-defined]
        _make_room_for_stage_before(self.model_runner, model)  # type: ignore[attr-defined]
        model.compute_logits = _normalised(model.compute_logits, temperature)
        threading.Thread(target=_end_with, args=(parent, os.getppid()), name="trinity-parent", daemon=True).start()
        dtypes = {str(parameter.dtype) for parameter in model.parameters() if parameter.is_floating_point()}
        return {"pid": os.getpid(), "starter": os.getppid(), "num_threads": torch.get_num_threads(),
                "dtypes": sorted(dtypes), "loaded": loaded_dtypes(model),
                "dynamo": os.environ.get("TORCHDYNAMO_DISABLE", ""),
                "shared": os.environ.get("VLLM_DIST_IDENT", "")}  # fmt: skip

    def trinity_answer(self) -> int:
        """Return the process id, as a sign of life between two steps."""
        return os.getpid()

    def trinity_try(self, folder: str, trained: list[str], constant: list[str], dtype: str) -> str | None:
        """Reload the model's folder; return why updates would be wrong, or None.

        Args:
            folder: folder of the model.
            trained: names of weights that an update brings, in the data type `dtype`.
            constant: names of the other weights that it brings.
            dtype: name of a data type.
        """
        changed, every = set(trained), {*trained, *constant}

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in read_tensors(Path(folder), only=every):
                yield name, tensor.to(getattr(torch, dtype)) if name in changed else tensor

        with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
            reason = self._reloader().try_reload(weights)
        self._vectors = _vectors_as_sent(self.get_model(), weights())  # type: ignore[attr-defined]
        return reason

    def _reloader(self) -> Reloader:
        if self._reload is None:
            runner = self.model_runner  # type: ignore[attr-defined]
            self._reload = Reloader(self.get_model(), runner.model_config)  # type: ignore[attr-defined]
        return self._reload

    def trinity_update(self, path: str, digest: str) -> dict[str, int]:
        """Load a safetensors file in place; return the requests' token counts.

        The counts are those at the moment of the update.

        Raises:
            ValueError: the file is not what was sent, or the model does not hold it afterwards.
        """
        found = file_digest(path)
        if found != digest:
            raise ValueError(f"the weights' digest must be {digest}, got {found}")
        with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
            lost = self._reloader().reload(_tensors(path))
        if lost:
            raise ValueError(f"vLLM did not take {len(lost)} weights (first {lost[0]})")
        model = self.get_model()  # type: ignore[attr-defined]
        wrong = sorted(self._vectors - _vectors_as_sent(model, _tensors(path, max_dims=1)))
        if wrong:
            raise ValueError(f"{wrong[0]} differs from what was sent after the update")
        progress: dict[str, int] = {}
        for sampler in RowSampler.live:
            progress |= sampler.progress()
            sampler.left.clear()
        return progress


def _make_room_for_stage_before(runner: Any, model: Any) -> None:
    """Allocate the input of a later pipeline stage.

    vLLM does that in a warm-up, which it skips on a CPU.
    """
    if getattr(runner, "intermediate_tensors", model) is None and hasattr(model, "make_empty_intermediate_tensors"):
        runner.intermediate_tensors = model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )


def _normalised(compute: Callable[..., Tensor | None], temperature: float) -> Callable[..., Tensor | None]:
    def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
        """Return the natural logprobs [rows, vocabulary] instead of the logits."""
        logits = compute(*args, **kwargs)
        if logits is None:
            return None
        return torch.log_softmax(logits.float() / temperature, dim=-1)

    return compute_logits


def _tensors(path: str, *, max_dims: int | None = None) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (the file object is not iterable)
            if max_dims is None or len(file.get_slice(name).get_shape()) <= max_dims:
                yield name, file.get_tensor(name)


def _vectors_as_sent(model: torch.nn.Module, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
    """Return names of vectors, which are never packed, equal to `weights`."""
    held = dict(model.named_parameters())
    same = set()
    for name, sent in weights:
        own = held.get(name)
        if sent.dim() == 1 and own is not None and own.shape == sent.shape:
            same |= {name} if torch.equal(own.detach().to("cpu"), sent.to(own.dtype)) else set()
    return same


def _end_with(parent: int, starter: int) -> None:
    """End this process when process `parent` or `starter` ends.

    `starter` is vLLM's process that started this one; it is killed, too.
    """
    try:
        descriptors = [os.pidfd_open(pid) for pid in (parent, starter)]
    except ProcessLookupError:
        pass
    else:
        ended = select.poll()  # `select` knows no descriptor above 1023
        for descriptor in descriptors:
            ended.register(descriptor, select.POLLIN)
        ended.poll()
    if starter != parent and os.getppid() == starter:
        os.kill(starter, signal.SIGKILL)
    os._exit(1)
