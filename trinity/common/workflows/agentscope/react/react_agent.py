"""AgentScope's agent that reasons and acts, on a client of the endpoint.

Source: AgentScope 1.0, `agentscope.agent.ReActAgent`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

MAX_ITERS = 10


@cache
def _chat_model() -> type[Any]:
    """Return an `OpenAIChatModel` that does not insist on a tool call.

    If a model makes no call, the agent reminds it, and the model learns from that turn. If the response were refused
    instead, it would be lost.
    """
    from agentscope.model import OpenAIChatModel

    class PatientChatModel(OpenAIChatModel):
        async def __call__(self, messages: Any, tools: Any = None, tool_choice: Any = None, **kwargs: Any) -> Any:
            choice = None if tool_choice == "required" else tool_choice
            return await super().__call__(messages, tools=tools, tool_choice=choice, **kwargs)

    return PatientChatModel


class AgentScopeReActAgent:
    """An agent that answers in a given form, or with a text.

    Args:
        openai_client: an asynchronous client.
        model_name: of the model.
        system_prompt: what the agent is told first.
        generate_kwargs: sampling arguments.
        response_structure: the form of the answer.
        max_iters: turns, after which it is asked for a text.
        toolkit: its tools; None: none.
        has_meta_tool: it may look for tools.
    """

    def __init__(
        self,
        openai_client: Any,
        model_name: str,
        system_prompt: str,
        generate_kwargs: Mapping[str, Any],
        response_structure: type[BaseModel],
        max_iters: int = MAX_ITERS,
        toolkit: Any = None,
        *,
        has_meta_tool: bool = True,
    ) -> None:
        from agentscope.agent import ReActAgent
        from agentscope.formatter import OpenAIChatFormatter
        from agentscope.memory import InMemoryMemory
        from agentscope.tool import Toolkit

        self.agent_model = _chat_model()(
            model_name, api_key=openai_client.api_key, stream=False, generate_kwargs=dict(generate_kwargs)
        )
        self.agent_model.client = openai_client
        self.agent = ReActAgent(
            name="react_agent",
            sys_prompt=system_prompt,
            model=self.agent_model,
            formatter=OpenAIChatFormatter(),
            toolkit=toolkit or Toolkit(),
            memory=InMemoryMemory(),
            max_iters=max_iters,
            enable_meta_tool=has_meta_tool,
        )
        self.agent.set_console_output_enabled(False)
        self.response_structure = response_structure

    async def said(self, query: str) -> Any:
        """Return the message that ends the agent's reply."""
        from agentscope.message import Msg

        return await self.agent.reply(Msg("user", query, "user"), structured_model=self.response_structure)

    async def reply(self, query: str) -> dict[str, Any]:
        """Return the answer in its form; {} if there is only a text."""
        return dict((await self.said(query)).metadata or {})

    async def num_messages(self) -> int:
        """Return how many messages the agent holds."""
        return len(await self.agent.memory.get_memory())
