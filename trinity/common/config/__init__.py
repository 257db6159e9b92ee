"""Configuration: schema, reading, checking and derived values. Imports neither torch nor ray."""

from trinity.common.config.catalogue import Catalogue
from trinity.common.config.config import Config, StageConfig
from trinity.common.config.draft import Derived
from trinity.common.config.plan import Plan, StagePlan, examine, load_config, load_plan
from trinity.common.config.plugins import read_plugins, scan_plugins
from trinity.common.config.problems import ConfigErrors, Problem
from trinity.common.config.showing import dump_config, json_schema, origins

__all__ = [
    "Catalogue",
    "Config",
    "ConfigErrors",
    "Derived",
    "Plan",
    "Problem",
    "StageConfig",
    "StagePlan",
    "dump_config",
    "examine",
    "json_schema",
    "load_config",
    "load_plan",
    "origins",
    "read_plugins",
    "scan_plugins",
]
