"""A client of a server of tools, which this one does not start."""


class StdIOStatefulClient:
    def __init__(self, name, command, args=None, env=None):
        self.command, self.is_connected = [command, *(args or [])], False
        assert all(isinstance(value, str) for value in (env or {}).values())

    async def connect(self):
        self.is_connected = True

    async def close(self):
        self.is_connected = False
