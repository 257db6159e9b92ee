"""What an agent keeps."""


class InMemoryMemory:
    def __init__(self):
        self.content = []

    async def add(self, message):
        self.content.append(message)

    async def get_memory(self):
        return list(self.content)
