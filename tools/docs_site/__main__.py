"""Build the site: `python -m tools.docs_site [--out site]`; a warning ends it with status 1."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.docs_site.site_map import ROOT, index_of

LANGUAGES = {"en": "en", "zh": "zh_CN"}
FIRST = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Trinity</title>
<meta http-equiv="refresh" content="0; url={english}"></head>
<body><p><a href="{english}">English</a> · <a href="{chinese}">中文</a></p></body></html>
"""


def build(out: Path) -> int:
    """Build both languages, at once, and a page that leads to them; return the exit status.

    Args:
        out: folder of the site, `en` and `zh` in it; what was there is replaced.
    """
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as kept:
        builds = [subprocess.Popen(command(language, out, Path(kept)), cwd=ROOT) for language in LANGUAGES]
        status = max(abs(each.wait()) for each in builds)
    english, chinese = (f"{name}/{index_of(name).removesuffix('.md')}.html" for name in LANGUAGES)
    (out / "index.html").write_text(FIRST.format(english=english, chinese=chinese), encoding="utf-8")
    return min(status, 1)


def command(language: str, out: Path, kept: Path) -> list[str]:
    """Return the command that builds one language; `kept` is a folder for what it has read."""
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", "docs", "-D", f"language={LANGUAGES[language]}"]
    return [sys.executable, "-m", "sphinx", *options, "-d", str(kept / language), str(ROOT), str(out / language)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.docs_site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site")
    sys.exit(build(parser.parse_args().out.resolve()))
