"""What happens to rollouts in a run whose operators drop some: the step is filled again, and every number adds up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.tiny_run import TinyRun
from trinity.buffer.store import ExperienceStore

PLUGIN = '''
"""Every second task gives equal rewards; operators of both published forms leave its rollouts out."""

from collections import Counter

from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator, ExperienceOperatorV1
from trinity.common.workflows import WORKFLOWS, Workflow

SEEN = Counter()


@WORKFLOWS.register_module("half_without_signal")
class HalfWithoutSignal(Workflow):
    def run(self):
        number = int(self.task.raw_task["answer"])
        (answer,) = self.model.chat([{"role": "user", "content": self.task.raw_task["question"]}], n=1)
        SEEN[number] += 1
        answer.reward = 1.0 if number % 2 else float(SEEN[number] % 2)
        return [answer]


def with_signal(exps, least):
    rewards = {}
    for exp in exps:
        rewards.setdefault(exp.eid.tid, set()).add(exp.reward)
    return [exp for exp in exps if len(rewards[exp.eid.tid]) >= least], {}


@EXPERIENCE_OPERATORS.register_module("drop_equal")
class DropEqual(ExperienceOperatorV1):
    drops_experiences = True

    async def process(self, exps):
        return with_signal(exps, 2)


@EXPERIENCE_OPERATORS.register_module("keep_all")
class KeepAll(ExperienceOperator):
    def process(self, exps):
        return with_signal(exps, 1)
'''


@pytest.mark.difference("Rollouts that `dapo_dynamic_sampling` and other operators drop")
def test_dropped_tasks_are_replaced_and_every_rollout_has_one_fate(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, plugin=PLUGIN)
    run.write_rows([{"question": f"{number}=", "answer": str(number)} for number in range(16)])
    operators = [{"name": "keep_all"}, {"name": "drop_equal"}]
    run.change(
        deterministic=True,
        buffer__explorer_input__default_workflow_type="half_without_signal",
        data_processor__experience_pipeline={"operators": operators, "max_refill_batches": 2},
    )
    ended = run.finish()
    assert ended.status == 0, ended.output
    assert re.search(r"rollouts: \d+ issued = 8 trained \+ \d+ filtered/drop_equal \+ 0 waiting", ended.output)
    steps = run.lines("trainer")
    assert [line["sample/rollout_count"] for line in steps] == [4, 4]  # full batches
    assert [line["fate/trained"] for line in steps] == [4, 8]
    explored = [line for line in run.lines("explorer") if "fate/issued" in line]
    more = [line["experience_pipeline/refill/task_count"] for line in explored]
    assert min(more) >= 1 and [line["experience_pipeline/refill/missing_count"] for line in explored] == [0, 0]
    last = explored[-1]
    assert last["fate/issued"] == 2 * (4 + sum(more)) == 8 + last["fate/filtered/drop_equal"]
    with ExperienceStore(f"sqlite:///{tmp_path}/out/tiny/run/buffer/experience.db") as store:
        found = store.fates("experience_buffer", run="tiny/run")
    assert found.waiting == 0 and found.ended == {"trained": 8, "filtered/drop_equal": last["fate/filtered/drop_equal"]}
