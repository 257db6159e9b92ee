"""The snippets of the page about Python run, one after the other, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, Page
from tests.e2e.tiny_run import TinyRun

PAGE = Page(ROOT / "docs/python.md")


@pytest.mark.runs("docs/python.md", "python")
def test_the_snippets_run_in_their_order(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.write_rows([{"question": "1+1=", "answer": "2"}], "held.jsonl")
    held = {"name": "held", "path": "held.jsonl", "format": {"prompt_key": "question", "response_key": "answer"}}
    run.change(buffer__explorer_input__eval_tasksets=[held], explorer__eval_interval=1)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    program = "import sys\nsys.path.insert(0, sys.argv[1])\n" + "\n".join(PAGE.code("python"))
    (tmp_path / "program.py").write_text(program)
    words = [sys.executable, "program.py", str(ROOT)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    jobs = sorted(path.name for path in (tmp_path / "out" / "tiny").iterdir())
    assert jobs == ["fourth", "run", "second", "third"]
    for words in ("evaluated after step 2 ", "saved ", "trainer 2 "):
        assert f"\n{words}" in done.stdout, done.stdout
    assert str(tmp_path / "out/tiny/run/global_step_3") in done.stdout
