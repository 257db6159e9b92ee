"""A shop with one search, two things and an option, over sessions of one server."""

import random

SERVERS = []


class SimServer:
    def __init__(self, num_products, human_goals):
        random.seed(233)
        self.num_products, self.human_goals = num_products, human_goals
        self.goals = ["white shoes", "black hat"]
        self.user_sessions = {}
        SERVERS.append(self)


class WebAgentTextEnv:
    def __init__(self, observation_mode="html", server=None, num_products=None, human_goals=0, session_prefix=None):
        assert observation_mode == "text_rich"
        self.server = server or SimServer(num_products, human_goals)
        self.session_prefix = session_prefix
        self.reset()

    def reset(self, session=None):
        name = "".join(random.choices("abc", k=10)) if session is None else str(session)
        self.session = self.session_prefix + name
        goal = random.choice(self.server.goals) if session is None else self.server.goals[session]
        self.state = self.server.user_sessions.setdefault(self.session, {"goal": goal})
        self.page = "start"
        return self.observation, None

    @property
    def observation(self):
        return f"{self.page}\nInstruction: {self.state['goal']}\n" + self._buttons()

    def _buttons(self):
        return " ".join(f"[button] {name} [button_]" for name in self.get_available_actions()["clickables"])

    def get_available_actions(self):
        pages = {"start": ["search"], "results": ["back to search", "b1", "b2"]}
        names = pages.get(self.page, ["back to search", "red", "buy now"])
        return {"has_search_bar": self.page == "start", "clickables": names}

    def step(self, action):
        name = action.partition("[")[2].rstrip("]").lower()
        if action.startswith("search["):
            self.page = "results"
        elif name == "buy now":
            return "Thanks", 1.0 if self.page == "b1" else 0.4, True, None
        elif name == "back to search":
            self.page = "start"
        elif name != "red":
            self.page = name
        return self.observation, 0.0, False, None

    def close(self):
        pass
