"""The page on which a run is configured and started."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.common.config import ConfigErrors
from trinity.common.config.given import yaml_text
from trinity.common.config.problems import shown_value
from trinity.common.config.showing import redacted
from trinity.common.errors import TrinityError
from trinity.manager.config_manager import ConfigManager, other_findings
from trinity.manager.config_registry import CONFIG_GENERATORS
from trinity.manager.draft import Draft, differences
from trinity.manager.studio.memory import show_memory
from trinity.manager.studio.processes import start_run
from trinity.manager.studio.runs import AwaitedRun
from trinity.manager.studio.settings import StudioSettings
from trinity.manager.studio.words import word
from trinity.manager.widgets import begin_with, keep, plain, say, show_finding, show_said

FORMS = ("beginner", "expert")
RERUNS = 3


def configure_page(settings: StudioSettings) -> None:
    """Show the forms on the left, and the resulting file on the right."""
    draft = _draft(settings)
    show_said()
    manager = ConfigManager(draft, settings.plugin_paths)
    left, right = st.columns([3, 2])
    with left:
        begin_with("_form", FORMS[0])
        form = st.radio(
            word("form"), FORMS, format_func=lambda each: word(f"form_{each}"), key="_form", horizontal=True
        )
        keep("_form", form)
        if form == "expert":
            manager.expert_mode()
        else:
            manager.beginner_mode()
        _own_parameters(manager)
    values = manager.generate_config()
    _run_again_if(values != manager.checked_values)
    with right:
        _file_row(manager, values, settings)
        _verdict(manager)
        if values and not any(each.is_error for each in manager.findings):
            show_memory(values, yaml_text(values), settings.plugin_paths)
        st.subheader(word("yaml"))
        st.code(yaml_text(redacted(values)) if values else "", language="yaml", wrap_lines=True)
        _show_differences(values)
        _show_computed(manager)


def _draft(settings: StudioSettings) -> Draft:
    """Return what is edited; at first the file that the command named."""
    if "_draft" not in st.session_state:
        st.session_state["_draft"] = Draft()
        keep("_file", settings.file)
        if settings.file:
            _load(Path(settings.file))
    draft: Draft = st.session_state["_draft"]
    return draft


def _own_parameters(manager: ConfigManager) -> None:
    """Show the registered parameters that are no keys of the configuration.

    Those that are, and whose fields are not on the page, are checked all the same.
    """
    names = [name for name in CONFIG_GENERATORS.own_names() if CONFIG_GENERATORS.registered(name)]
    fields = {name: CONFIG_GENERATORS.field(name) for name in names}
    others = [name for name, field in fields.items() if field is None and name not in manager.shown_keys]
    if others:
        st.subheader(word("own"))
        manager.get_configs(*others)
    for name, field in fields.items():
        if field is not None and field.key not in manager.shown_keys:
            CONFIG_GENERATORS.check(name)


def _run_again_if(is_changed: bool) -> None:
    """Show the page again if a registered function has changed its value.

    The problems are those of the values before; a value that never comes to rest is shown as it is.
    """
    st.session_state["_reruns"] = st.session_state.get("_reruns", 0) + 1 if is_changed else 0
    if 0 < st.session_state["_reruns"] <= RERUNS:
        st.rerun()


def _file_row(manager: ConfigManager, values: dict[str, Any], settings: StudioSettings) -> None:
    begin_with("_file", "")
    file = st.text_input(word("file"), key="_file").strip()
    keep("_file", file)
    is_ready = not manager.unfinished_fields and not any(each.is_error for each in manager.findings)
    replaces = st.checkbox(word("replace"), key="_replace")
    arguments = (manager.draft, file, values, replaces)
    buttons = [*st.columns(2), *st.columns(2)]
    buttons[0].button(word("load"), key="_load", on_click=_on_load, args=(file,), width="stretch")
    buttons[1].button(
        word("save"),
        key="_save",
        on_click=_on_save,
        args=arguments,
        disabled=bool(manager.unfinished_fields),
        width="stretch",
    )
    buttons[2].button(word("new"), key="_new", on_click=_on_new, width="stretch")
    buttons[3].button(
        word("start"),
        key="_start",
        on_click=_on_start,
        args=(*arguments, settings, _job_of(manager)),
        disabled=not is_ready,
        type="primary",
        width="stretch",
    )


def _job_of(manager: ConfigManager) -> str:
    """Return the folder of the run that would be started; empty: not known."""
    return "" if manager.plan is None else manager.plan.stages[0].config.checkpoint_job_dir


def _verdict(manager: ConfigManager) -> None:
    """Show whether a run can start, and the problems that no field shows."""
    errors = sum(each.is_error for each in manager.findings)
    if manager.unfinished_fields:
        st.error(plain(word("unfinished", names=", ".join(sorted(manager.unfinished_fields)))))
    if errors:
        st.error(word("num_errors", errors=errors, warnings=len(manager.findings) - errors))
    elif not manager.unfinished_fields:
        st.success(word("valid"))
    others = other_findings(manager.findings, manager.shown_keys)
    if others:
        st.caption(word("problems_elsewhere"))
    for finding in others:
        show_finding(finding)


def _show_differences(values: dict[str, Any]) -> None:
    rows = [
        {
            word("key"): each.key,
            word("value"): _cell(each.key, each.value),
            word("default"): _cell(each.key, each.default),
        }
        for each in differences(values)
    ]
    if rows:
        with st.expander(word("differences")):
            st.dataframe(rows, hide_index=True)


def _show_computed(manager: ConfigManager) -> None:
    """Show what follows from the values, with the reasons."""
    rows = [
        {word("key"): each.key, word("value"): _cell(each.key, each.value), word("reason"): each.reason}
        for stage in (manager.plan.stages if manager.plan is not None else ())
        for each in stage.derived
        if not each.is_copy
    ]
    if rows:
        with st.expander(word("computed")):
            st.dataframe(rows, hide_index=True)


def _cell(key: str, value: Any) -> str:
    return "" if value is None else str(shown_value(key, value))


def _load(file: Path) -> None:
    try:
        draft = Draft.of_file(file)
    except ConfigErrors as error:
        say("error", error.format())
        return
    st.session_state["_draft"] = draft
    CONFIG_GENERATORS.forget()
    say("success", word("loaded", file=file))
    if draft.file is None:
        say("info", word("translated", file=file))
    elif draft.has_comments:
        say("warning", word("loses_comments", file=file))


def _on_load(file: str) -> None:
    if file:
        _load(Path(file))
    else:
        say("error", word("no_file"))


def _on_new() -> None:
    st.session_state["_draft"] = Draft()
    st.session_state["_file"] = ""
    CONFIG_GENERATORS.forget()


def _on_save(draft: Draft, file: str, values: dict[str, Any], replaces: bool) -> None:
    _saved(draft, file, values, replaces=replaces)


def _saved(draft: Draft, file: str, values: dict[str, Any], *, replaces: bool) -> bool:
    """Save a draft; say whether, and return it."""
    if not file:
        say("error", word("no_file"))
        return False
    try:
        draft.save(Path(file), yaml_text(values), replaces=replaces)
    except TrinityError as error:
        say("error", str(error))
        return False
    except OSError as error:
        say("error", f"{file}: {error.strerror or error}")
        return False
    say("success", word("saved", file=file))
    return True


def _on_start(
    draft: Draft, file: str, values: dict[str, Any], replaces: bool, settings: StudioSettings, job: str
) -> None:
    """Save, start the run, and go to the page of runs."""
    if not _saved(draft, file, values, replaces=replaces):
        return
    since = time.time()
    started = start_run(Path(file), plugin_dirs=settings.plugin_paths)
    say("success", word("started", file=started.output))
    st.session_state["_page"] = "runs"
    if job:
        keep("_folder", str(Path(job).parent))
        st.session_state["_awaited"] = AwaitedRun(started, Path(job).parent, since)
