"""An agent of AgentScope with a search engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows.agentscope.react.react_workflow import ReActWorkflow
from trinity.common.workflows.judge import ask_async, judge_of
from trinity.common.workflows.registry import WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.experience import Experience

JUDGE_PROMPT = """\
Judge an answer by a reference. It is right if it means the same; the form and small differences of a number do not \
matter. Reply with the word true or the word false and nothing else.
Question: {question}
Reference: {truth}
Answer: {answer}"""
MAX_MODEL_TOKENS = 24000
SEARCHES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "searxng": ("SEARXNG_URL", ("npx", "-y", "mcp-searxng")),
    "tavily": ("TAVILY_API_KEY", ("npx", "-y", "tavily-mcp@latest")),
}
"""The variable of the environment that each search engine needs, and the command of its MCP server."""


@WORKFLOWS.register_module("agentscope_v1_react_search_workflow")
class AgentScopeV1ReactSearchWorkflow(ReActWorkflow):
    """A question for an agent that searches; a model judges the answer.

    The search engine is an MCP server; `search_command` starts another one than the published. The judge is the first
    auxiliary model.
    """

    arguments = {
        "max_turns": 10,
        "search_client_type": "searxng",
        "max_model_tokens": MAX_MODEL_TOKENS,
        "search_command": None,
    }
    system_prompt = (
        "You answer a question with what the web says. Search as often as you need to, read what you find, and give an "
        "answer that it supports."
    )

    def _search(self) -> tuple[dict[str, str], list[str]]:
        """Return environment and command of the search engine.

        Raises:
            WorkflowError: `search_client_type` is unknown.
            EnvironmentProblem: the variable that it needs is not set.
        """
        args = self.task.workflow_args
        kind = args.get("search_client_type", "searxng")
        if kind not in SEARCHES:
            raise WorkflowError(f"workflow_args.search_client_type must be one of {', '.join(SEARCHES)}, got {kind!r}")
        variable, command = SEARCHES[kind]
        own = args.get("search_command")
        if own is None and not os.environ.get(variable):
            raise EnvironmentProblem(f"the search engine {kind} needs the environment variable {variable}; set it")
        return {variable: os.environ.get(variable, "")}, list(own or command)

    async def run_async(self) -> list[Experience]:
        """Return the experiences of one reply, with 1 for a right answer.

        Raises:
            RewardError: the judge said neither true nor false.
        """
        from agentscope.mcp import StdIOStatefulClient
        from agentscope.tool import Toolkit

        args, judge = self.task.workflow_args, judge_of(self.auxiliary_model_wrappers, type(self))
        self.max_turns = int(args.get("max_turns", self.max_turns))
        environment, (program, *rest) = self._search()
        client, toolkit = StdIOStatefulClient("search", command=program, args=rest, env=environment), Toolkit()
        await client.connect()
        try:
            await toolkit.register_mcp_client(client)
            answer, num_messages = await self.answer(toolkit)
        finally:
            await client.close()
        asked = JUDGE_PROMPT.format(question=self.task.task_desc, truth=self.task.truth, answer=answer)
        verdict = (await ask_async(judge, [{"role": "user", "content": asked}])).strip().lower()
        if verdict not in ("true", "false"):
            raise RewardError(f"the judge must say true or false, got {verdict[:80]!r}")
        made = self.rewarded(float(verdict == "true"), {"react_turns": float(num_messages // 2)})
        longest = int(args.get("max_model_tokens", MAX_MODEL_TOKENS))
        return [experience for experience in made if len(experience.tokens) <= longest]
