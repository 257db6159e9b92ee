"""Speaks the protocol of ScienceWorld: scores of up to 100, whose changes are the rewards of `step`."""

OPEN = []


class ScienceWorldEnv:
    def __init__(self, taskName=None, serverPath=None, envStepLimit=100):
        self.server_path, self.limit = serverPath, envStepLimit
        OPEN.append(self)

    def load(self, taskName, variationIdx=0, simplificationStr="", generateGoldPath=False):
        assert taskName == "boil", f"Unknown task name: {taskName}"
        assert simplificationStr == "easy" and generateGoldPath
        self.variation = variationIdx

    def get_gold_action_sequence(self):
        return ["focus on water", "activate stove", "wait"]

    def get_task_description(self):
        return f"Your task is to boil water {self.variation}."

    def reset(self):
        return "This room is the kitchen.", {"score": 0}

    def step(self, command):
        changes = {"focus on water": 33, "activate stove": 17, "wait": 50, "focus on air": -100}
        change = changes.get(command, 0)
        said = "Done." if command in changes else "No known action matches that input."
        return said, change, command in ("wait", "focus on air"), {"score": change}

    def close(self):
        OPEN.remove(self)
