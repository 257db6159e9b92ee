"""Tables of text as Markdown."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def markdown_table(table: pd.DataFrame) -> str:
    """Return a table whose cells are shown as they are."""
    names = [str(name) for name in table.columns]
    lines = [names, ["---"] * len(names), *table.itertuples(index=False)]
    return "\n".join("|".join(["", *map(_cell, line), ""]) for line in lines)


def _cell(value: Any) -> str:
    return html.escape(str(value)).replace("|", "&#124;").replace("\n", "<br>")
