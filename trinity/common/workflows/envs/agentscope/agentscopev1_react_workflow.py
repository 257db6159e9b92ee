"""An agent of AgentScope that may run Python code."""

from __future__ import annotations

from typing import Any

from trinity.common.workflows.agentscope.react.react_workflow import ReActMathWorkflow
from trinity.common.workflows.registry import WORKFLOWS


@WORKFLOWS.register_module("agentscope_react_math_workflow")
@WORKFLOWS.register_module("agentscopev0_react_math_workflow", deprecated_for="agentscope_react_math_workflow")
class AgentScopeReactMathWorkflow(ReActMathWorkflow):
    """A mathematical problem for an agent that may run Python code.

    The tool is AgentScope's. It runs what the model writes in a process of its own, with the rights of the run: use it
    where that may be.
    """

    arguments = {}

    def tools(self) -> Any:
        """Return the tool that runs Python code."""
        from agentscope.tool import Toolkit, execute_python_code

        toolkit = Toolkit()
        toolkit.register_tool_function(execute_python_code)
        return toolkit
