"""The studio's pages and the report in a real browser, checked by axe-core in both languages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.accessibility import problems
from tests.browser import Browser, browsing
from tests.e2e.tiny_run import TinyRun
from tests.manager.test_studio import job
from tests.manager.test_viewer import Serving
from tests.summary.test_shown import SUMMARY
from trinity.manager.language import LANGUAGES
from trinity.manager.studio.words import WORDS
from trinity.summary.curves import StageCurves
from trinity.summary.page import page
from trinity.summary.picture import panels_of

SAMPLE = {"task": 3, "reward": 0.5, "prompt": "1+1=", "response": "2", "truth": "2"}


def pick(browser: Browser, text: str) -> None:
    """Choose a radio button by its text."""
    browser.click(f"//*[@data-testid='stRadio']//label//*[normalize-space(text())={text!r}]")
    browser.settle()


def check_pages(browser: Browser, language: str) -> dict[str, list[str]]:
    """Return what is wrong with each page in a language, which is chosen first."""

    def word(name: str) -> str:
        return getattr(WORDS[name], language)

    pick(browser, LANGUAGES[language])
    pick(browser, word("page_configure"))
    pick(browser, word("form_beginner"))
    found = {"beginner": problems(browser)}
    assert browser.run("return document.documentElement.lang") == language
    pick(browser, word("form_expert"))
    for part in ("part_model", "part_buffer", "part_explorer", "part_trainer"):
        pick(browser, word(part))
        found[part] = problems(browser)
    for name in ("page_runs", "page_compare"):
        pick(browser, word(name))
        browser.find("//*[@data-testid='stVegaLiteChart']")
        found[name] = problems(browser)
    return {name: each for name, each in found.items() if each}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_nothing_serious_is_wrong_with_the_pages_of_the_studio(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(TinyRun(tmp_path).change(trainer__total_stesp=3).tree))
    for name, lr in (("a", 0.1), ("b", 0.2)):
        job(tmp_path / name, lr=lr, rewards=[0.1, 0.2, lr + 0.3], status="failed")
    with Serving(tmp_path, "studio", "--port", "0", "--config", "run.yaml") as studio, browsing() as browser:
        studio.get(studio.address)
        browser.open(studio.address)
        browser.find("//input[@aria-label='Project (project)']")
        browser.settle()
        assert check_pages(browser, "en") == {}
        assert check_pages(browser, "zh") == {}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_nothing_serious_is_wrong_with_a_report(tmp_path: Path) -> None:
    panels = panels_of("run", StageCurves(reward=[(1, 0.0), (2, 1.0)]))
    with browsing() as browser:
        for is_chinese in (False, True):
            file = tmp_path / f"{is_chinese}.html"
            file.write_text(page(replace(SUMMARY, error="it failed"), panels, [SAMPLE], is_chinese=is_chinese))
            browser.open(file.as_uri())
            assert problems(browser) == []
            # A page in which something is wrong, so that the check is known to work.
            browser.run("document.querySelector('svg').removeAttribute('aria-labelledby')")
            assert [each.split(":")[0] for each in problems(browser)] == ["serious svg-img-alt"]
