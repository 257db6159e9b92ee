"""`trinity.run` and `trinity.run_async`: a run from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trinity.common.config import Config, Overrides, override_texts
from trinity.common.errors import TrinityError
from trinity.launch.run import RunOptions, RunResult, checked_plan, run_plan, unforeseen
from trinity.launch.stop import StopSignal
from trinity.program.background import Background
from trinity.program.events import Callbacks, CheckpointEvent, EvalEvent, Event, Listener, StepEvent
from trinity.program.reports import RunReport, run_report
from trinity.program.source import Given, folders, source_of


def run(
    config: Given | Config,
    overrides: Overrides | None = None,
    *,
    plugin_dirs: Sequence[str | Path] = (),
    accept_changes: Sequence[str] = (),
    on_step: Callable[[StepEvent], Any] | None = None,
    on_eval: Callable[[EvalEvent], Any] | None = None,
    on_checkpoint: Callable[[CheckpointEvent], Any] | None = None,
) -> RunReport:
    """Run all stages of a configuration, like the command `trinity run`.

    An interrupted run continues from its last checkpoint when the call is made again. Callbacks are called in this
    thread, in the order of the events, while the run continues in a thread of its own; the run does not wait for them.
    Signal handlers and the log's handlers stay the program's; environment and torch's settings are again as they were
    afterwards. It works where an event loop runs, as in a notebook, and blocks it; `run_async` does not.

    Args:
        config: a YAML file, its values as a mapping, or what `load_config` returned.
        overrides: `{"a.b": value}`, nested or dotted, or texts `a.b=value` as of `--set`.
        plugin_dirs: folders whose modules are imported before the run.
        accept_changes: keys that may differ from the run that is continued.
        on_step: called after every step of the explorer and of the trainer.
        on_eval: called after every evaluation.
        on_checkpoint: called when a checkpoint is written.

    Raises:
        ConfigErrors: all that is wrong with the configuration.
        CallbackError: a callback raised; the run was stopped after its step.
        TrinityError: what ended the run; its `code` says what, `exit_code` what the command would end with.
        KeyboardInterrupt: Ctrl-C; the run was stopped after its step, a second one does not wait for that.
    """
    callbacks = Callbacks(on_step, on_eval, on_checkpoint)
    return _background(config, overrides, plugin_dirs, accept_changes, callbacks).wait()


async def run_async(
    config: Given | Config,
    overrides: Overrides | None = None,
    *,
    plugin_dirs: Sequence[str | Path] = (),
    accept_changes: Sequence[str] = (),
    on_step: Callable[[StepEvent], Any] | None = None,
    on_eval: Callable[[EvalEvent], Any] | None = None,
    on_checkpoint: Callable[[CheckpointEvent], Any] | None = None,
) -> RunReport:
    """Run all stages without blocking the event loop; see `run`.

    Callbacks may be coroutine functions. A cancellation stops the run after its step.
    """
    callbacks = Callbacks(on_step, on_eval, on_checkpoint)
    return await _background(config, overrides, plugin_dirs, accept_changes, callbacks).wait_async()


def _background(
    config: Given | Config,
    overrides: Overrides | None,
    plugin_dirs: Sequence[str | Path],
    accept_changes: Sequence[str],
    callbacks: Callbacks,
) -> Background[RunReport]:
    source, stop = source_of(config), StopSignal()
    options = RunOptions(
        overrides=override_texts(overrides),
        plugin_dirs=folders(plugin_dirs),
        accepted_changes=tuple(accept_changes),
        stop=stop,
    )

    def work(send: Callable[[Event], object]) -> RunReport:
        listener = Listener(send)
        options.on_metrics, options.on_stage = listener.on_metrics, listener.on_stage
        try:
            plan = checked_plan(source, options)
            result: RunResult = run_plan(plan, options)
            return run_report(plan, result)
        except TrinityError:
            raise
        except Exception as error:
            raise unforeseen(error) from error

    return Background(work, callbacks=callbacks, stop=stop)
