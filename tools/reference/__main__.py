"""Write the pages: `python -m tools.reference`."""

from __future__ import annotations

import sys

from tools.reference.pages import pages
from tools.reference.text import ROOT


def main() -> int:
    """Write every page in both languages; return the exit status."""
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
