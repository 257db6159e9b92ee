"""The engine's use of device memory, and the error if it is too little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity.common.errors import OutOfMemoryError
from trinity.utils.device import is_out_of_memory, peak_memory_bytes, select_device, total_memory_bytes
from trinity.utils.memory import memory_lines

if TYPE_CHECKING:
    from trinity.engine.torch.decoder import Decoder

PREFIX_KEY = "explorer.rollout_model.prefix_cache_bytes"
MEMORY_KEYS = (
    "lower explorer.rollout_model.extra_engine_args.max_num_seqs, explorer.runner_per_model or "
    f"model.max_model_len (explorer.rollout_model.max_model_len) or {PREFIX_KEY}, change "
    "explorer.rollout_model.gpu_memory_utilization, or raise explorer.rollout_model.tensor_parallel_size"
)


def engine_memory(decoder: Decoder | None, *, num_slots: int, max_length: int) -> dict[str, int]:
    """Return bytes by use when all slots are full, and the device's memory.

    Args:
        decoder: None before it is loaded; then only PyTorch's use and the device's memory are known.
        num_slots: sequences that are decoded at once.
        max_length: tokens of the longest sequence.
    """
    device = select_device() if decoder is None else decoder.device
    table = {
        "weights": 0 if decoder is None else decoder.weight_bytes,
        "cache of a sequence": 0 if decoder is None else decoder.kv_bytes_per_token * max_length,
        "cache of all sequences": 0 if decoder is None else decoder.kv_bytes_per_token * max_length * num_slots,
        "most held by PyTorch": peak_memory_bytes(device),
        "memory of the device": total_memory_bytes(device),
    }
    return {name: size for name, size in table.items() if size}


def explained(error: Exception, decoder: Decoder | None, *, num_slots: int, max_length: int) -> Exception:
    """Return `error`; for lack of memory, one with the memory table and keys."""
    if not is_out_of_memory(error) or isinstance(error, OutOfMemoryError):
        return error
    table = memory_lines(engine_memory(decoder, num_slots=num_slots, max_length=max_length))
    told = OutOfMemoryError(
        f"the explorer's engine ran out of memory with {num_slots} sequences of at most {max_length} tokens: {error}\n"
        f"{table}\n{MEMORY_KEYS}"
    )
    told.__cause__ = error
    return told
