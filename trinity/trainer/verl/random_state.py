"""States of the random generators, in the form that veRL keeps them in.

`cpu` and each accelerator have a tensor of bytes, `random` and `numpy` what `random.getstate` and
`numpy.random.get_state` return, with the words of numpy's generator as a tensor: files of ours hold no arrays.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trinity.utils.device import available_accelerators


def random_state() -> dict[str, Any]:
    """Return the state of all random generators: tensors, numbers, tuples."""
    state = {"cpu": torch.get_rng_state(), "random": random.getstate(), "numpy": np.random.get_state()}
    return random_state_of(
        state | {name: torch.get_device_module(name).get_rng_state() for name in available_accelerators()}
    )


def random_state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without arrays; what it lacks is left out."""
    plain = dict(state)
    if "numpy" in plain:
        name, words, *rest = plain["numpy"]
        plain["numpy"] = (str(name), torch.from_numpy(np.asarray(words).astype(np.int64)), *rest)
    return plain


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore every random generator that `state` has, from `random_state`."""
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "random" in state:
        version, words, gauss = _of_python(state["random"])
        random.setstate((version, tuple(int(word) for word in words), gauss))
    if "numpy" in state:
        name, key, pos, has_gauss, gauss = _of_numpy(state["numpy"])
        np.random.set_state((name, np.asarray(key).astype(np.uint32), int(pos), int(has_gauss), float(gauss)))
    for name in available_accelerators():
        if name in state:
            torch.get_device_module(name).set_rng_state(state[name])


def _of_python(state: Any) -> Sequence[Any]:
    """Return a state of `random`; older checkpoints name its parts."""
    return (state["version"], state["state"].tolist(), state["gauss"]) if isinstance(state, Mapping) else state


def _of_numpy(state: Any) -> Sequence[Any]:
    if not isinstance(state, Mapping):
        return tuple(state)
    return state["name"], state["key"], state["pos"], state["has_gauss"], state["gauss"]
