"""What a run continues from: `continue_from_checkpoint`, and veRL's own keys for it."""

from __future__ import annotations

import re
from pathlib import PurePath

from trinity.common.config.draft import Draft

CONTINUE = "continue_from_checkpoint"
MODE = "trainer.trainer_config.trainer.resume_mode"
PATH = "trainer.trainer_config.trainer.resume_from_path"


def resolve_resume(draft: Draft) -> None:
    """Bring `resume_mode` and `continue_from_checkpoint` together, and check the path that is asked for."""
    mode, path = draft.get(MODE), draft.get(PATH)
    continues = draft.get(CONTINUE)
    if mode == "disable" and not draft.is_given(CONTINUE):
        draft.derive(CONTINUE, False, "resume_mode: disable")
    elif (mode == "disable" and continues) or (mode == "resume_path" and not continues):
        draft.problem(
            "E1846",
            MODE,
            f"`{MODE}: {mode}` contradicts {CONTINUE}: {str(continues).lower()}",
            involves=(CONTINUE,),
            suggestion=f"remove one of them, or write `{CONTINUE}: {str(not continues).lower()}`",
        )
    if mode != "resume_path" and path:
        draft.problem(
            "E1847",
            PATH,
            f"`{PATH}` has an effect only with resume_mode resume_path, got {mode}",
            involves=(MODE,),
            suggestion="write `resume_mode: resume_path`, or remove the path",
        )
    if mode == "resume_path" and (not path or not re.fullmatch(r"global_step_\d+", PurePath(path).name)):
        draft.problem(
            "E1847",
            PATH,
            f"`{PATH}` must name a checkpoint, got {path or 'nothing'}",
            rule="a folder global_step_<N> of this job",
            involves=(MODE,),
            suggestion="write the path of a folder global_step_<N>",
        )
