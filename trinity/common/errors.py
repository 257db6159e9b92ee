"""Errors of the framework and the exit codes that `trinity` ends with.

Every error names the key or object, the rule, the value it got and the way out. The class decides the
exit code of the command, so that schedulers and shell chains see what kind of failure ended a run.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every `trinity` command."""

    DONE = 0
    USAGE = 2
    ENVIRONMENT = 3
    DATA = 4
    RUNTIME = 5
    NUMERIC = 6
    CHECKPOINT = 7
    ALREADY_RUNNING = 8
    STARVED = 9
    INTERRUPTED = 130
    TERMINATED = 143


class TrinityError(Exception):
    """Base of all errors that the framework raises on purpose.

    Args:
        message: which object, the rule, the value got, the way out.
        code: stable identifier such as `E1203`, listed in the documentation.
    """

    exit_code: ExitCode = ExitCode.RUNTIME
    default_code = "E5000"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class ConfigError(TrinityError):
    """An error in a YAML file, an override or a command line."""

    exit_code = ExitCode.USAGE
    default_code = "E1000"


class EnvironmentProblem(TrinityError):
    """A path, device, port, package or permission that this machine lacks."""

    exit_code = ExitCode.ENVIRONMENT
    default_code = "E3000"


class DataError(TrinityError):
    """A dataset, or one of its rows, cannot be used."""

    exit_code = ExitCode.DATA
    default_code = "E4000"


class WorkflowError(TrinityError):
    """User code failed or returned something unusable.

    User code is a workflow, a reward function or an operator.
    """

    default_code = "E5100"


class StoreError(TrinityError):
    """The experience store cannot be read or written.

    Also raised when a fenced consumer tries to commit.
    """

    default_code = "E5200"


class DeadlineError(TrinityError):
    """A wait reached its deadline.

    The message names the wait and the setting that bounds it.
    """

    default_code = "E5300"


class StarvedError(TrinityError):
    """No experience arrived before `max_read_timeout`.

    The producers are still open.
    """

    exit_code = ExitCode.STARVED
    default_code = "E5400"


class SyncError(TrinityError):
    """Weights could not be carried from the trainer to the explorer."""

    default_code = "E5500"


class EngineError(TrinityError):
    """The inference engine failed or was asked for something it cannot do."""

    default_code = "E5600"


class EnginesLostError(EngineError):
    """No inference engine served in `explorer.engine_recovery_timeout`."""

    default_code = "E5630"


class OutOfMemoryError(TrinityError):
    """The explorer or the trainer ran out of memory.

    The message holds the memory table and the keys to change.
    """

    default_code = "E5700"


class ServiceError(TrinityError):
    """A service beside the run failed, or refused what it was asked."""

    default_code = "E5800"


class NumericError(TrinityError):
    """Loss, gradient norm, log-probability or reward is not finite."""

    exit_code = ExitCode.NUMERIC
    default_code = "E6000"


class CheckpointError(TrinityError):
    """A checkpoint is missing, incomplete, or from another run or version."""

    exit_code = ExitCode.CHECKPOINT
    default_code = "E7000"


class AlreadyRunningError(TrinityError):
    """Another process holds the lock of this job folder."""

    exit_code = ExitCode.ALREADY_RUNNING
    default_code = "E8000"


class NotAvailableError(ConfigError):
    """A key that the schema knows and this version cannot serve yet."""

    default_code = "E1900"
