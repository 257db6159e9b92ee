"""What the viewer shows of a YAML file's run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trinity.catalogue import builtin_catalogue
from trinity.common.config import Config
from trinity.common.config.plan import load_plan, plugin_dirs_of
from trinity.common.errors import ConfigError
from trinity.manager.viewer.settings import ViewerSettings

EARLIER = "continue_from_checkpoint=true"
"""What an earlier run left is looked at, and neither renamed nor begun again."""


def stage_viewed(
    source: Path, *, overrides: Sequence[str] = (), plugin_dirs: Sequence[Path] = (), stage: str | None = None
) -> Config:
    """Return the configuration of the stage whose experiences are viewed.

    Args:
        source: the YAML file.
        overrides: `a.b=c` texts of `--set`.
        plugin_dirs: folders of plugin modules, whose names are known then.
        stage: its name; None: the last stage that keeps experiences in a database, or the last one.

    Raises:
        ConfigErrors: all that is wrong with the file.
        ConfigError: there is no such stage (E1921).
    """
    given = (*overrides, EARLIER)
    folders = tuple(dict.fromkeys([*plugin_dirs, *plugin_dirs_of(source, given)]))
    plan = load_plan(source, given, catalogue=builtin_catalogue(folders))
    named = [each.config for each in plan.stages if stage in (None, each.name)]
    if not named:
        names = ", ".join(str(each.name) for each in plan.stages if each.name)
        raise ConfigError(
            f"{source} has no stage called {stage!r}; its stages: {names or 'one, without a name'}", code="E1921"
        )
    return ([config for config in named if _database(config)] or named)[-1]


def settings_of(config: Config, *, url: str | None = None, buffer: str = "", tokenizer: str = "") -> ViewerSettings:
    """Return what the viewer shows of a stage; arguments go before the file.

    Args:
        config: of the stage.
        url: another database than the stage's.
        buffer: name of an experience buffer; empty: of all.
        tokenizer: another model whose tokenizer gives the texts.

    Raises:
        ConfigError: the stage keeps its experiences in no database (E1921).
    """
    url, model = url or _database(config), config.model
    if not url:
        raise ConfigError(
            "the stage keeps its experiences in no database; set "
            "buffer.trainer_input.experience_buffer.storage_type: sql, or name a database with --url",
            code="E1921",
        )
    return ViewerSettings(url, buffer, tokenizer or model.model_path, model.trust_remote_code and not tokenizer)


def _database(config: Config) -> str:
    buffer = config.buffer.trainer_input.experience_buffer
    return "" if buffer is None or buffer.storage_type == "file" else buffer.place or ""
