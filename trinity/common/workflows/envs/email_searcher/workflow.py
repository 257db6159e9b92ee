"""The workflow of mail search.

It has tools over a local index, and an answer that is judged.

The task is ART-E's (OpenPipe 2025), whose rows and scores it has.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows.envs.email_searcher.utils import Inbox, tool_call
from trinity.common.workflows.envs.episode import EpisodeWorkflow, Game, Reply
from trinity.common.workflows.registry import WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper

PATH_VARIABLE = "DEFAULT_EMAIL_DB_PATH"
UNKNOWN = "I don't know"
SYSTEM_PROMPT = """\
You answer a question of the owner of the inbox {inbox} with what the mails there say. Today is {date}. You have \
{turns} turns. In each, say what you look for and why, and end with one call in this form:
<tool_call>{{"name": "search_emails", "arguments": {{"keywords": ["word", "other word"]}}}}</tool_call>
The tools:
- search_emails, keywords: a list of words that must all be in the mail; gives id and snippet of up to 10 mails.
- read_email, message_id: gives the whole mail.
- generate_response, answer: a text, sources: the list of the message_id that it is taken from; ends the task. If the \
mails do not tell, the answer is "{unknown}" and the list is empty."""
JUDGE_PROMPT = """\
Judge an answer by a reference. It is right if it says everything of the reference that the question asks for and \
contradicts nothing of it; the wording and further details do not matter. Reply with the word true or the word false \
and nothing else.
Question: {question}
Reference: {truth}
Answer: {answer}"""


class MailSearch(Game):
    """One question to an inbox.

    Args:
        inbox: the mails; closed with the game.
        question: what is asked.
        max_chars: longest result of a tool, in characters.
    """

    def __init__(self, inbox: Inbox, question: str, *, max_chars: int) -> None:
        self.inbox, self.question, self.max_chars = inbox, question, max_chars
        self.found: set[str] = set()
        self.read: set[str] = set()
        self.result: tuple[str, list[str]] | None = None
        self.num_turns = 0

    def begin(self) -> str:
        """Return the question."""
        return self.question

    def answer(self, text: str) -> Reply:
        """Call the tool that the model asks for."""
        self.num_turns += 1
        call = tool_call(text)
        if isinstance(call, str):
            return Reply(f"Error: {call}.", is_valid=False)
        name, given = call
        if name == "search_emails" and _is_texts(given.get("keywords")) and given["keywords"]:
            hits = self.inbox.search(given["keywords"])
            self.found |= {hit["message_id"] for hit in hits}
            return self._said(hits)
        if name == "read_email" and isinstance(given.get("message_id"), str):
            mail = self.inbox.read(given["message_id"])
            if mail is None:
                return Reply(f"Error: there is no mail {given['message_id']!r}.", is_valid=False)
            self.read.add(given["message_id"])
            return self._said(mail)
        if name == "generate_response" and isinstance(given.get("answer"), str) and _is_texts(given.get("sources", [])):
            self.result = given["answer"], list(dict.fromkeys(given.get("sources", [])))
            return Reply("", is_done=True)
        return Reply(f"Error: no tool {name!r} takes the arguments {json.dumps(given)[:200]}.", is_valid=False)

    def metrics(self) -> dict[str, float]:
        """Return the number of turns, under its published name."""
        return {"actual_turns": self.num_turns}

    def close(self) -> None:
        """Close the inbox."""
        self.inbox.close()

    def _said(self, result: Any) -> Reply:
        return Reply(json.dumps(result, ensure_ascii=False)[: self.max_chars])


@WORKFLOWS.register_module("email_search_workflow")
class EmailSearchWorkflow(EpisodeWorkflow):
    """A question about an inbox, answered by searching and reading mails.

    The row has the question and `answer`, `message_ids`, `inbox_address` and `query_date`; the database is
    `workflow_args.database_path`, else the environment variable `DEFAULT_EMAIL_DB_PATH`. The first auxiliary model
    judges the answer; without one, or with `llm_as_a_judge: false` in `reward_fn_args`, it has to be that of the row.
    """

    arguments = {"max_turns": 10, "tool_obs_char_limit": 2000, "database_path": None}
    ranges = {"max_turns": "[1, inf]", "tool_obs_char_limit": "[1, inf]", "database_path": "text"}
    needs = frozenset({"prompt"})
    steps_argument = "max_turns"

    def open(self) -> Game:
        """Return the question of the row over a connection of its own."""
        row = self.raw_task
        path = self.workflow_args.get("database_path") or os.environ.get(PATH_VARIABLE)
        if not path:
            raise ValueError(f"set workflow_args.database_path or the environment variable {PATH_VARIABLE}")
        date = str(row["query_date"])[:10]
        self.system_prompt = SYSTEM_PROMPT.format(
            inbox=row["inbox_address"], date=date, turns=self.max_steps, unknown=UNKNOWN
        )
        inbox = Inbox(Path(path).expanduser(), address=row["inbox_address"], query_date=date)
        question = self.task.task_desc or row["question"]
        return MailSearch(inbox, str(question), max_chars=int(self.workflow_args["tool_obs_char_limit"]))

    def score(self, game: Game) -> dict[str, float]:
        """Return the parts of the reward, `accuracy` and `format`.

        No answer gets -1. A wrong answer gets -1 plus 0.1 each for having found, read and named the right mail; an
        answer that it is unknown gets these parts alone. A right answer gets 1, plus 0.3 for naming the right mail, up
        to 0.1 for few sources, and up to 0.1 for few turns.
        """
        assert isinstance(game, MailSearch), "made by open"
        if game.result is None:
            return {"accuracy": 0.0, "format": -1.0}
        answer, sources = game.result
        right = set(map(str, self.raw_task.get("message_ids") or ())) & {*game.found, *game.read, *sources}
        named = bool(right & set(sources))
        partial = 0.1 * (bool(right & game.found) + bool(right & game.read) + named)
        if _plain(answer) == _plain(UNKNOWN):
            return {"accuracy": 0.0, "format": partial}
        if not answer.strip() or not self._is_right(answer):
            return {"accuracy": -1.0, "format": partial}
        few_turns = 0.1 * (1 - game.num_turns / self.max_steps)
        return {"accuracy": 1.0, "format": 0.3 * named + (0.1 / len(sources) if sources else 0.0) + few_turns}

    def _is_right(self, answer: str) -> bool:
        """Return whether an answer is that of the row.

        Raises:
            RewardError: the judge says neither true nor false.
        """
        truth = str(self.raw_task["answer"] if self.task.truth is None else self.task.truth)
        if not self.auxiliary_model_wrappers or not (self.task.reward_fn_args or {}).get("llm_as_a_judge", True):
            return _plain(answer) == _plain(truth)
        judge: ModelWrapper = self.auxiliary_model_wrappers[0]
        asked = JUDGE_PROMPT.format(
            question=self.task.task_desc or self.raw_task["question"], truth=truth, answer=answer
        )
        (said,) = judge.chat([{"role": "user", "content": asked}], n=1, temperature=0.0)
        verdicts = set(re.findall(r"\b(true|false)\b", (said.response_text or "").lower()))
        if len(verdicts) != 1:
            raise RewardError(f"the judge must say true or false, got {(said.response_text or '')[:80]!r}")
        return verdicts == {"true"}


def _is_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def _plain(text: str) -> str:
    """Return a text without case, blanks at the ends and the final stop."""
    return " ".join(text.lower().split()).rstrip(".")
