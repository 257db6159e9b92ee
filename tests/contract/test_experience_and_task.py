"""Experiences, their identities and tasks, written as the published interface has them."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass

import pytest
import torch

from trinity.common.config import FormatConfig, GenerationConfig
from trinity.common.errors import DataError, WorkflowError
from trinity.common.experience import EID, CustomField, Experience, Experiences, from_hf_datasets, to_hf_datasets
from trinity.common.workflows import SimpleWorkflow, Task


def _made(**more: object) -> Experience:
    values = {"eid": EID(batch=1, task=2, run=3, step=4, suffix="a"), "tokens": [5, 6, 7, 8], "prompt_length": 2}
    return Experience(**(values | {"logprobs": [-0.25, -0.5], "reward": 1.5} | more))  # type: ignore[arg-type]


RICH = {
    "info": {"model_version": 3, "weight": 0.5, "list": [{"a": None, "b": 2}]},
    "metrics": {"accuracy": 1.0},
    "messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}],
    "action_mask": [True, False],
    "token_level_reward": [0.5, 1.0],
    "teacher_logprobs": [-1.0, -2.0],
    "multi_modal_inputs": {"pixels": torch.ones(2, 2)},
    "custom_fields": [CustomField(source_field="weight", destination_field="weights", data_type=torch.float64)],
    "truncate_status": "response_truncated",
}


def _same(one: Experience, other: Experience) -> bool:
    return one.serialize() == other.serialize()


def test_an_identity_as_text_and_as_a_mapping() -> None:
    eid = EID(batch="1/eval", task=2, run=3, step=4, suffix="a")
    assert str(eid) == f"{eid}" == eid.uid == "1/eval/2/3/4/a"
    assert eid.to_dict() == {"batch": "1/eval", "task": 2, "run": 3, "step": 4, "suffix": "a"}
    assert _made(eid=eid.to_dict()).eid == eid
    assert _made(eid=None).eid == EID()


def test_a_pair_needs_no_prompt_length() -> None:
    pair = Experience(tokens=torch.tensor([1, 2, 3]), chosen=torch.tensor([4, 5]), rejected=torch.tensor([6]))
    assert (pair.prompt_length, pair.response_length, pair.experience_type) == (3, 0, "dpo")
    batch = Experiences.gather([pair])
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 6, 0]]
    assert batch.prompt_length == 3


def test_a_truncated_prompt_is_not_trained_on() -> None:
    assert _made(truncate_status="prompt_truncated").action_mask.tolist() == [False, False]  # type: ignore[union-attr]
    assert _made(truncate_status="response_truncated").action_mask.tolist() == [True, True]  # type: ignore[union-attr]
    own = _made(truncate_status="prompt_truncated", action_mask=[True, False])
    assert own.action_mask.tolist() == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["logprobs", "teacher_logprobs", "action_mask"])
def test_values_of_prompt_and_response_are_those_of_the_response(name: str) -> None:
    values = torch.tensor([9.0, 8.0, 1.0, 0.0])
    taken = getattr(_made(**{name: values}), name)
    assert taken.float().tolist() == [1.0, 0.0]
    with pytest.raises(DataError, match=rf"{name} must have 2 entries"):
        _made(**{name: values[:3]})


def test_an_experience_as_a_mapping_in_a_batch_of_bytes_and_in_a_dataset() -> None:
    made = [
        _made(**RICH),
        _made(info={"other": "b"}, reward=None),
        _made(tokens=[1, 2], logprobs=None, chosen=[3], rejected=[4]),
    ]  # type: ignore[arg-type]
    named = made[0].to_dict()
    assert named["tokens"] == [5, 6, 7, 8] and named["eid"]["run"] == 3 and named["reward"] == 1.5
    assert all(_same(each, Experience(**each.to_dict())) for each in made)
    data = Experience.serialize_many(made)
    assert [e.serialize() for e in Experience.deserialize_many(data)] == [e.serialize() for e in made]
    assert Experience.deserialize_many(b"") == []
    for torn in (data[:-1], data[: len(made[0].serialize()) + 3], b"\x80\x04]."):  # the last is a pickle
        with pytest.raises(DataError, match="E5101"):
            Experience.deserialize_many(torn)
    dataset = to_hf_datasets(made)
    assert dataset.num_rows == 3 and list(dataset["reward"]) == [1.5, None, 1.5]
    made[0].info["list"][0].pop("a")  # Arrow does not tell a null from one that is missing
    assert all(_same(one, other) for one, other in zip(made, from_hf_datasets(dataset), strict=True))


def test_the_options_of_a_task_are_plain_dataclasses_of_its_own() -> None:
    formats, rollout = FormatConfig(prompt_key="question"), GenerationConfig(temperature=0.7, top_k=3)
    tasks = [Task(format_args=formats, rollout_args=rollout, raw_task={"question": "1 + 1"}) for _ in range(2)]
    assert all(is_dataclass(each) for each in (tasks[0].rollout_args, tasks[0].format_args))
    assert asdict(tasks[0].rollout_args) | {"n": 1} == rollout.model_dump() | {"n": 1}
    assert asdict(tasks[0].format_args) == formats.model_dump()
    tasks[0].rollout_args.temperature = 0.1
    tasks[0].format_args.system_prompt = "Be brief."
    assert (tasks[1].rollout_args.temperature, tasks[1].format_args.system_prompt) == (0.7, None)
    assert (rollout.temperature, formats.system_prompt) == (0.7, None)
    assert tasks[0].task_desc == "1 + 1" and tasks[0].to_dict() == {"question": "1 + 1"}


def test_a_task_needs_a_workflow_only_to_be_attempted() -> None:
    task = Task(raw_task={"prompt": "a", "response": "b"})
    assert (task.task_desc, task.truth, task.rollout_args.temperature) == ("a", "b", None)
    with pytest.raises(WorkflowError, match=r"E5108.*no workflow"):
        task.to_workflow(model=None)  # type: ignore[arg-type]


def test_the_number_of_repeats_is_in_the_sampling_arguments_of_the_task() -> None:
    class Own(SimpleWorkflow):
        default_reward_fn = "accuracy_reward"

    workflow = Task(workflow=Own, raw_task={"prompt": "a"}).to_workflow(model=None)  # type: ignore[arg-type]
    workflow.set_repeat_times(repeat_times=5, run_id_base=2)
    assert asdict(workflow.task.rollout_args)["n"] == 5
