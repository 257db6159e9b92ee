"""Rules of mode serve."""

from __future__ import annotations

from trinity.common.config.keys import KEYS, ROLLOUT_MODEL
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.databases import absolute_url, is_database
from trinity.common.config.rules.tasksets import tasksets

INPUT = KEYS.buffer.explorer_input
URL = KEYS.explorer.db_url
LEAST = KEYS.explorer.min_running_model_num


def resolve_serve(resolution: Resolution) -> None:
    """Make the record's database absolute; check what mode serve can give."""
    if resolution.mode != "serve":
        return
    if resolution.config.deterministic:
        resolution.problem(
            "E1899",
            KEYS.deterministic,
            "`deterministic: true` does not fit mode serve: programs outside of the run say when they call",
            involves=(KEYS.mode,),
            suggestion="write `deterministic: false`",
        )
    engines, least = resolution.get(ROLLOUT_MODEL.engine_num), resolution.get(LEAST)
    if least > engines:
        resolution.problem(
            "E1899",
            LEAST,
            f"`{LEAST}` is {least}, and the run has {engines} engines: no call would ever be answered",
            rule=f"<= {engines}",
            involves=(ROLLOUT_MODEL.engine_num,),
            suggestion=f"write `min_running_model_num: {engines}`",
        )
    if resolution.is_own(INPUT) and tasksets(resolution):
        resolution.problem(
            "W1902",
            INPUT,
            f"`{INPUT}` has no effect with mode serve: it runs no tasks, and answers programs outside of the run",
            involves=(KEYS.mode,),
            suggestion="remove it, or write `mode: explore`",
        )
    path = resolution.get(URL)
    if not path:
        return
    url = absolute_url(path, resolution.cwd)
    if not is_database(url):
        resolution.problem(
            "E1829",
            URL,
            f"`{URL}` is no database that calls can be recorded in",
            rule="sqlite:///<file> or postgresql://user@host/database",
            suggestion="write `db_url: sqlite:///proxy_history.db`",
        )
        return
    resolution.derive(URL, url, "a relative database is relative to the working directory")
