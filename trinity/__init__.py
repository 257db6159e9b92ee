"""Trinity: reinforcement fine-tuning of language models from one YAML.

`trinity.run` and its neighbours are imported when they are used, so that `import trinity` costs nothing. What a type
checker knows of them stands in `__init__.pyi`.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "AlreadyRunningError": "trinity.common.errors",
    "CallbackError": "trinity.program.events",
    "CheckpointError": "trinity.common.errors",
    "CheckpointEvent": "trinity.program.events",
    "Config": "trinity.common.config",
    "ConfigError": "trinity.common.errors",
    "ConfigErrors": "trinity.common.config",
    "DataError": "trinity.common.errors",
    "EvalEvent": "trinity.program.events",
    "EvaluationReport": "trinity.program.reports",
    "Experience": "trinity.common.experience",
    "REWARD_FUNCTIONS": "trinity.common.rewards",
    "RewardFn": "trinity.common.rewards",
    "RunReport": "trinity.program.reports",
    "StageReport": "trinity.program.reports",
    "StepEvent": "trinity.program.events",
    "Task": "trinity.common.workflows",
    "TrinityError": "trinity.common.errors",
    "ValidationReport": "trinity.program.reports",
    "WORKFLOWS": "trinity.common.workflows",
    "Workflow": "trinity.common.workflows",
    "evaluate": "trinity.program.evaluate",
    "load_config": "trinity.program.check",
    "run": "trinity.program.run",
    "run_async": "trinity.program.run",
    "validate": "trinity.program.check",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
