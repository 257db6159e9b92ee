"""Switches the run-time check of argument types and tensor shapes on for the mathematics and the trainer.

Runs that tests start as processes of their own are not checked, so that exactness and speed are those of a user.
"""

from __future__ import annotations

from jaxtyping import install_import_hook

CHECKED = ["trinity.algorithm", "trinity.trainer"]
# An integer is accepted where a number is asked for, as static type checkers do.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

install_import_hook(CHECKED, CHECKER)
