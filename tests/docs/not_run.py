"""The commands of the pages that no test runs, each with the reason."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tests.docs.pages import Snippet

EIGHT_GPUS = "needs eight GPUs; `tests/docs/test_full_size.py` reads its variables and looks at the memory"
FIGURES = "makes the figures of the page, in minutes or hours; `tests/benchmarks` computes the same, small"
# Pages, how the command begins, why it is not run.
COMMANDS = (
    ("*", "docker ", "needs a registry of images and a daemon"),
    ("*", "kubectl ", "needs a cluster of Kubernetes with the operator KubeRay"),
    ("*", "nvidia-smi", "needs an NVIDIA GPU"),
    ("*", "make gpu", "needs an NVIDIA GPU; `tests/tools/test_gpu.py` runs its parts"),
    ("*", "ray stop", "ends every Ray of the machine, those of other tests, too"),
    ("*", "make test", "is what runs this test: `.ci/run`"),
    ("*", "make check", "is what runs beside this test: `.ci/run`"),
    ("docs/install.md", '.venv/bin/pip install "torch>=2.11,<2.14" --index-url ', "needs PyTorch's own index"),
    ("CONTRIBUTING.md", "python -m tools.leftovers", "takes half an hour; `tests/e2e/test_leftovers.py` runs a part"),
    ("benchmarks/README.md", "python benchmarks/", FIGURES),
)
# The same of whole blocks, which are what their first line makes of them.
BLOCKS = (
    ("examples/*/README.md", "export TRINITY_MODEL_PATH=", EIGHT_GPUS),
    ("benchmarks/README.md", "trinity quickstart --dir one", FIGURES),
)


def reason(snippet: Snippet) -> str:
    """Return why no test runs it; empty where one does."""
    return next((row[2] for row in (*COMMANDS, *BLOCKS) if is_of(row, snippet)), "")


def is_of(row: tuple[str, str, str], snippet: Snippet) -> bool:
    """Return whether a row names it."""
    pages, begins, _ = row
    return fnmatchcase(snippet.page, pages) and (snippet.block if row in BLOCKS else snippet.text).startswith(begins)
