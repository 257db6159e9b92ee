"""Typed names of keys: `KEYS.buffer.batch_size` is `buffer.batch_size`.

To the type checker such a name is the value at its path. It reports a key that does not exist and knows what
`resolution.get` returns; an editor finds the field. At run time it is only the path: it prints as the dotted
key, and using it as the value is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, NoReturn, TypeVar, cast

from trinity.common.config.config import Config
from trinity.common.config.overrides import parse_path
from trinity.common.config.tree import Path, dotted, value_at

T = TypeVar("T")
Key = Annotated[T, "the name of a value, not the value"]


class _Key:
    """The path to a value, built by attribute access from `KEYS`."""

    __slots__ = ("_path",)
    __iter__ = None
    __contains__ = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getattr__(self, name: str) -> _Key:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Key((*self._path, name))

    def __getitem__(self, part: str | int) -> _Key:
        return _Key((*self._path, part))

    def __str__(self) -> str:
        return dotted(self._path)

    def __repr__(self) -> str:
        return f"<key {self}>"

    def __hash__(self) -> int:
        return hash(self._path)

    def __eq__(self, other: object) -> bool:
        return self._path == other._path if isinstance(other, _Key) else self._misuse()

    def __bool__(self) -> bool:
        return self._misuse()

    def _misuse(self) -> NoReturn:
        raise TypeError(f"{self} is the name of a value; `resolution.get` returns the value")


KEYS = cast(Config, _Key(()))


def path_of(key: Key[object]) -> Path:
    """Return the path of a key."""
    if not isinstance(key, _Key):
        raise TypeError(f"{key!r} is no name of a key; these begin with KEYS")
    return key._path


def value_of(config: Config, key: Key[T]) -> T:
    """Return the value of a key.

    Raises KeyError for a missing entry of a free mapping.
    """
    value: T = value_at(config, path_of(key))
    return value


def last_part(key: Key[object]) -> str:
    """Return the last part of a key: `lr` of `algorithm.optimizer.lr`."""
    return str(path_of(key)[-1])


def part_of(section: Key[object], *parts: str | int) -> Key[Any]:
    """Return the key of a part whose name is known only at run time."""
    return _Key((*path_of(section), *parts))


def args_of(function: Key[object]) -> Key[dict[str, Any]]:
    """Return the key of a function's arguments, such as `kl_loss_fn_args`."""
    *section, name = path_of(function)
    return cast(dict[str, Any], _Key((*section, f"{name}_args")))


def present(key: Key[T | None]) -> Key[T]:
    """Return the key of an optional section, to access its parts."""
    return cast(T, key)


ACTOR = KEYS.trainer.trainer_config.actor_rollout_ref.actor
REFERENCE = KEYS.trainer.trainer_config.actor_rollout_ref.ref
CRITIC = KEYS.trainer.trainer_config.critic
REWARD_MODEL = KEYS.trainer.trainer_config.reward_model
VERL_TRAINER = KEYS.trainer.trainer_config.trainer
ROLLOUT_MODEL = KEYS.explorer.rollout_model
TASKSET = present(KEYS.buffer.explorer_input.taskset)
EXPERIENCES = present(KEYS.buffer.trainer_input.experience_buffer)
AUXILIARY = KEYS.buffer.trainer_input.auxiliary_buffers


def key_at(path: Path) -> Key[Any]:
    """Return the key at a path."""
    return _Key(path)


def key_named(name: str) -> Key[Any]:
    """Return the key with a dotted name, as in schema fields and problems."""
    return _Key((parse_path(name) or (name,)) if name else ())
