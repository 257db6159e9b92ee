"""The parameter of the guide, registered by a plugin, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.browser import Browser, browsing
from tests.e2e.tiny_run import TinyRun
from tests.manager.test_accessibility import pick
from tests.manager.test_registered import GUIDE, IN_A_PLUGIN
from tests.manager.test_studio_in_a_browser import picture
from tests.manager.test_viewer import Serving
from trinity.manager.studio.words import WORDS

LABEL = "Train Batch Size"


def value(browser: Browser) -> str:
    """Return what stands in the field of the parameter."""
    return str(browser.run("return document.querySelector(`input[aria-label='${arguments[0]}']`).value", LABEL))


@pytest.mark.slow
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_a_parameter_that_a_plugin_registers_is_a_field_and_a_line_of_the_file(tmp_path: Path) -> None:
    """Of four GPUs one is the engine's; the batch is sixteen rollouts for each of the trainer's."""
    tree = TinyRun(tmp_path).change(cluster__node_num=1, cluster__gpu_per_node=4).tree
    tree["buffer"].pop("train_batch_size", None)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own_parameter.py").write_text(IN_A_PLUGIN + GUIDE)
    words = ("studio", "--port", "0", "--config", "run.yaml", "--plugin-dir", "plugins")
    with Serving(tmp_path, *words) as studio, browsing() as browser:
        studio.get(studio.address)
        browser.open(studio.address)
        browser.find("//input[@aria-label='Project (project)']")
        browser.settle()
        pick(browser, WORDS["form_expert"].en)
        pick(browser, WORDS["part_buffer"].en)
        browser.find(f"//input[@aria-label={LABEL!r}]")
        assert value(browser) == "48"
        browser.wait(lambda: "E1824" in browser.text(), "that 48 rollouts are not those of an explore step")
        browser.write("Tasks per explore step (buffer.batch_size)", "24")
        browser.wait(lambda: "  batch_size: 24" in browser.text(), "the line of the tasks")
        browser.wait(lambda: "E1824" not in browser.text(), "that 48 rollouts are those of an explore step")
        assert "train_batch_size: 48" in browser.text()
        browser.write(LABEL, "57")
        browser.wait(lambda: "train_batch_size: 57" in browser.text(), "the line that changes with the field")
        picture(browser, "studio-own-parameter")
