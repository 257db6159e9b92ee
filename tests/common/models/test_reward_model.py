"""Reward models: scores against Hugging Face's own, other tokenizers, what is refused, what happens to a score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)

from tests.resolved import resolved
from tests.tiny import CHARACTERS, tiny_model, tiny_tokenizer
from trinity.buffer.operators.mappers import RewardShapingMapper
from trinity.buffer.pipelines.reward_model import RewardModelScores
from trinity.common.config import Config
from trinity.common.errors import ConfigError, EnvironmentProblem, OutOfMemoryError, WorkflowError
from trinity.common.experience import EID, Experience
from trinity.common.models.reward_models import REWARD_MODELS, RewardModel
from trinity.common.models.reward_models.sequence_classifier import SequenceClassifier
from trinity.explorer.assembly import build_reward_model

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }};{% endfor %}"


def make_reward_model(path: Path, family: str = "llama", **tiny: Any) -> PreTrainedModel:
    """Write a sequence classifier with a random head to `path` and return it."""
    tiny_model(path, family, **{"seed": 9} | tiny)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    torch.nn.init.normal_(model.score.weight, generator=torch.Generator().manual_seed(3))
    model.save_pretrained(path)
    return model.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, a reward model of its vocabulary, and one with another vocabulary and template."""
    folder = tmp_path_factory.mktemp("reward_models")
    tiny_model(folder / "policy")
    make_reward_model(folder / "same")
    make_reward_model(folder / "other", characters=CHARACTERS[::-1] + "é", chat_template=TEMPLATE)
    return folder


def config_of(folders: Path, name: str, **section: Any) -> Config:
    inner = section.pop("model", {})
    settings = {"enable": True, "dtype": "float32", "model": {"path": str(folders / name)} | inner} | section
    model = {"model_path": str(folders / "policy"), "max_model_len": 512}
    return resolved({"model": model, "trainer": {"trainer_config": {"reward_model": settings}}})


def rollouts(folders: Path, **changes: Any) -> list[Experience]:
    """Return five rollouts of different lengths, each ending in the end-of-sequence token."""
    tokenizer = AutoTokenizer.from_pretrained(folders / "policy")
    found = []
    for run, (prompt, answer) in enumerate(
        [("1+1=", "2"), ("12*3=", "thirty-six"), ("a", "b c"), ("7", "?"), ("0-1=", "-1")]
    ):
        tokens, answer_tokens = tokenizer(prompt)["input_ids"], tokenizer(answer)["input_ids"] + [1]
        found.append(Experience(EID(1, 0, run), tokens + answer_tokens, len(tokens), reward=float(run), **changes))
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_score_is_the_logit_at_the_last_token(folders: Path, tmp_path: Path, family: str) -> None:
    plain = make_reward_model(tmp_path / family, family)
    plain.config.pad_token_id = None  # one row at a time, whose last token is the last
    made = SequenceClassifier(config_of(folders, str(tmp_path / family)))
    expected = [float(plain(exp.tokens[None]).logits.detach()) for exp in rollouts(folders)]
    assert made.score(rollouts(folders)) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.1


def test_an_encoder_pools_in_its_own_way(folders: Path, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, num_labels=1, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        plain = BertForSequenceClassification(config).eval()
    plain.save_pretrained(tmp_path)
    made = SequenceClassifier(config_of(folders, str(tmp_path)))
    expected = [float(plain(exp.tokens[None]).logits.detach()) for exp in rollouts(folders)]
    assert made.score(rollouts(folders)) == pytest.approx(expected, abs=1e-5)
    assert made.max_length == 64 and max(expected) > min(expected)


def test_an_end_token_that_is_also_padding_is_not_passed_over(folders: Path, tmp_path: Path) -> None:
    plain = make_reward_model(tmp_path / "m")
    plain.config.pad_token_id = plain.config.eos_token_id
    plain.save_pretrained(tmp_path / "m")
    plain.config.pad_token_id = None
    made = SequenceClassifier(config_of(folders, str(tmp_path / "m")))
    exp = rollouts(folders)[0]
    assert made.score([exp]) == pytest.approx([float(plain(exp.tokens[None]).logits.detach())], abs=1e-5)


def test_another_tokenizer_reads_the_text_under_its_own_template(folders: Path) -> None:
    made = SequenceClassifier(config_of(folders, "other", model={"input_tokenizer": str(folders / "policy")}))
    tokenizer = AutoTokenizer.from_pretrained(folders / "other")
    plain = AutoModelForSequenceClassification.from_pretrained(folders / "other")
    plain.config.pad_token_id = None

    def score(text: str) -> float:
        return float(plain(torch.tensor([tokenizer(text)["input_ids"]])).logits.detach())

    decoded = made.score(rollouts(folders))
    assert decoded[1] == pytest.approx(score("<user>12*3=;<assistant>thirty-six;"), abs=1e-5)
    talk = [{"role": "system", "content": "S"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    spoken = made.score(rollouts(folders, messages=talk))
    assert spoken == pytest.approx([score("<system>S;<user>u;<assistant>a;")] * 5, abs=1e-5)


def test_the_split_changes_no_score_and_long_conversations_are_cut_and_counted(folders: Path) -> None:
    def scores(**section: Any) -> list[float]:
        return SequenceClassifier(config_of(folders, "same", **section)).score(rollouts(folders))

    whole = scores()
    assert scores(micro_batch_size_per_gpu=1) == pytest.approx(whole, abs=1e-5)
    assert scores(micro_batch_size=2) == pytest.approx(whole, abs=1e-5)
    assert scores(use_dynamic_bsz=True, forward_max_token_len_per_gpu=20) == pytest.approx(whole, abs=1e-5)
    made = SequenceClassifier(config_of(folders, "same", max_length=8))
    cut = made.score(rollouts(folders))
    assert made.num_truncated == 1 and cut[1] != whole[1]
    short = rollouts(folders)[1]
    short = Experience(short.eid, short.tokens[:8], short.prompt_length)
    assert cut[1] == pytest.approx(made.score([short])[0], abs=1e-6)


@pytest.mark.difference("Reward model with another vocabulary, without `input_tokenizer`")
def test_what_is_no_reward_model_of_this_policy_is_refused(folders: Path, tmp_path: Path) -> None:
    def load(name: str, **section: Any) -> SequenceClassifier:
        return SequenceClassifier(config_of(folders, name, **section))

    with pytest.raises(EnvironmentProblem, match=r"E3101.*reward_model\.model\.path .*nowhere"):
        load("nowhere")
    with pytest.raises(EnvironmentProblem, match=r"E3122.*score\.weight is missing.*reward_model\.worker"):
        load("policy")
    make_reward_model(tmp_path / "small", characters="0123456789")
    with pytest.raises(
        EnvironmentProblem, match=r"E3123.*13 tokens, the policy's tokenizer has ids up to \d+; if.*input_"
    ):
        load(str(tmp_path / "small"))
    with pytest.raises(ConfigError, match=r"E3124.*not the tokenizer of the rollouts.*model\.model_path"):
        load("other", model={"input_tokenizer": str(folders / "other")})
    with pytest.raises(ConfigError, match=r"E1860.*reward_model\.model\.path is missing"):
        load("same", model={"path": None})
    with pytest.raises(ConfigError, match=r"E1863.*names the module no_such_module"):
        load("same", model={"external_lib": ["json", "no_such_module"]})
    make_reward_model(tmp_path / "mute", chat_template=None)
    with pytest.raises(EnvironmentProblem, match=r"E3107.*has no chat template, which input_tokenizer asks"):
        load(str(tmp_path / "mute"), model={"input_tokenizer": str(folders / "policy")})


def test_out_of_memory_names_the_keys(folders: Path) -> None:
    made = SequenceClassifier(config_of(folders, "same"))

    def fail(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    made.model.score.register_forward_hook(fail)
    with pytest.raises(OutOfMemoryError, match=r"5 conversations of at most 16 tokens.*micro_batch_size_per_gpu"):
        made.score(rollouts(folders))


# --------------------------------------------------------------------- the pipeline's step
class Fixed(RewardModel):
    """Scores that the test sets."""

    def __init__(self, config: Config, function: Callable[[Experience], float]) -> None:
        super().__init__(config)
        self.function = function

    def score(self, experiences: Sequence[Experience]) -> list[float]:
        return [self.function(experience) for experience in experiences]


def step_of(function: Callable[[Experience], float]) -> RewardModelScores:
    return RewardModelScores(Fixed(Config(), function))


@pytest.mark.difference("Reward model and reward function")
def test_the_score_is_the_reward_and_that_of_the_function_stays_at_hand(folders: Path) -> None:
    given = rollouts(folders, token_level_reward=1.0)
    exps, metrics = step_of(lambda exp: 10.0 + exp.eid.run).process(given[::-1])
    assert [exp.reward for exp in exps] == [14.0, 13.0, 12.0, 11.0, 10.0], "each its own, in the order given"
    assert all(exp.token_level_reward is None for exp in exps)
    assert (metrics["score/mean"], metrics["score/max"], metrics["score/min"]) == (12.0, 14.0, 10.0)
    shaping = [{"stats_key": "reward_fn", "op_type": "ADD", "weight": 0.5}]
    shaped, _ = asyncio.run(RewardShapingMapper(reward_shaping_configs=shaping).process(exps))
    assert shaped[0].reward == 14.0 + 0.5 * 4.0


def test_scores_that_are_not_finite_are_dropped_and_counted(folders: Path) -> None:
    exps, metrics = step_of(lambda exp: float("nan") if exp.eid.run == 2 else 1.0).process(rollouts(folders))
    assert [exp.eid.run for exp in exps] == [0, 1, 3, 4] and metrics["not_finite_count"] == 1
    with pytest.raises(WorkflowError, match=r"E5151.*Fixed gave none of 5 experiences a finite score"):
        step_of(lambda exp: float("inf")).process(rollouts(folders))
    assert step_of(lambda exp: 0.0).process([]) == ([], {})


def test_a_refill_of_which_no_score_is_finite_is_dropped_where_the_model_has_given_others(folders: Path) -> None:
    step = step_of(lambda exp: float("nan") if exp.eid.run == 2 else 1.0)
    given = rollouts(folders)
    step.process(given)
    exps, metrics = step.process([exp for exp in given if exp.eid.run == 2])
    assert (exps, metrics["not_finite_count"]) == ([], 1)


def test_a_reward_model_must_score_every_experience(folders: Path) -> None:
    class Short(Fixed):
        def score(self, experiences: Sequence[Experience]) -> list[float]:
            return super().score(experiences)[:-1]

    with pytest.raises(WorkflowError, match=r"E5150.*Short must return one score an experience \(5\), got 4"):
        RewardModelScores(Short(Config(), lambda exp: 0.0)).process(rollouts(folders))


def test_arguments_that_a_worker_does_not_take_are_refused_where_it_is_made(folders: Path) -> None:
    config = config_of(folders, "same", worker_args={"weigth": 1})
    with pytest.raises(ConfigError, match=r"E1703.*worker_args of sequence_classifier: .*weigth"):
        build_reward_model(config)


def test_the_table_of_reward_models_names_classes() -> None:
    assert all(issubclass(REWARD_MODELS.get(name), RewardModel) for name in REWARD_MODELS.contents)
    assert REWARD_MODELS.get("sequence_classifier") is SequenceClassifier
