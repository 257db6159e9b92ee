"""One answer to a row of a veRL dataset, scored as veRL scores it."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trinity.common.errors import WorkflowError
from trinity.common.experience import Experience
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.rewards.verl import score_of
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.simple_mm_workflow import SimpleMMWorkflow
from trinity.common.workflows.task import Task, read_option

IMAGES = "images"
"""veRL's column of images."""


@WORKFLOWS.register_module("verl_workflow")
class VerlWorkflow(SimpleMMWorkflow):
    """One response to the row's messages, scored by source or your function.

    The row has its messages in the format's `messages_key`, its source in `source_key`, the truth in
    `reward_model.ground_truth`, and what a function of your own may want in `extra_info`.

    Arguments of the taskset's `workflow_args`: `source_key`; `path` and `function`, a Python file and the name of a
    function of `data_source`, `solution_str`, `ground_truth` and `extra_info` in it, with further `arguments`; it
    returns a number, or a mapping whose `score` is the reward and whose other numbers are metrics; `overlong`, the cost
    of length: `factor` times the share of `margin` that is used, at the end of `max_length` tokens; `is_scored`, false
    where a reward model scores.
    """

    needs = frozenset({"prompt", "images"})
    arguments = {
        "source_key": "data_source", "path": None, "function": "compute_score", "arguments": None, "overlong": None,
        "is_scored": True,
    }  # fmt: skip

    def reset(self, task: Task) -> None:
        """Prepare a task as `SimpleMMWorkflow.reset` does.

        Raises:
            WorkflowError: the row has images, and the format names no column of images (E5135).
        """
        super().reset(task)
        if self.raw_task.get(IMAGES) and read_option(task.format_args, "image_key") is None:
            raise WorkflowError(
                f"the row has images in its column {IMAGES!r}, which nothing reads; write `data.image_key: {IMAGES}`",
                code="E5135",
            )

    def _build_reward_fn(self) -> Any:
        """Return the user's function, or None for the scorer of the source."""
        path = self.workflow_args.get("path")
        if not path:
            return None
        function = loaded_function(str(path), str(self.workflow_args.get("function") or "compute_score"))
        given = self.workflow_args.get("arguments") or {}
        return functools.partial(function, **given) if given else function

    def scores(self, experience: Experience) -> dict[str, float]:
        """Return the reward of a response as `score`; the rest are metrics.

        Raises:
            RewardError: the row has no truth, or the response could not be scored.
        """
        if not self.workflow_args.get("is_scored", True):
            return {"score": 0.0}
        found = self._scored(experience)
        values = dict(found) if isinstance(found, Mapping) else {"score": found}
        if not isinstance(values.get("score"), int | float):
            raise RewardError(f"the score must be a number, or a mapping with `score`, got {found!r}", code="E5117")
        others = {str(name): float(value) for name, value in values.items() if isinstance(value, int | float)}
        reward = others.pop("score") + self._cost_of_length(experience)
        experience.metrics = {**(experience.metrics or {}), **others}
        experience.info = {**experience.info, **{str(k): v for k, v in values.items() if isinstance(v, str)}}
        return {"score": reward}

    def _scored(self, experience: Experience) -> Any:
        source = self.raw_task.get(str(self.workflow_args.get("source_key") or "data_source"))
        truth = (self.raw_task.get("reward_model") or {}).get("ground_truth")
        response = experience.response_text or ""
        if self.reward_fn is None:
            if not isinstance(truth, str) or not isinstance(source, str):
                raise RewardError(
                    "the row needs texts in reward_model.ground_truth and in the column of its source, got "
                    f"{truth!r} and {source!r}"
                )
            return score_of(source, response, truth)
        row = {"data_source": source, "solution_str": response, "ground_truth": truth}
        result = self.reward_fn(**row, extra_info=dict(self.raw_task.get("extra_info") or {}))
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    def _cost_of_length(self, experience: Experience) -> float:
        """Return what the length of a response costs, <= 0.

        It is 0 up to `max_length - margin` tokens and falls linearly to -`factor` at `max_length` (Yu et al. 2025,
        DAPO, arXiv:2503.14476, equation 13).
        """
        wanted = self.workflow_args.get("overlong")
        if not wanted:
            return 0.0
        excess = len(experience.tokens) - experience.prompt_length - (wanted["max_length"] - wanted["margin"])
        return min(-excess / wanted["margin"] * wanted["factor"], 0.0)


@functools.cache
def loaded_function(path: str, name: str) -> Callable[..., Any]:
    """Return a function of a Python file.

    Raises:
        WorkflowError: there is no such file, or no such function in it (E5137).
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise WorkflowError(f"custom_reward_function.path: there is no file {file}", code="E5137")
    spec = importlib.util.spec_from_file_location(f"trinity_reward_{file.stem}", file)
    assert spec is not None and spec.loader is not None, "a Python file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Any = vars(module).get(name)
    if not callable(function):
        raise WorkflowError(f"custom_reward_function.name: {file} defines no function {name}", code="E5137")
    found: Callable[..., Any] = function
    return found
