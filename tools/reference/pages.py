"""Which pages there are, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.reference import api, commands, keys, metrics, plugin_classes
from tools.reference.text import LANGUAGES, file_of

MAKERS: Mapping[str, Callable[[str], str]] = {
    api.NAME: api.page,
    commands.NAME: commands.page,
    keys.NAME: keys.page,
    metrics.NAME: metrics.page,
    plugin_classes.NAME: plugin_classes.page,
}
"""Name of a page by what returns it in a language."""


def pages() -> dict[str, str]:
    """Return the text of every page by its path from the root of the repository."""
    return {file_of(name, language): make(language) for name, make in MAKERS.items() for language in LANGUAGES}
