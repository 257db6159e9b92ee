"""Files of `torch.save` with a restricted set of types.

They hold tensors, parts of distributed tensors, and plain values. Nothing else is unpickled.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_safe_globals, safe_globals

# What a DTensor consists of, in the supported versions of PyTorch.
_ALLOWED = (
    ("torch.distributed.tensor", ("DTensor", "Shard", "Replicate", "Partial")),
    ("torch.distributed.tensor.placement_types", ("Shard", "Replicate", "Partial")),
    ("torch.distributed.tensor._dtensor_spec", ("DTensorSpec", "TensorMeta", "ShardOrderEntry")),
    ("torch.distributed.device_mesh", ("DeviceMesh",)),
    ("torch.distributed._mesh_layout", ("_MeshLayout", "_FlatLayout")),
)
# What an array of numpy consists of: the state of a random generator in files of veRL.
_ARRAYS = (
    ("numpy._core.multiarray", ("_reconstruct", "scalar")),
    ("numpy", ("ndarray", "dtype")),
    ("numpy.dtypes", ("UInt32DType", "Int64DType", "Float64DType")),
)


def write_tensors_to(file: Path, content: Any) -> None:
    """Write tensors and plain values in the format of `torch.save`.

    Raises:
        OSError: the file cannot be written, with the reason of the operating system. PyTorch itself, given a path, says
            of a full disk only that a position was not expected.
    """
    with open(file, "wb") as opened:
        try:
            torch.save(content, opened)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def read_tensors_of(file: Path, *, is_mapped: bool = False, may_have_arrays: bool = False) -> Any:
    """Return the content of a file, its tensors on the CPU.

    Args:
        file: to read.
        is_mapped: leave the tensors in the file until they are used.
        may_have_arrays: read arrays of numpy, too.

    Raises:
        OSError: the file is missing.
        UnpicklingError: it holds something else than tensors and plain values.
        RuntimeError, ValueError, EOFError: it is torn.
    """
    allowed: list[Any] = [OrderedDict]
    for module, names in (*_ALLOWED, *(_ARRAYS if may_have_arrays else ())):
        try:
            found = importlib.import_module(module)
        except ImportError:  # of another version of PyTorch, which writes other names
            continue
        allowed += [vars(found)[name] for name in names if name in vars(found)]
    if may_have_arrays:  # under the name that numpy 1 wrote
        allowed += [(each, f"numpy.core.multiarray.{each.__name__}") for each in allowed if _is_of_arrays(each)]
    # The context removes all that it was given, also what others had allowed before; so it is given only what is new.
    known = get_safe_globals()
    with safe_globals([each for each in dict.fromkeys(allowed) if each not in known]):
        return torch.load(file, weights_only=True, map_location="cpu", mmap=is_mapped)


def _is_of_arrays(each: Any) -> bool:
    return getattr(each, "__module__", None) == "numpy._core.multiarray"
