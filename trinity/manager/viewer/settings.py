"""Settings of the viewer's process, in its environment.

An address may hold a password, and everybody reads the words of a command.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

VARIABLE = "TRINITY_VIEWER"


@dataclass(frozen=True)
class ViewerSettings:
    """What is viewed.

    Attributes:
        url: of the database, or the path of an SQLite file.
        buffer: name of the experience buffer; empty: all of them.
        tokenizer: model whose tokenizer gives the texts of tokens; empty: none does.
        trust_remote_code: as `model.trust_remote_code`, for this tokenizer.
    """

    url: str
    buffer: str = ""
    tokenizer: str = ""
    trust_remote_code: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variable that hands these settings on."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def of_environment(cls) -> ViewerSettings:
        """Return the settings that this process was given."""
        return cls(**json.loads(os.environ[VARIABLE]))
