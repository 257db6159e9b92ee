"""The site has every page in its table of contents, is built without warnings, and finds what is searched."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser import browsing
from tests.docs.pages import ROOT, all_pages
from tools.docs_site.extension import turned, with_contents
from tools.docs_site.site_map import index_of, parts, site_pages, twin_of

LANGUAGES = ("en", "zh")
each_language = pytest.mark.parametrize("language", LANGUAGES)


def _listed(language: str) -> list[str]:
    return [page for part in parts((ROOT / index_of(language)).read_text(encoding="utf-8")) for page in part.pages]


@each_language
def test_every_page_is_once_in_the_site_map(language: str) -> None:
    listed = _listed(language)
    pages = [page for page in site_pages(language) if page.startswith("docs/") and page != index_of(language)]
    missing = [page for page in pages if page not in listed]
    assert not missing, f"in no list of {index_of(language)}: add a line `- [Title](PAGE): what it answers` to one"
    assert len(set(listed)) == len(listed)


def test_both_site_maps_list_the_same_pages_in_the_same_order() -> None:
    pairs = zip(_listed("en"), _listed("zh"), strict=True)
    assert not [(page, other) for page, other in pairs if other not in (page, twin_of(page))]


def test_the_table_of_contents_is_made_of_the_lists() -> None:
    text = "## Guides\n\n- [Run](running.md): how\n  to run.\n- [Changes](../CHANGELOG.md)\n\nMore.\n\n## Empty\n"
    contents = "```{toctree}\n:hidden:\n:caption: Guides\n\nRun </docs/running>\nChanges </CHANGELOG>\n```\n"
    made = with_contents(text, "docs/index.md")
    assert made.startswith(text.replace(".md)\n\nMore", f".md)\n\n{contents}\nMore"))
    assert ":caption: Examples\n\n/examples/" in made and "/examples/serve_sums/README\n" in made


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("docs/running.md", "running.zh.md", "twin:../../zh/docs/running.zh.html"),
        ("docs/running.zh.md", "../README.md#install", "twin:../../en/README.html#install"),
        ("README.md", "README.zh.md", "twin:../zh/README.zh.html"),
        ("docs/running.zh.md", "configuration.zh.md#x", "configuration.zh.md#x"),
        ("docs/async.zh.md", "../examples/async_gsm8k", "../examples/async_gsm8k/README.zh.md"),
        ("docs/python.md", "../examples/notebook.ipynb", "../examples/notebook.ipynb"),
        ("docs/python.md", "https://example.com/a.zh.md", "https://example.com/a.zh.md"),
        ("docs/python.md", "#below", "#below"),
    ],
)
def test_a_link_leads_to_its_place_on_the_site(page: str, link: str, expected: str) -> None:
    assert turned(page, link) == expected


class _Page(HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, both languages at once."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "tools.docs_site", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and not done.stderr, done.stderr[-4000:]
    return out


@pytest.mark.slow
def test_the_site_has_every_page_and_its_links_lead_somewhere(site: Path) -> None:
    for page in all_pages():
        assert (site / ("zh" if page.is_chinese else "en") / page.name).with_suffix(".html").exists()
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            place, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", place):
                continue
            target = (path.parent / urllib.parse.unquote(place.partition("?")[0])).resolve() if place else path
            known = pages[target].anchors if target in pages else {""}
            if not target.exists() or (target in pages and urllib.parse.unquote(anchor) not in known):
                broken.append((path.relative_to(site).as_posix(), link))
    assert not broken


@pytest.mark.slow
def test_what_is_searched_is_found_in_both_languages(site: Path) -> None:
    """A Chinese query of several words, too: no dictionary knows where they end."""
    searches = {"en/search.html": ("prefix cache", "engines.html"), "zh/search.html": ("分类器", "rewards.zh.html")}
    with browsing() as browser:
        for page, (query, expected) in searches.items():
            browser.open(f"{site.as_uri()}/{page}?q={urllib.parse.quote(query)}")
            browser.find(f"//ul[@class='search']/li/a[contains(@href, {expected!r})]")
