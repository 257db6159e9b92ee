"""Chat models over an OpenAI client: a call gives blocks of content."""

from types import SimpleNamespace


class OpenAIChatModel:
    def __init__(self, model_name, api_key=None, stream=True, generate_kwargs=None):
        assert api_key and not stream
        self.model_name, self.client, self.generate_kwargs = model_name, None, generate_kwargs or {}

    async def __call__(self, messages, **kwargs):
        answer = await self.client.chat.completions.create(
            model=self.model_name, messages=messages, stream=False, **self.generate_kwargs, **kwargs
        )
        return SimpleNamespace(content=[{"type": "text", "text": answer.choices[0].message.content}])


class TrinityChatModel(OpenAIChatModel):
    def __init__(self, openai_async_client, generate_kwargs=None):
        super().__init__(openai_async_client.model_path, api_key="EMPTY", stream=False, generate_kwargs=generate_kwargs)
        self.client = openai_async_client
