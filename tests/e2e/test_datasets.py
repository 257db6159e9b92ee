"""Training on datasets: conversations, pairs, texts; each run as a whole and in two parts, with equal weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

STEPS, ROWS = 4, 12
BUFFER = "buffer__trainer_input__experience_buffer"
# Conversations with a mark at the end of every turn, and the tools before them.
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool['function']['name'] + ';' }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '#' }}"
    "{% endif %}{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def texts(a: int) -> dict[str, Any]:
    return {"text": f"{a}+{a}={2 * a} and {a}-{a}=0"}


def pair_of_texts(a: int) -> dict[str, Any]:
    return {"question": f"{a}+{a}=", "good": f"{2 * a}", "bad": f"{2 * a}" + "0" * (1 + a % 3)}


def pair_of_messages(a: int) -> dict[str, Any]:
    row = pair_of_texts(a)
    prompt = [message("system", "add"), message("user", row["question"])]
    return {
        "messages": prompt,
        "chosen": [message("assistant", row["good"])],
        "rejected": [message("assistant", row["bad"])],
    }


def conversation(a: int) -> dict[str, Any]:
    turns = [message("user", f"{a}+{a}="), message("assistant", f"{2 * a}"), message("user", "+1="),
             message("assistant", f"{2 * a + 1}")]  # fmt: skip
    return {"messages": turns, "tools": TOOLS if a % 2 else json.dumps(TOOLS)}


MESSAGES = {"prompt_type": "messages", "messages_key": "messages"}
CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "cpt": ({"algorithm_type": "cpt"}, texts, {"prompt_key": "text"}),
    "dpo plaintext": (
        {"algorithm_type": "dpo", "policy_loss_fn_args": {"beta": 0.2}},
        pair_of_texts,
        {"prompt_key": "question", "chosen_key": "good", "rejected_key": "bad", "system_prompt": "add "},
    ),
    "dpo messages": (
        {"algorithm_type": "dpo", "policy_loss_fn_args": {"label_smoothing": 0.1, "sft_coef": 0.5}},
        pair_of_messages,
        MESSAGES,
    ),
    "dpo of an adapter": (
        {"algorithm_type": "dpo", "optimizer": {"lr": 5.0e-3}, "policy_loss_fn_args": {"beta": 0.5}},
        pair_of_texts,
        {"prompt_key": "question", "chosen_key": "good", "rejected_key": "bad"},
    ),
    "sft": ({"algorithm_type": "sft"}, conversation, MESSAGES | {"enable_concatenated_multi_turn": True}),
}


def make_run(folder: Path, name: str) -> TinyRun:
    """Return a run of `STEPS` steps of 5 experiences over 12 rows, so that a step crosses the end of an epoch."""
    algorithm, make_row, columns = CASES[name]
    run = TinyRun(folder)
    tiny_model(folder / "model", "llama", seed=1, scale=3.0, chat_template=TEMPLATE)
    run.write_rows([make_row(a) for a in range(10, 10 + ROWS)], "data.jsonl")
    run.tree["algorithm"] = {"optimizer": {"lr": 2.0e-3}} | algorithm
    run.tree["buffer"] = {}
    if name == "dpo of an adapter":  # the reference is the model without it
        run.change(model__lora_configs=[{"lora_rank": 8, "lora_alpha": 32}])
    for section in ("explorer", "synchronizer"):
        del run.tree[section]
    run.change(
        mode="train",
        deterministic=True,
        checkpoint_root_dir=str(folder / "out"),
        model__model_path=str(folder / "model"),
        buffer__train_batch_size=5,
        trainer__total_steps=STEPS,
        trainer__save_hf_checkpoint="always",
        trainer__trainer_config={"actor_rollout_ref": {"actor": {"fsdp_config": {"dtype": "float32"}}}},
        **{f"{BUFFER}__path": str(folder / "data.jsonl"), f"{BUFFER}__format": columns},
    )
    return run


def finish(run: TinyRun, steps: int) -> None:
    """Run in this process until `steps` training steps are done."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(overrides=(f"trainer.total_steps={steps}",))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None and result.stages[-1].training_step == steps


@pytest.mark.parametrize("name", CASES)
def test_a_dataset_is_learnt_and_continued_to_the_same_weights(tmp_path: Path, name: str) -> None:
    whole, parts = make_run(tmp_path / "whole", name), make_run(tmp_path / "parts", name)
    finish(whole, STEPS)
    finish(parts, STEPS - 1)
    finish(parts, STEPS)
    assert final_weights(parts, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
    lines = whole.lines("trainer")
    assert [line["sample/experience_count"] for line in lines] == [5.0] * STEPS
    assert all(line["actor/skipped_steps"] == 0 and line["actor/grad_norm"] > 1e-3 for line in lines)
    if not name.startswith("dpo"):
        assert lines[-1]["actor/sft_loss"] < lines[0]["actor/sft_loss"]
        return
    first, last = lines[0], lines[-1]
    assert first["actor/margin"] == pytest.approx(0.0, abs=1e-4), "policy and reference are one model"
    assert last["actor/margin"] > 0.1 and last["actor/accuracy_mean"] > first["actor/accuracy_mean"]
    assert last["actor/dpo_loss"] < first["actor/dpo_loss"] == pytest.approx(0.6931, abs=1e-3)
    assert last["actor/chosen_logprob"] > first["actor/chosen_logprob"], "not only the margin"
    assert "actor/kl_loss" not in first and ("actor/sft_loss" in first) == (name == "dpo messages")
