"""What Sphinx needs to take the pages as they are: the table of contents, and links between the two languages.

A build has the pages of one language, under their places in the repository: `en/docs/running.html`,
`zh/docs/running.zh.html`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sphinx.search import languages

from tools.docs_site.site_map import FOLDERS, OTHER, ROOT, SUFFIX, index_of, language_of, parts, site_pages, twin_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

FENCE = re.compile(r"^(```|~~~)", flags=re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]*`")
EXAMPLES = {"en": "Examples", "zh": "示例"}
SCHEME = "twin"
"""Scheme of links to the other build, which Sphinx passes on unchecked. `tests/docs/test_pages.py` checks them."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this module does, as Sphinx calls it."""
    languages["zh"] = "tools.docs_site.chinese.SearchByPairs"  # type: ignore[assignment]
    app.connect("config-inited", _choose_pages)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def build_language(config: Config) -> str:
    """Return `en` or `zh`, whichever a build is of."""
    return "zh" if str(config.language).startswith("zh") else "en"


def _choose_pages(app: Sphinx, config: Config) -> None:
    """Leave the pages of the other language out, and name the first page."""
    language = build_language(config)
    config.root_doc = index_of(language).removesuffix(".md")  # type: ignore[attr-defined]
    config.include_patterns = site_pages(language)  # type: ignore[attr-defined]
    # What Sphinx need not walk through.
    folders = [name for name in os.listdir(ROOT) if (ROOT / name).is_dir() and name not in FOLDERS]
    config.exclude_patterns = folders  # type: ignore[attr-defined]


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the table of contents into the index, and turn links that Sphinx would not follow."""
    page, text = f"{docname}.md", source[0]
    if page == index_of(build_language(app.config)):
        text = with_contents(text, page)
    source[0] = _outside_of_code(text, lambda prose: LINK.sub(lambda link: f"]({turned(page, link[1])})", prose))


def with_contents(text: str, page: str) -> str:
    """Return the text of an index with a table of contents after each of its lists, and one of the examples.

    Examples come as they are: those that no list names are behind the last one.
    """
    language, lines, listed = language_of(page), text.splitlines(), parts(text)
    named = {each for part in listed for each in part.pages}
    examples = [each for each in site_pages(language) if each.startswith("examples/") and each not in named]
    if examples:
        lines += _contents(EXAMPLES[language], [f"/{each.removesuffix('.md')}" for each in examples])
    for part in reversed(listed):
        names = [f"{name} </{each.removesuffix('.md')}>" for each, name in part.pages.items()]
        lines[part.lines : part.lines] = _contents(part.title, names)
    return "\n".join(lines) + "\n"


def _contents(title: str, names: list[str]) -> list[str]:
    return ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *names, "```"]


def turned(page: str, link: str) -> str:
    """Return a link of a page as the site needs it.

    Args:
        page: path from the root of the repository.
        link: as it is written: a page, a file or a folder, relative to the page, or an address.
    """
    if re.match(r"[a-z]+:|#", link):
        return link
    name, mark, anchor = link.partition("#")
    folder = PurePosixPath(page).parent.as_posix()
    target = posixpath.normpath(posixpath.join(folder, name))
    if (ROOT / target).is_dir():
        target += f"/README{SUFFIX[language_of(page)]}"
        name = posixpath.relpath(target, folder)
    is_here = language_of(target) == language_of(page) or not (ROOT / twin_of(target)).exists()
    if not target.endswith(".md") or is_here:
        return f"{name}{mark}{anchor}"
    place = f"{OTHER[language_of(page)]}/{target.removesuffix('.md')}.html"
    return f"{SCHEME}:{posixpath.relpath(place, f'{language_of(page)}/{folder}')}{mark}{anchor}"


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text whose prose is changed, and whose blocks of code are not."""
    done: list[str] = []
    prose: list[str] = []
    is_code = False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            is_code = not is_code
            if is_code:
                done.append(change("".join(prose)))
                prose = []
            done.append(line)
        elif is_code:
            done.append(line)
        else:
            prose.append(line)
    return "".join([*done, change("".join(prose))])
