"""`load_plan` and `load_config` read a YAML file and report all problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trinity.common.config.catalogue import Catalogue
from trinity.common.config.checking import check_schema
from trinity.common.config.config import Config
from trinity.common.config.dialects import open_source
from trinity.common.config.dialects.pasted import with_places
from trinity.common.config.dotted import with_dotted
from trinity.common.config.given import ConfigSource
from trinity.common.config.interpolation import resolve_interpolations
from trinity.common.config.keys import key_named, path_of
from trinity.common.config.problems import ConfigErrors, Finding, unique
from trinity.common.config.reading import read_file
from trinity.common.config.renames import check_older_names
from trinity.common.config.resolution import Derived
from trinity.common.config.resolve import resolve, soften
from trinity.common.config.saved import as_written, hidden_secrets, references, written_keys
from trinity.common.config.stages import split_stages
from trinity.common.config.tree import Tree
from trinity.utils.log import add_secret, is_secret_name


@dataclass(frozen=True)
class FetchedPath:
    """An address of a configuration, of which a copy is read.

    Attributes:
        key: whose value it is.
        address: without secrets.
        path: the file or folder on this machine.
        sha256: of its content.
    """

    key: str
    address: str
    path: str
    sha256: str


@dataclass(frozen=True)
class StagePlan:
    """One stage of a run; a run without stages has one, named `None`.

    Attributes:
        name: the stage's name.
        config: the complete configuration; no derived value is left open.
        derived: the values that were not written, with their reasons.
        warnings: what to look at, although the run can start.
        tree: the values as written, with their places.
        catalogue: the names that it may use, including those of plugins, with their declarations.
        references: the secrets that were written as references to the environment, by key.
        fetched: the addresses in place of which `config` has local copies.
    """

    name: str | None
    config: Config
    derived: list[Derived] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    tree: Tree = field(default_factory=Tree)
    catalogue: Catalogue = field(default_factory=Catalogue)
    references: Mapping[str, str] = field(default_factory=dict)
    fetched: tuple[FetchedPath, ...] = ()

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the local copies in `config`, by their paths."""
        return {each.path: each.address for each in self.fetched}

    def placed(self, finding: Finding) -> Finding:
        """Return a finding about the stage with its place in the file."""
        details = {"value": finding.value, "suggestion": finding.suggestion}
        return self.tree.problem(finding.code, path_of(key_named(finding.key)), finding.message, **details)


@dataclass(frozen=True)
class Plan:
    """The run that a configuration describes.

    Attributes:
        source: the file, or the values that a program gave.
        stages: the stages in order.
        warnings: all warnings, once each.
    """

    source: ConfigSource
    stages: list[StagePlan]
    warnings: list[Finding] = field(default_factory=list)


def load_plan(
    source: ConfigSource,
    overrides: Sequence[str] = (),
    *,
    catalogue: Catalogue,
    schema_only: bool = False,
    cwd: Path | None = None,
) -> Plan:
    """Return the stages of a configuration, each complete.

    Args:
        source: the YAML file, or its values.
        overrides: `a.b=c`, applied in order.
        catalogue: the known names.
        schema_only: report what is not available yet as a warning, and never look at this machine.
        cwd: the folder that relative paths refer to; default: the working directory.

    Raises:
        ConfigErrors: all problems of the file at once.
    """
    plan, problems = examine(source, overrides, catalogue=catalogue, schema_only=schema_only, cwd=cwd)
    if any(problem.is_error for problem in problems):
        raise ConfigErrors(problems)
    return plan


def examine(
    source: ConfigSource,
    overrides: Sequence[str] = (),
    *,
    catalogue: Catalogue,
    schema_only: bool = False,
    cwd: Path | None = None,
) -> tuple[Plan, list[Finding]]:
    """Return the plan and all problems.

    With an error among them, the plan is only good for display.

    Raises:
        ConfigErrors: the file cannot be read as YAML at all.
    """
    folder = cwd or Path.cwd()
    plan_stage = partial(_plan_stage, catalogue=catalogue, cwd=folder, looks_at_machine=not schema_only)
    completed = partial(as_written, completed=lambda tree: plan_stage(None, tree)[0].config)
    opened = open_source(source, overrides, as_written=completed)
    tree, problems = opened.tree, opened.problems
    _remember_secrets(tree)
    base, merged, found = split_stages(tree)
    problems += found
    if merged[0][0] is not None or len(merged) > 1:
        problems += _check_tree(base)
    stages = []
    for name, stage_tree in merged:
        stage, found = plan_stage(name, stage_tree)
        found = soften(found) if schema_only else found
        stages.append(replace(stage, warnings=unique(p for p in found if not p.is_error), catalogue=catalogue))
        problems += found
    problems = unique([*problems, *_check_handover(stages)])
    if opened.dialect is None:
        problems = with_places(problems)
    return Plan(source, stages, [p for p in problems if not p.is_error]), problems


def complete(config: Config, *, catalogue: Catalogue, cwd: Path | None = None) -> Config:
    """Return a configuration with all that `trinity run` would fill in.

    Raises:
        ConfigErrors: all problems at once, or the configuration has stages (E1604).
    """
    if config.stages:
        message = f"the configuration has {len(config.stages)} stages; one configuration was asked for"
        raise ConfigErrors([Finding("E1604", "stages", message)])
    plan_stage = partial(_plan_stage, catalogue=catalogue, cwd=cwd or Path.cwd(), looks_at_machine=True)
    given = Tree(config.model_dump(mode="json", exclude_unset=True))
    stage, problems = plan_stage(None, as_written(given, lambda tree: plan_stage(None, tree)[0].config))
    if any(problem.is_error for problem in problems):
        raise ConfigErrors(unique(problems))
    return stage.config


def plugin_dirs_of(source: ConfigSource, overrides: Sequence[str] = (), *, cwd: Path | None = None) -> tuple[Path, ...]:
    """Return the folders in `plugin_dirs` of a configuration.

    They must be known before the file's other keys are checked. `examine` reports problems of the file and of
    this key.
    """
    try:
        tree = open_source(source, overrides).tree
    except ConfigErrors:
        return ()
    written = tree.values.get("plugin_dirs")
    names = [_leaf_alone(tree, ("plugin_dirs", i)) for i in range(len(written) if isinstance(written, list) else 0)]
    return tuple((cwd or Path.cwd()) / Path(name).expanduser() for name in names if isinstance(name, str) and name)


def load_config(
    source: ConfigSource, overrides: Sequence[str] = (), *, catalogue: Catalogue | None = None, cwd: Path | None = None
) -> Config:
    """Return the configuration of a file, or of its values.

    It is complete if a catalogue is given, else as written.

    Raises:
        ConfigErrors: all problems of the file at once, or the file has several stages.
    """
    if catalogue is not None:
        plan = load_plan(source, overrides, catalogue=catalogue, cwd=cwd)
        if len(plan.stages) > 1:
            raise ConfigErrors(
                [
                    Finding(
                        "E1604",
                        "stages",
                        f"the configuration has {len(plan.stages)} stages; one configuration was asked for",
                        file=str(source) if isinstance(source, str | Path) else None,
                    )
                ]
            )
        return plan.stages[0].config
    opened = open_source(source, overrides)
    tree, problems = opened.tree, opened.problems
    _remember_secrets(tree)
    resolved, found = resolve_interpolations(tree)
    config, more, _ = check_schema(resolved)
    problems = unique([*problems, *found, *more])
    if any(problem.is_error for problem in problems):
        raise ConfigErrors(problems)
    return config


def _check_tree(tree: Tree) -> list[Finding]:
    """Return key and type problems of the global part; stages may hide them."""
    resolved, problems = resolve_interpolations(tree)
    return [*problems, *check_schema(resolved)[1]]


def _plan_stage(
    name: str | None, tree: Tree, *, catalogue: Catalogue, cwd: Path, looks_at_machine: bool
) -> tuple[StagePlan, list[Finding]]:
    tree, problems = _include_trainer_file(tree, cwd)
    resolved, found = resolve_interpolations(tree)
    problems += found
    catalogue, found = with_dotted(catalogue, resolved)
    problems += found
    config, found, broken = check_schema(resolved)
    problems += [*found, *check_older_names(resolved), *hidden_secrets(resolved)]
    broken |= {path for path in tree.leaves() if _is_missing(resolved, path)}
    stage_name = name if isinstance(name, str) else None
    final, derived, found = resolve(
        config,
        resolved,
        catalogue=catalogue,
        cwd=cwd,
        stage_name=stage_name,
        broken=broken,
        looks_at_machine=looks_at_machine,
    )
    final = final.model_copy(update={"written": written_keys(resolved, final)})
    stage = StagePlan(stage_name, final, derived, [], resolved, catalogue, references(tree, resolved))
    return stage, [*problems, *found]


def _check_handover(stages: Sequence[StagePlan]) -> list[Finding]:
    """Return an error for each stage with a broken handover.

    The stage leaves no weights to the next one, or adds an adapter twice.
    """
    problems = [
        stage.tree.problem(
            "E1605",
            ("trainer", "save_hf_checkpoint"),
            f"`trainer.save_hf_checkpoint` is never, but the stage after {stage.name} starts from its weights",
            value="never",
            suggestion="write `save_hf_checkpoint: last` in this stage",
        )
        for stage in stages[:-1]
        if stage.config.trainer.save_hf_checkpoint == "never"
    ]
    for stage in stages[1:]:
        if any(adapter.path is not None for adapter in stage.config.model.lora_configs or ()):
            problems.append(
                stage.tree.problem(
                    "E1874",
                    ("model", "lora_configs", 0, "path"),
                    f"`model.lora_configs[0].path`: stage {stage.name} starts from the weights of the stage before it, "
                    "in which an adapter is merged already; that of path would be added to them",
                    suggestion="write `model.lora_configs` without path in this stage",
                )
            )
    return problems


def _is_missing(tree: Tree, path: tuple[str | int, ...]) -> bool:
    try:
        tree.get(path)
    except KeyError:
        return True
    return False


def _include_trainer_file(tree: Tree, cwd: Path) -> tuple[Tree, list[Finding]]:
    """Replace `trainer.trainer_config` by the file at `trainer_config_path`."""
    trainer = tree.values.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("trainer_config"):
        return tree, []
    # The file's values take part in the interpolations of all others, so its own name is resolved before them. One that
    # cannot be is reported with the others.
    written = _leaf_alone(tree, ("trainer", "trainer_config_path"))
    if not isinstance(written, str) or written == "None":
        return tree, []
    file = cwd / Path(written).expanduser()
    try:
        inner = read_file(file)
    except ConfigErrors as error:
        return tree, error.problems
    result = tree.copy()
    prefix = ("trainer", "trainer_config")
    result.values["trainer"]["trainer_config"] = inner.values
    for path, chain in inner.origins.items():
        result.origins[(*prefix, *path)] = chain
    result.drop(("trainer", "trainer_config_path"))
    return result, []


def _leaf_alone(tree: Tree, path: tuple[str | int, ...]) -> Any:
    """Return a leaf with its interpolations resolved.

    Returns None if the leaf is missing or cannot be resolved.
    """
    resolved, _ = resolve_interpolations(tree, only=path)
    return None if _is_missing(resolved, path) else resolved.get(path)


def _remember_secrets(tree: Tree) -> None:
    """Make the log redact every secret in the file."""
    for path in tree.leaves():
        value = tree.get(path)
        names = [part for part in path if isinstance(part, str)]
        if names and is_secret_name(names[-1]) and not isinstance(value, bool) and "${" not in str(value):
            add_secret(str(value))
