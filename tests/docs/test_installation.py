"""A reader's first hour on a machine of his own: clone, environment, packages, `make demo`. `make nightly`.

Packages that are large are looked up and not installed (`--dry-run`); the rest is as the pages have it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.followed import commands, run_lines
from tests.docs.pages import ROOT, page
from tests.docs.terminal import answer, served

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

INSTALL = page("docs/install.md")
INSTALL_S = 1800.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Follow the first block of the page; its address of the repository is this folder."""
    folder = tmp_path_factory.mktemp("home")
    lines = commands(INSTALL, INSTALL.code("bash")[0])
    assert lines[1] == "cd trinity" and lines[-1] == ".venv/bin/trinity doctor"
    said = run_lines(lines, folder, of_reader(folder) | {"REPOSITORY": str(ROOT)}, timeout_s=INSTALL_S)
    assert "torch" in said[lines[-1]]
    return folder


def of_reader(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a reader whose home is the folder."""
    path = f"{Path(sys.base_prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"HOME": str(folder), "PATH": path, "PYTHONPATH": "", "VIRTUAL_ENV": "", **more}


def looked_up(lines: list[str]) -> list[str]:
    """Return lines that install nothing: an option, since a variable would hold for the packages that build ours."""
    return [line.replace("pip install ", "pip install --dry-run ") for line in lines]


@pytest.mark.runs("docs/install.md")
def test_the_page_is_followed_to_its_end(home: Path) -> None:
    for code in INSTALL.code("bash")[1:]:
        said = run_lines(looked_up(commands(INSTALL, code)), home / "trinity", of_reader(home), timeout_s=INSTALL_S)
        assert all("Would install" in output for line, output in said.items() if "pip install" in line)
    assert (home / "trinity" / "quickstart" / "quickstart.yaml").exists()


@pytest.mark.runs("README.md", "python3 -m venv", ".venv/bin/", "make demo")
@pytest.mark.runs("docs/quickstart.md", "make demo")
def test_the_first_screen_trains_and_its_studio_is_served(home: Path) -> None:
    clone = home / "trinity"
    assert set(page("README.md").lines(".venv/bin/")[:2]) < set(INSTALL.lines(".venv/bin/"))
    demo, *studio = [*page("README.md").lines("make demo"), *page("README.md").lines(".venv/bin/")[2:]]
    said = run_lines([demo, studio[0]], clone, of_reader(home), timeout_s=INSTALL_S)
    assert "held-out accuracy (greedy)" in said[demo]
    with served(studio[1], clone, r"studio: (http://127\.0\.0\.1:8080/[\w-]{20,}/) ", **of_reader(home)) as address:
        assert answer(f"{address}_stcore/health").text == "ok"


@pytest.mark.runs("docs/data-juicer.md", "pip install", "python3 -m venv", "export ")
@pytest.mark.runs("docs/engines.md", "pip install")
@pytest.mark.runs("docs/scale-out.md", "pip install")
@pytest.mark.runs("docs/studio.md", "pip install")
def test_the_extras_of_the_pages_are_found(home: Path) -> None:
    path = f"{home / 'trinity' / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for name in ("data-juicer", "engines", "scale-out", "studio"):
        for begins in ("pip install ", "python3 -m venv ", "export "):
            lines = looked_up(page(f"docs/{name}.md").lines(begins))
            said = run_lines(lines, home / "trinity", of_reader(home, PATH=path), timeout_s=INSTALL_S)
            assert all("Would install" in output for line, output in said.items() if "pip install" in line)


@pytest.mark.runs("CONTRIBUTING.md", "make format", "python -m tools.contents")
def test_what_a_contributor_runs_changes_nothing_in_a_tree_that_is_in_form(home: Path, tmp_path: Path) -> None:
    """With the packages of this environment, which `VENV` names."""
    for name in ("bin", "lib", "pyvenv.cfg"):
        (tmp_path / name).symlink_to(Path(sys.prefix) / name)
    (tmp_path / ".installed-dev").touch()
    lines = [*page("CONTRIBUTING.md").lines("make format"), *page("CONTRIBUTING.md").lines("python -m tools.contents")]
    variables = {"VENV": str(tmp_path), "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    run_lines([*lines, "git diff --exit-code"], home / "trinity", variables | {"PYTHONPATH": ""}, timeout_s=INSTALL_S)
