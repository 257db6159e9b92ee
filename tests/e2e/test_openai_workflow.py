"""An agent with the plain `openai` client trains on the tokens that the workflow interface gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from tests.contract.plugin_run import prepared_plugin, training_lines
from tests.docs.pages import ROOT, Page
from trinity.buffer.schema.sql_schema import ExperienceModel

pytestmark = pytest.mark.slow

PLUGIN = '''
from trinity.common.workflows import WORKFLOWS, Workflow


class Turns(Workflow):
    """Two turns: the second one shows the first answer."""

    can_reset = True

    def messages(self, *answers):
        said = [{"role": "user", "content": self.task.task_desc}]
        for answer in answers:
            said += [{"role": "assistant", "content": answer}, {"role": "user", "content": "?"}]
        return said

    def rewarded(self, exps):
        for number, exp in enumerate(exps):
            exp.eid.step = number
            exp.reward = sum(map(str.isdigit, exp.response_text)) / 8
        return exps


@WORKFLOWS.register_module("by_wrapper")
class ByWrapper(Turns):
    def run(self):
        (first,) = self.model.chat(self.messages(), max_tokens=4, temperature=1.0)
        (second,) = self.model.chat(self.messages(first.response_text), max_tokens=4, temperature=1.0)
        return self.rewarded([first, second])


@WORKFLOWS.register_module("by_client")
class ByClient(Turns):
    """An agent that knows nothing of Trinity but its client, which it keeps."""

    def __init__(self, **given):
        super().__init__(**given)
        self.client = self.model.get_openai_client()

    def ask(self, messages):
        answer = self.client.chat.completions.create(
            model=self.client.model_path, messages=messages, max_tokens=4, temperature=1.0
        )
        return answer.choices[0].message.content

    def run(self):
        self.model.enable_history = True
        self.ask(self.messages(self.ask(self.messages())))
        return self.rewarded(self.model.extract_experience_from_history())


@WORKFLOWS.register_module("by_async_client")
class ByAsyncClient(Turns):
    is_async = True

    async def run_async(self):
        self.model.enable_history = True
        async with self.model.get_openai_async_client() as client:
            said = []
            for _ in range(2):
                answer = await client.chat.completions.create(
                    model=client.model_path, messages=self.messages(*said), max_tokens=4, temperature=1.0
                )
                said.append(answer.choices[0].message.content)
        return self.rewarded(self.model.extract_experience_from_history())
'''


def _trained(folder: Path, workflow: str, **changes: Any) -> tuple[list[list[int]], list[float]]:
    run = prepared_plugin(
        folder,
        PLUGIN,
        buffer__explorer_input__default_workflow_type=workflow,
        buffer__trainer_input={
            "experience_buffer": {"name": "kept", "storage_type": "sql", "path": "sqlite:///kept.db"}
        },
        explorer__rollout_model={"dtype": "float32", "enable_openai_api": True},
        model__min_response_tokens=0,  # which holds for the wrapper only: requests of a client have a key of their own
        deterministic=True,  # else the engine computes together what arrives together, and sums round otherwise
        **changes,
    )
    ended = run.finish()
    assert ended.status == 0, ended.output[-3000:]
    with Session(create_engine(f"sqlite:///{folder}/kept.db")) as session:
        rows = [row.to_experience() for row in session.scalars(select(ExperienceModel))]
    rows.sort(key=lambda exp: exp.eid.uid)
    return [exp.tokens.tolist() for exp in rows], [line["actor/final_loss"] for line in training_lines(run)]


@pytest.mark.runs("docs/workflows.md", "from trinity.common.workflows import WORKFLOWS, Workflow\n")
def test_the_agent_of_the_page_trains(tmp_path: Path) -> None:
    (agent,) = [code for code in Page(ROOT / "docs/workflows.md").code("python") if "own_agent" in code]
    run = prepared_plugin(
        tmp_path,
        agent,
        buffer__explorer_input__default_workflow_type="own_agent",
        explorer__rollout_model={"dtype": "float32", "enable_openai_api": True},
    )
    ended = run.finish()
    assert ended.status == 0, ended.output[-3000:]
    assert [line["rollout/finished_task_count"] for line in run.lines("explorer")[:2]] == [2, 2]


def test_a_client_trains_the_tokens_and_weights_of_the_wrapper(tmp_path: Path) -> None:
    expected = _trained(tmp_path / "wrapper", "by_wrapper")
    assert len(expected[0]) == 16 and len(set(map(tuple, expected[0]))) == 16
    assert _trained(tmp_path / "client", "by_client") == expected
    assert _trained(tmp_path / "async", "by_async_client") == expected
    in_processes = _trained(tmp_path / "process", "by_client", explorer__runner_isolation="process")
    assert in_processes == expected
