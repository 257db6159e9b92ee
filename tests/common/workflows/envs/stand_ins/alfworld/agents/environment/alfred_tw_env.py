class AlfredDemangler:
    def __call__(self, env):
        return env
