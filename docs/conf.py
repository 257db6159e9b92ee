"""Settings of the site; `tools.docs_site` builds it, and says which pages are in it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = "Trinity"
extensions = ["myst_parser", "tools.docs_site.extension"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4
myst_url_schemes = {
    "http": None,
    "https": None,
    "mailto": None,
    "twin": {"url": "{{path}}#{{fragment}}"},
}
# A test names the pages that are in no list of the index, and examples come as they are.
suppress_warnings = ["toc.not_included"]

html_theme = "furo"
html_title = "Trinity"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
