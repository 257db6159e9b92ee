"""`validate`: prompts that are longer than the run takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinity.common.config import Finding, StagePlan


def check_prompts_of(stage: StagePlan) -> Iterator[Finding]:
    """Yield, for each taskset with prompts that are too long, how many there are (W4014)."""
    from trinity.buffer.prompt_lengths import long_prompts
    from trinity.common.config.draft import path_of

    config = stage.config
    model, explorer_input = config.model, config.buffer.explorer_input
    if config.mode == "train" or model.max_prompt_tokens is None or model.max_model_len is None:
        return
    is_cut = model.enable_prompt_truncation
    limit = model.max_prompt_tokens if is_cut else model.max_model_len - 1
    key, what = ("max_prompt_tokens", "cut, and not trained on") if is_cut else ("max_model_len", "not answered")
    tasksets = {} if explorer_input.taskset is None else {"taskset": explorer_input.taskset}
    tasksets |= {f"eval_tasksets[{index}]": each for index, each in enumerate(explorer_input.eval_tasksets)}
    for name, taskset in tasksets.items():
        found = long_prompts(taskset, model=Path(model.model_path).expanduser(), limit=limit)
        if found is None or not found.num_long:
            continue
        place = f"buffer.explorer_input.{name}.path"
        yield stage.tree.problem(
            "W4014",
            path_of(place),
            f"{found.num_long} of the first {found.num_rows} prompts of `{place}` have more than {limit} tokens, the "
            f"longest {found.longest} before the chat template: they are {what}",
            suggestion=f"raise `model.{key}`, or leave them out",
        )
