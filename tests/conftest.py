"""Switches the run-time check of argument types and tensor shapes on for the mathematics and the trainer.

Runs that tests start as processes of their own are not checked, so that exactness and speed are those of a user. Nor
is anything where beartype is missing: `make gpu` runs with the packages that are there.
"""

from __future__ import annotations

from importlib.util import find_spec

from jaxtyping import install_import_hook

CHECKED = ["trinity.algorithm", "trinity.trainer"]
# An integer is accepted where a number is asked for, as static type checkers do.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

if find_spec("beartype") is not None:
    install_import_hook(CHECKED, CHECKER)
