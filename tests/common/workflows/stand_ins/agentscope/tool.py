"""The tools of an agent."""


async def execute_python_code(code):
    raise AssertionError("no test runs what a model writes")


class Toolkit:
    def __init__(self):
        self.names, self.clients = [], []

    def register_tool_function(self, function):
        self.names.append(function.__name__)

    async def register_mcp_client(self, client):
        assert client.is_connected
        self.clients.append(client)

    def schemas(self):
        shape = {"type": "object", "properties": {}}
        return [{"type": "function", "function": {"name": name, "parameters": shape}} for name in self.names]
