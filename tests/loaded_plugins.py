"""What a process has loaded of plugins, and how it forgets them."""

from __future__ import annotations

import sys

from trinity.utils.plugin_loader import PACKAGE
from trinity.utils.registry import Registry


def forget_plugins() -> None:
    """Make this process one that has loaded no plugin: neither their modules nor the names that they registered."""
    loaded = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    if not loaded:
        return
    for module in [module for name, module in sys.modules.items() if name.startswith("trinity.")]:
        for registry in [value for value in list(vars(module).values()) if isinstance(value, Registry)]:
            names = [name for name, entry in registry.contents.items() if entry.path.startswith(f"{PACKAGE}.")]
            for name in names:
                del registry.contents[name]
    for name in loaded:
        del sys.modules[name]
