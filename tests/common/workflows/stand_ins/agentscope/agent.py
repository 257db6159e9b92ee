"""An agent that asks for an answer in a given form, reminds the model of it, and gives up after some turns."""

import json

from agentscope.message import Msg


class ReActAgent:
    def __init__(self, name, sys_prompt, model, formatter, toolkit, memory, max_iters=10, enable_meta_tool=False):
        self.name, self.model, self.formatter, self.toolkit, self.memory = name, model, formatter, toolkit, memory
        self.system, self.max_iters = Msg("system", sys_prompt, "system"), max_iters

    def set_console_output_enabled(self, enabled):
        assert enabled is False

    async def _said(self, **options):
        messages = await self.formatter.format(msgs=[self.system, *await self.memory.get_memory()])
        blocks = (await self.model(messages, **options)).content
        await self.memory.add(Msg(self.name, blocks, "assistant"))
        return blocks

    async def reply(self, message, structured_model):
        await self.memory.add(message)
        self.toolkit.names.append("generate_response")
        for _ in range(self.max_iters):
            blocks = await self._said(tools=self.toolkit.schemas(), tool_choice="required")
            for block in blocks:
                if block["type"] == "tool_use" and block["name"] == "generate_response":
                    form = structured_model.model_validate(json.loads(json.dumps(block["input"])))
                    await self.memory.add(Msg("user", "Say it in words.", "user"))
                    return Msg(self.name, await self._said(), "assistant", metadata=form.model_dump())
            await self.memory.add(Msg("user", "Call generate_response.", "user"))
        return Msg(self.name, await self._said(), "assistant")
