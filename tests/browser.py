"""A real browser for tests: Debian's `chromium`, headless, driven by its `chromium-driver`."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

HOW = (
    "Chromium or its driver is not installed, and these tests need a real browser: run `apt-get install chromium "
    "chromium-driver` (Debian), or have `chromium` and `chromedriver` on the PATH"
)
WAIT_S = 120.0
ROW_PX = 35
"""Height of a row of Streamlit's tables."""
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # of the protocol
_KEYS = {"enter": "\ue007", "control": "\ue009", "backspace": "\ue003", "null": "\ue000", "escape": "\ue00c"}
CONTROLS = ("button", "textbox", "searchbox", "spinbutton", "combobox", "checkbox", "radio", "switch", "slider", "tab")
"""Roles of what a person operates."""


def binaries() -> tuple[str, str]:
    """Return the browser and its driver."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.fail(HOW, pytrace=False)
    return browser, driver


class Browser:
    """One window of a browser, by the protocol WebDriver.

    Args:
        address: of the driver.
        browser: the program.
        profile: a folder for the browser's own files.
    """

    def __init__(self, address: str, browser: str, profile: Path) -> None:
        self._client = httpx.Client(base_url=address, timeout=WAIT_S, trust_env=False)
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,2000"]
        arguments += [f"--user-data-dir={profile}", "--no-first-run", "--disable-background-networking"]
        arguments += ["--no-sandbox"] if os.getuid() == 0 else []
        options = {"browserName": "chrome", "goog:chromeOptions": {"binary": browser, "args": arguments}}
        made = self._client.post("/session", json={"capabilities": {"alwaysMatch": options}})
        self._session = f"/session/{_value(made)['sessionId']}"

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.delete(self._session)
        self._client.close()

    def open(self, address: str) -> None:
        """Go to a page."""
        self._post("/url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script of the page returns."""
        return self._post("/execute/sync", script=script, args=list(arguments))

    def find(self, xpath: str, *, wait_s: float = WAIT_S) -> str:
        """Return the first element of a path once it is there."""
        found: list[dict[str, str]] = []

        def is_there() -> bool:
            found[:] = self._post("/elements", using="xpath", value=xpath)
            return bool(found)

        self.wait(is_there, xpath, wait_s=wait_s)
        return found[0][_ELEMENT]

    def wait(self, condition: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> None:
        """Wait until a condition holds; `what` names it."""
        end = time.monotonic() + wait_s
        while not condition():
            assert time.monotonic() < end, f"not seen within {wait_s:g} s: {what}\n{self.text()[-3000:]}"
            time.sleep(0.1)

    def click(self, xpath: str) -> None:
        """Click an element once it is there, as often as it is replaced meanwhile."""
        self._again(lambda: self._post(f"/element/{self.find(xpath)}/click"))

    def write(self, label: str, text: str) -> None:
        """Replace the text of the field with a label, and leave the field."""
        path = f"//input[@aria-label={label!r}]"

        def typed() -> None:
            element = self.find(path)
            self._post(f"/element/{element}/click")
            self._keys(element, _KEYS["control"] + "a" + _KEYS["null"] + _KEYS["backspace"])
            self._keys(element, text + _KEYS["enter"])

        self._again(typed)
        self.settle()

    def choose(self, label: str, option: str) -> None:
        """Choose an option of the list with a label."""
        element = self.find(f"//input[@role='combobox'][contains(@aria-label, {label!r})]")
        self._post(f"/element/{element}/click")
        self._keys(element, option)
        self.find(f"//*[normalize-space(text())={option!r}]")
        self._keys(element, _KEYS["enter"])  # what is written in full comes first
        self.settle()

    def press(self, button: str) -> None:
        """Press the button with a text; Streamlit has a "Stop" of its own beside the page."""
        self.click(f"//*[@data-testid='stMain']//button[normalize-space()={button!r}]")
        self.settle()

    def press_row(self, number: int) -> None:
        """Choose the row of the first table; it is a picture, whose rows have no elements.

        Args:
            number: of the row, from 1.
        """
        canvas = self.find("//*[@data-testid='stMain']//*[@data-testid='stDataFrame']//canvas[@data-testid]")
        top = self.run("const at = arguments[0].getBoundingClientRect(); return [at.x, at.y]", {_ELEMENT: canvas})
        place = {"x": round(top[0]) + ROW_PX // 2, "y": round(top[1]) + ROW_PX * number + ROW_PX // 2}
        move = {"type": "pointerMove", "duration": 0, "origin": "viewport", **place}
        press = [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move, *press]}
        self._post("/actions", actions=[mouse])
        self.settle()

    def settle(self) -> None:
        """Wait until the page of Streamlit has been shown again."""
        time.sleep(0.2)  # what was pressed is on its way
        self.wait(self.is_still, "the end of the page's script")

    def is_still(self) -> bool:
        """Return whether no script of Streamlit's is changing the page."""
        return bool(self.run("return document.querySelector('[data-testid=stStatusWidget]') === null"))

    def text(self) -> str:
        """Return the text of the page."""
        return str(self.run("return document.body.innerText"))

    def controls(self) -> list[tuple[str, str]]:
        """Return role and name of everything that is operated, as a screen reader is told."""
        nodes = self._post("/goog/cdp/execute", cmd="Accessibility.getFullAXTree", params={})["nodes"]
        shown = [node for node in nodes if not node.get("ignored") and "role" in node]
        return [
            (node["role"]["value"], str(node.get("name", {}).get("value", "")))
            for node in shown
            if node["role"]["value"] in CONTROLS
        ]

    def picture(self, file: Path) -> None:
        """Write a picture of the window."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(_value(self._client.get(f"{self._session}/screenshot"))))

    def _keys(self, element: str, text: str) -> None:
        self._post(f"/element/{element}/value", text=text)

    def _again(self, act: Callable[[], Any]) -> None:
        """Act on elements that the page may replace or cover at any moment."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                act()
                return
            except RuntimeError as error:
                is_passing = re.search("stale element|click intercepted|not interactable", str(error))
                if not is_passing or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def _post(self, path: str, **values: Any) -> Any:
        return _value(self._client.post(self._session + path, json=values))


def _value(answer: httpx.Response) -> Any:
    value = answer.json()["value"]
    if answer.is_error:
        raise RuntimeError(f"{value['error']}: {value['message']}")
    return value


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Give a browser, which ends with the block."""
    browser, driver = binaries()
    with tempfile.TemporaryDirectory(prefix="chromium", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"HOME": folder},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            found = next((m for line in process.stdout if (m := re.search(r"successfully on port (\d+)", line))), None)
            assert found, f"the driver ended with status {process.wait()}"
            window = Browser(f"http://127.0.0.1:{found[1]}", browser, Path(folder) / "profile")
            try:
                yield window
            finally:
                window.close()
        finally:
            process.kill()
            process.wait()
