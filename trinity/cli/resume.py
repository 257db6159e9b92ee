"""The command that continues a run, as it was typed but without secrets."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.utils.log import redact

if TYPE_CHECKING:
    from trinity.launch.run import RunOptions


@dataclass(frozen=True)
class ResumeCommand:
    """The command that continues a run, and the variables that it reads.

    Attributes:
        text: the command for a shell in the same folder.
        variables: environment variables from which it reads the secrets that were given, by key.
    """

    text: str
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, options: RunOptions) -> ResumeCommand:
        """Return the command for the YAML file `path` with all given options."""
        from trinity.common.config.masking import masked_override

        variables: dict[str, str] = {}
        words = [*_program(), "run", "--config", str(path)]
        for folder in options.plugin_dirs:
            words += ["--plugin-dir", str(folder)]
        for override in (*options.overrides, *options.resume_overrides):
            text, needed = masked_override(override)
            variables |= needed
            words += ["--set", text]
        for key in options.accepted_changes:
            words += ["--accept-change", key]
        words += ["--quiet"] if options.is_quiet else []
        return cls(redact(shlex.join(words)), variables)

    @property
    def from_anywhere(self) -> str:
        """The command for a shell in any folder of this machine."""
        return f"cd {shlex.quote(str(Path.cwd()))} && {self.text}"

    def lines(self) -> list[str]:
        """Return the lines to print: how to set secrets, if any, and the command."""
        secrets = [f"export {name}=... ({key})" for key, name in self.variables.items()]
        first = [f"secrets are not printed; give them first: {'; '.join(secrets)}"] if secrets else []
        return [*first, f"resume with: {self.text}"]


def _program() -> list[str]:
    """Return the words that start this program again.

    Returns the plain name if Python code called it.
    """
    started = Path(sys.argv[0])
    if started.name == "__main__.py" and started.parent.name == "trinity":
        typed = sys.orig_argv
        return typed[: typed.index("trinity") + 1] if "trinity" in typed else [sys.executable, "-m", "trinity"]
    if started.name == "trinity" and started.is_file():
        found = shutil.which("trinity")
        return ["trinity"] if found is not None and Path(found).samefile(started) else [str(started)]
    return ["trinity"]
