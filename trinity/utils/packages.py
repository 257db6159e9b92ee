"""Requirements on installed packages, checked before a run needs them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trinity.common.errors import EnvironmentProblem

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "trinity-rft"
# Packages that no extra brings, as they are in no package index, with the page that says how they are installed.
PAGES = {"web_agent_site": "https://github.com/princeton-nlp/WebShop"}
# Packages that demand other versions than Trinity does, and work with its own: an extra cannot bring them.
_WITHOUT_DEPENDENCIES = {"rm_gallery": "rm-gallery>=0.1.7,<0.2"}


def check_packages() -> None:
    """Compare the installed versions with those that Trinity states.

    Raises:
        EnvironmentProblem: one is missing, or of another version (E3302).
    """
    wrong = conflicts()
    if wrong:
        raise EnvironmentProblem(
            f"installed packages are not those that {DISTRIBUTION} {version(DISTRIBUTION)} works with: "
            f"{'; '.join(wrong)}; install them with `pip install --upgrade {DISTRIBUTION}`, and what needs the others "
            "in an environment of its own",
            code="E3302",
        )


def conflicts() -> list[str]:
    """Return what is missing, or of another version, of what is always needed."""
    try:
        stated = requirements(DISTRIBUTION)
    except PackageNotFoundError:  # run from its folder, not installed: there is nothing to compare with
        return []
    return [line for line in map(conflict_of, stated) if line]


def requirements(distribution: str) -> list[Requirement]:
    """Return what an installed package states that it needs, of all extras.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    from packaging.requirements import Requirement  # needed by few commands, and not there at once

    return [Requirement(line) for line in requires(distribution) or []]


def is_installed(package: str) -> bool:
    """Return whether a package can be imported.

    A folder of its name in the working directory does not count.

    W&B leaves such a folder where it has run.
    """
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def install_hint(extra: str) -> str:
    """Return the command that installs an extra."""
    beside = _WITHOUT_DEPENDENCIES.get(extra)
    and_it = f" && pip install --no-deps '{beside}'" if beside else ""
    return f"`pip install '{DISTRIBUTION}[{extra}]'{and_it}`"


def way_to_install(package: str) -> str:
    """Return how a package is installed whose extra has its name."""
    return f"the set-up of {PAGES[package]}" if package in PAGES else install_hint(package)


def postgresql_driver(url: str) -> str | None:
    """Return the package that connects SQLAlchemy to a PostgreSQL URL.

    None for other databases.

    Where the URL names none, it is the one that is installed, psycopg2 or psycopg.
    """
    backend, _, driver = url.partition("://")[0].partition("+")
    if backend != "postgresql":
        return None
    return driver or ("psycopg2" if is_installed("psycopg2") else "psycopg")


def conflict_of(needed: Requirement, *, extra: str = "") -> str | None:
    """Return what is installed in place of a requirement; None: it is met.

    Args:
        needed: the requirement.
        extra: the extra that is installed; one of another extra counts as met.
    """
    if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
        return None
    try:
        found = version(needed.name)
    except PackageNotFoundError:
        found = "nothing"
    else:
        if needed.specifier.contains(found, prereleases=True):
            return None
    return f"{needed.name}{needed.specifier} is needed, {found} is installed"


@contextmanager
def explained_imports() -> Iterator[None]:
    """Name the package that is missing or built for another PyTorch.

    Raises:
        EnvironmentProblem: an import failed (E3203).
    """
    try:
        yield
    except ImportError as error:
        way_out = "install it, or reinstall it"
        if "flash_attn" in "".join(traceback.format_exception(error)):
            way_out = (
                "Trinity needs no flash-attn, but transformers imports it where it is installed: remove it with `pip "
                "uninstall flash-attn`, or build it for the PyTorch that is installed with `pip install "
                "--no-build-isolation --force-reinstall --no-deps flash-attn`"
            )
        message = f"a package cannot be imported: {type(error).__name__}: {error}; {way_out}"
        raise EnvironmentProblem(message, code="E3203") from error
