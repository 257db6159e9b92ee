"""Chat models over an OpenAI client: a call gives blocks of content."""

import json
from types import SimpleNamespace


class OpenAIChatModel:
    def __init__(self, model_name, api_key=None, stream=True, generate_kwargs=None):
        assert api_key and not stream
        self.model_name, self.client, self.generate_kwargs = model_name, None, generate_kwargs or {}

    async def __call__(self, messages, tools=None, tool_choice=None, **kwargs):
        given = {"tools": tools, "tool_choice": tool_choice}
        kwargs |= {name: value for name, value in given.items() if value is not None}
        answer = await self.client.chat.completions.create(
            model=self.model_name, messages=messages, stream=False, **self.generate_kwargs, **kwargs
        )
        said = answer.choices[0].message
        content = [{"type": "text", "text": said.content}] if said.content else []
        content += [
            {"type": "tool_use", "name": call.function.name, "input": json.loads(call.function.arguments)}
            for call in said.tool_calls or ()
        ]
        return SimpleNamespace(content=content)


class TrinityChatModel(OpenAIChatModel):
    def __init__(self, openai_async_client, generate_kwargs=None):
        super().__init__(openai_async_client.model_path, api_key="EMPTY", stream=False, generate_kwargs=generate_kwargs)
        self.client = openai_async_client
