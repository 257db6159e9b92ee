"""Messages of agents: a text, or blocks."""


class Msg:
    def __init__(self, name, content, role, metadata=None):
        self.name, self.content, self.role, self.metadata = name, content, role, metadata

    def get_text_content(self):
        if isinstance(self.content, str):
            return self.content
        return "\n".join(block["text"] for block in self.content if block["type"] == "text") or None
