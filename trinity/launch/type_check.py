"""The hook by which a plugin's algorithm type checks a configuration.

It is called before anything is started.
"""

from __future__ import annotations

from trinity.algorithm import ALGORITHM_TYPE
from trinity.common.config import Config
from trinity.common.errors import ConfigError, TrinityError


def check_type_of(config: Config) -> None:
    """Call `check_config` of the algorithm type of a stage.

    Raises:
        ConfigError: what it raises; anything else that it raises (E3911); it changed the configuration, which nothing
            would read (E3912).
    """
    name = config.algorithm.algorithm_type
    if not ALGORITHM_TYPE.contents[name].has_check:
        return
    algorithm = ALGORITHM_TYPE.get(name)
    given = config.model_copy(deep=True)
    place = f"check_config of algorithm_type {name} ({algorithm.__module__}.{algorithm.__qualname__})"
    try:
        algorithm.check_config(given)
    except TrinityError:
        raise
    # It is foreign code and may raise anything, an assertion above all.
    except Exception as error:
        raise ConfigError(
            f"{place} refuses the configuration: {type(error).__name__}: {error}", code="E3911"
        ) from error
    before, after = config.model_dump(), given.model_dump()
    changed = sorted(section for section in before if before[section] != after[section])
    if changed:
        raise ConfigError(
            f"{place} changed {', '.join(changed)}; it may only check, and nothing reads what it changes; write "
            "defaults into `default_config`",
            code="E3912",
        )
