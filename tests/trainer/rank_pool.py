"""Processes that play the ranks of a trainer: real torch.distributed over gloo, started once for a test module."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from trinity.trainer.verl.parallel.ranks import Ranks

WAIT_S = 300.0
GROUP_S = 240.0
END_S = 5.0


class RankPool:
    """`size` processes that wait for calls; as a context it ends them."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.trainer.rank_calls"])
        self._folder = tempfile.TemporaryDirectory()
        self._number = 0
        pipes = [context.Pipe() for _ in range(size)]
        self._pipes = [own for own, _ in pipes]
        self._processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(END_S)  # in order: it removes the sockets over which its tensors went
            process.kill()
            process.join(END_S)
        self._folder.cleanup()

    def run(self, world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what `function(ranks, *args)` returns on each of the first `world` processes, as one group."""
        self._number += 1
        meet = Path(self._folder.name) / f"meet_{self._number}"
        pipes = self._pipes[:world]
        for rank, pipe in enumerate(pipes):
            pipe.send((rank, world, str(meet), function, args))
        answers = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(WAIT_S), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        failures = [value for is_fine, value in answers if not is_fine]
        # One rank that fails makes the others lose it.
        assert not failures, min(failures, key=lambda text: "Connection closed by peer" in text)
        return [value for _, value in answers]


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            rank, world, meet, function, args = pipe.recv()
        except EOFError:  # nobody has calls any more
            return
        try:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{meet}", rank=rank, world_size=world, timeout=timedelta(seconds=GROUP_S)
            )
            pipe.send((True, function(Ranks(rank, world), *args)))
        except BaseException:  # noqa: BLE001  the caller sees what happened here
            pipe.send((False, traceback.format_exc()))
        finally:
            # After a call that failed it may fail as well, and what the caller needs is said already.
            with suppress(Exception):
                torch.distributed.destroy_process_group()
            # It knows meshes by their shape, and would return those of groups that are gone.
            _clear_sharding_prop_cache()
