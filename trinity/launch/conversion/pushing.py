"""Upload of an exported model to the hub."""

from __future__ import annotations

import re
from pathlib import Path

from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.common.models.hub import is_offline
from trinity.launch.conversion.output import RECORD
from trinity.utils.log import get_logger, redact

logger = get_logger("launch")

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def check_target(name: str) -> None:
    """Check the name of a repository, and that the hub may be asked.

    Raises:
        ConfigError: the name is not `owner/name` (E1955).
        EnvironmentProblem: network use is forbidden (E3140).
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--push must be owner/name of a repository of the hub, got {name!r}", code="E1955")
    if is_offline():
        raise EnvironmentProblem(
            f"--push {name}: HF_HUB_OFFLINE forbids network use; unset it, or push the folder later with the same "
            "command, which does not convert again",
            code="E3140",
        )


def push(folder: Path, name: str, *, is_private: bool, message: str) -> str:
    """Upload a folder to the hub; return the address of the commit.

    The repository is made if it is not there. Files that it has already are not sent again.

    Raises:
        EnvironmentProblem: the hub does not take it (E3140).
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        api.create_repo(name, private=is_private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, ignore_patterns=[RECORD, ".*"]
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        way = {401: "set HF_TOKEN to a token that may write", 403: "use a token that may write to it"}.get(
            status, "try again"
        )
        raise EnvironmentProblem(
            f"{constants.ENDPOINT} does not take {name} ({status}: {_first_line(error)}); {way}; {folder} is whole, "
            "and the same command does not convert again",
            code="E3140",
        ) from error
    except Exception as error:
        raise EnvironmentProblem(
            f"{constants.ENDPOINT} cannot be reached to push {name} ({type(error).__name__}: {_first_line(error)}); "
            f"look at the network or HF_ENDPOINT; {folder} is whole, and the same command does not convert again",
            code="E3140",
        ) from error
    logger.info("pushed %s to %s", folder, commit.commit_url)
    return str(commit.commit_url)


def _first_line(error: Exception) -> str:
    return redact((str(error).strip() or "no message").splitlines()[0][:200])
