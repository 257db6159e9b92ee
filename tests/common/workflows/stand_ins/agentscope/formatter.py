"""From messages to those of the interface."""


class OpenAIChatFormatter:
    async def format(self, msgs):
        return [{"role": message.role, "content": message.get_text_content()} for message in msgs]
