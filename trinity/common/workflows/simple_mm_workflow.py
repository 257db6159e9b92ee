"""One chat about images, scored by one reward function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity.common.errors import WorkflowError
from trinity.common.experience import Experience
from trinity.common.images.messages import MisplacedImages, with_images
from trinity.common.images.reading import UnreadableImage, image_bytes, images_of
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.task import Task
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.runtime.worker_thread import call_in_thread


@WORKFLOWS.register_module("simple_mm_workflow")
class SimpleMMWorkflow(SimpleWorkflow):
    """`SimpleWorkflow` with the images of the row's `image_key` column.

    They stand where the prompt has `<image>` or image parts, in order; a prompt without either has them before its
    text. A row may have none.
    """

    needs = frozenset({"prompt", "reward_fn", "images"})
    arguments = {}

    def reset(self, task: Task) -> None:
        """Prepare a task as `SimpleWorkflow.reset` does, and its images.

        Raises:
            WorkflowError: an image cannot be read (E5134).
        """
        super().reset(task)
        try:
            self.images = [image_bytes(each, folder=Path()) for each in images_of(task.column("image_key"))]
        except UnreadableImage as error:
            raise WorkflowError(f"the row's images cannot be read: {error}", code="E5134") from error

    def format_messages(self) -> list[dict[str, Any]]:
        """Return the messages to send, with the images.

        Raises:
            WorkflowError: the prompt has places for another number of images (E5134).
        """
        try:
            return with_images(super().format_messages(), self.images)
        except MisplacedImages as error:
            raise WorkflowError(f"the row {error}", code="E5134") from error


@WORKFLOWS.register_module("async_simple_mm_workflow")
class AsyncSimpleMMWorkflow(SimpleMMWorkflow):
    """`SimpleMMWorkflow` on the event loop; one call makes all rollouts."""

    arguments = {}
    is_async = True

    async def run_async(self) -> list[Experience]:
        """Return one scored experience per repeat, scored off the event loop."""
        responses = await self.model.chat_async(self.format_messages(), **self._tools(), **self.rollout_args)
        return await call_in_thread(self.score, responses)
