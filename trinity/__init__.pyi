"""What `trinity` offers, for type checkers; the names are imported when they are used."""

from trinity.common.config import Config as Config
from trinity.common.config import ConfigErrors as ConfigErrors
from trinity.common.errors import AlreadyRunningError as AlreadyRunningError
from trinity.common.errors import CheckpointError as CheckpointError
from trinity.common.errors import ConfigError as ConfigError
from trinity.common.errors import DataError as DataError
from trinity.common.errors import TrinityError as TrinityError
from trinity.common.experience import Experience as Experience
from trinity.common.rewards import REWARD_FUNCTIONS as REWARD_FUNCTIONS
from trinity.common.rewards import RewardFn as RewardFn
from trinity.common.workflows import WORKFLOWS as WORKFLOWS
from trinity.common.workflows import Task as Task
from trinity.common.workflows import Workflow as Workflow
from trinity.program.check import load_config as load_config
from trinity.program.check import validate as validate
from trinity.program.evaluate import evaluate as evaluate
from trinity.program.events import CallbackError as CallbackError
from trinity.program.events import CheckpointEvent as CheckpointEvent
from trinity.program.events import EvalEvent as EvalEvent
from trinity.program.events import StepEvent as StepEvent
from trinity.program.reports import EvaluationReport as EvaluationReport
from trinity.program.reports import RunReport as RunReport
from trinity.program.reports import StageReport as StageReport
from trinity.program.reports import ValidationReport as ValidationReport
from trinity.program.run import run as run
from trinity.program.run import run_async as run_async

__version__: str
