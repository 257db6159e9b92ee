"""What axe-core finds wrong with a page for those who cannot see it or use no mouse.

The script is the one in the package `axe-playwright-python`; Playwright itself is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec

import pytest

from tests.browser import Browser

PACKAGE = "axe_playwright_python"
HOW = "axe-core is not installed, and this test needs it: run `pip install axe-playwright-python` (extra `dev`)"
IMPACTS = ("serious", "critical")
LOOKS = 5
"""Most looks at a page that changes all the time; one takes many seconds on a busy machine."""
_AT_REST = """
return !document.getAnimations().some(each => each instanceof CSSTransition && each.playState === 'running')
"""
_NEVER_PALE = """
const style = document.createElement('style');
style.textContent = '[data-stale] {opacity: 1 !important; transition: none !important}';
document.head.append(style);
"""
_RUN = """
const [impacts, exceptions] = arguments;
return axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
  .filter(each => impacts.includes(each.impact))
  .flatMap(each => each.nodes.filter(node => {
    const element = document.querySelector(node.target[0]);
    return !exceptions.some(([rule, within]) => rule === each.id && element && element.closest(within));
  }).map(node =>
    `${each.impact} ${each.id}: ${each.help}\\n  ${node.target.join(' ')}\\n  ${node.html.slice(0, 200)}`)));
"""


@dataclass(frozen=True)
class Except:
    """What is not asked of elements that are another's.

    Attributes:
        rule: of axe-core.
        within: CSS selector of the elements, or of what they are in.
        reason: why nothing can be done about it here.
    """

    rule: str
    within: str
    reason: str


STREAMLIT = (
    Except(
        "svg-img-alt",
        "[data-testid=stVegaLiteChart] .layer_2_marks",
        "the layer of a line chart's pointer, which Vega draws empty with the role of a picture; the lines have names",
    ),
)
"""Markup of Streamlit that no page can change."""


def problems(browser: Browser, *, exceptions: Iterable[Except] = STREAMLIT) -> list[str]:
    """Return what is serious or critical of the page that is open.

    What Streamlit is about to replace is pale, and of a run's page it replaces something every other second: such
    elements keep their colours here. A page with problems that has changed meanwhile is looked at again, and what is
    wrong with it is what each look has found.

    Args:
        browser: with the page.
        exceptions: what is left out.

    Returns:
        A text for each: impact and rule, where it is, and its HTML.
    """
    if find_spec(PACKAGE) is None:
        pytest.fail(HOW, pytrace=False)
    browser.run(resources.files(PACKAGE).joinpath("axe.min.js").read_text(encoding="utf-8"))
    browser.run(_NEVER_PALE)
    excepted = [(each.rule, each.within) for each in exceptions]
    common: list[str] | None = None
    for _ in range(LOOKS):
        browser.settle()
        browser.wait(lambda: bool(browser.run(_AT_REST)), "the end of what moves on the page")
        found = browser.run(_RUN, IMPACTS, excepted)
        if not found or browser.is_still():
            return list(found)
        common = [each for each in found if common is None or each in common]
        if not common:
            break
    return common or []
