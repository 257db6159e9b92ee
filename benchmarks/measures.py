"""Measures of a model folder that no run logs: taken with Hugging Face's own forward, apart from what trained it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

Pair = tuple[list[int], list[int]]


def greedy_accuracy(folder: Path, model: Path, *, seed: int) -> float:
    """Return the accuracy of greedy answers to the quickstart's held-out problems, by the engine and the reward."""
    import yaml
    from algorithm_runs import make_config

    from trinity.launch.run import RunOptions, plan_run
    from trinity.quickstart.baseline import initial_accuracy

    config = folder / "accuracy.yaml"
    config.write_text(yaml.safe_dump(make_config("grpo", folder, seed=seed, model=model) | {"name": "accuracy"}))
    accuracy = initial_accuracy(plan_run(config, RunOptions()).stages[0].config)
    assert accuracy is not None, "the configuration evaluates"
    return accuracy


def preferences(model: Path, reference: Path, pairs: Path) -> dict[str, float]:
    """Return the share of pairs that a model prefers rightly, and the mean log-probability of the chosen answers.

    A pair is preferred rightly if the chosen answer has gained more over `reference` than the rejected one (DPO's
    implicit reward); for the reference itself, if the chosen answer is the likelier one.
    """
    rows = _rows(pairs)
    tokens = {key: [_encode(model, row["question"], row[key]) for row in rows] for key in ("chosen", "rejected")}
    own, base = _load(model), _load(reference)
    scores = {key: _sequence_logprobs(own, tokens[key]) for key in tokens}
    gains = dict(scores)
    if model != reference:
        gains = {key: scores[key] - _sequence_logprobs(base, tokens[key]) for key in tokens}
    return {
        "preference_accuracy": float((gains["chosen"] > gains["rejected"]).float().mean()),
        "chosen_logprob": float(scores["chosen"].mean()),
    }


@torch.no_grad()
def divergence(model: Path, teacher: Path | None, problems: Path) -> float:
    """Return the mean KL(model || teacher) a token, in nats, over the right solutions of held-out problems."""
    assert teacher is not None, "the teacher's run comes first"
    pairs = [_encode(model, row["question"], row["answer"]) for row in _rows(problems)]
    total, count = 0.0, 0
    for prompt, response in pairs:
        ids = torch.tensor([prompt + response])
        own, other = (
            folder_model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            for folder_model in (_load(model), _load(teacher))
        )
        total += float((own.exp() * (own - other)).sum())
        count += len(response)
    return total / count


@torch.no_grad()
def _sequence_logprobs(model: PreTrainedModel, pairs: list[Pair]) -> Tensor:
    """Return the log-probability of each response given its prompt, in nats."""
    sums = []
    for prompt, response in pairs:
        ids = torch.tensor([prompt + response])
        logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        sums.append(logprobs.gather(1, torch.tensor(response)[:, None]).sum())
    return torch.stack(sums)


_MODELS: dict[Path, PreTrainedModel] = {}


def _load(path: Path) -> PreTrainedModel:
    if path not in _MODELS:
        _MODELS[path] = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return _MODELS[path]


def _encode(model: Path, question: str, answer: str) -> Pair:
    tokenizer = AutoTokenizer.from_pretrained(model) if model not in _TOKENIZERS else _TOKENIZERS[model]
    _TOKENIZERS[model] = tokenizer
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return list(prompt), [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


_TOKENIZERS: dict[Path, object] = {}


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
