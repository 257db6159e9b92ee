"""Which chat template is used, what it may not do, and masks of the assistant's part."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from transformers import PreTrainedTokenizerBase

from tests.tiny import tiny_model, tiny_tokenizer
from trinity.common.config.model import ModelConfig
from trinity.common.errors import EnvironmentProblem
from trinity.common.models import load_tokenizer
from trinity.common.models.chat_template import render_chat
from trinity.common.models.utils import (
    get_action_mask_method,
    tokenize_and_mask_messages_default,
    tokenize_and_mask_messages_hf,
)

ASK = [{"role": "user", "content": "1+2="}]
TALK = [
    {"role": "user", "content": "1+2="},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": ";4+5="},
    {"role": "assistant", "content": "9"},
]
ROLES = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}"
OPENING = ROLES + "{% if add_generation_prompt %}a:{% endif %}"


def loaded(path: Path, **settings: str | None) -> PreTrainedTokenizerBase:
    return load_tokenizer(ModelConfig.model_validate({"model_path": str(path)} | settings))


def text(tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(render_chat(tokenizer, ASK)[0])


@pytest.mark.difference("Chat template")
def test_the_file_wins_over_the_text_and_the_text_over_the_tokenizer(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    file = tmp_path / "template.jinja"
    file.write_text("file {{ messages[0]['content'] }}", encoding="utf-8")
    custom = "text {{ messages[0]['content'] }}"
    assert text(loaded(tmp_path)) == "1+2="
    assert text(loaded(tmp_path, custom_chat_template=custom)) == "text 1+2="
    both = loaded(tmp_path, custom_chat_template=custom, chat_template_path=str(file))
    assert text(both) == "file 1+2="


def test_the_bare_word_none_means_the_tokenizer_template(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    assert text(loaded(tmp_path, custom_chat_template="None", chat_template_path="None")) == "1+2="


def test_a_missing_template_is_said_when_one_is_needed(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path, chat_template=None)
    tokenizer = loaded(tmp_path)
    with pytest.raises(EnvironmentProblem, match="E3107.*model.chat_template_path"):
        render_chat(tokenizer, ASK)


def test_an_unreadable_template_file_is_named(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    with pytest.raises(EnvironmentProblem, match="E3109.*nowhere.jinja"):
        loaded(tmp_path, chat_template_path=str(tmp_path / "nowhere.jinja"))


def test_a_syntax_error_is_found_at_loading_with_its_line(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    with pytest.raises(EnvironmentProblem, match="E3109.*custom_chat_template, line 3"):
        loaded(tmp_path, custom_chat_template="a\nb\n{% for %}")


def test_a_template_that_fails_says_its_line(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    tokenizer = loaded(tmp_path, custom_chat_template="a\n{{ raise_exception('no system role') }}")
    with pytest.raises(EnvironmentProblem, match="E3109.*line 2.*no system role"):
        render_chat(tokenizer, ASK)


@pytest.mark.parametrize("mistake", ["{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{% for i in range(10 ** 9) %}{% endfor %}"])
def test_a_template_with_a_mistake_says_its_line(tmp_path: Path, mistake: str) -> None:
    tiny_tokenizer(tmp_path)
    tokenizer = loaded(tmp_path, custom_chat_template="a\n\n" + mistake)
    with pytest.raises(EnvironmentProblem, match="E3109.*line 3"):
        render_chat(tokenizer, ASK)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages[0].update({'content': 'x'}) %}",
    ],
)
def test_templates_cannot_leave_the_sandbox(tmp_path: Path, attack: str) -> None:
    tiny_tokenizer(tmp_path)
    tokenizer = loaded(tmp_path, custom_chat_template="\n" + attack)
    with pytest.raises(EnvironmentProblem, match="E3109.*line 2.*SecurityError") as caught:
        render_chat(tokenizer, ASK)
    assert isinstance(caught.value.__cause__, jinja2.exceptions.SecurityError)


def test_a_tokenizer_is_read_as_it_was_saved(tmp_path: Path) -> None:
    """A Qwen2 folder keeps its own rules for splitting text, spaces included."""
    tiny_model(tmp_path, "qwen2")
    tokenizer = loaded(tmp_path)
    assert tokenizer.decode(tokenizer("a b  c")["input_ids"]) == "a b  c"


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=f"E3102.*{tmp_path}"):
        loaded(tmp_path)


def test_masks_by_tags_and_by_parts_agree(tmp_path: Path) -> None:
    tagged = tiny_tokenizer(tmp_path)
    tokens, mask, prompt_length = tokenize_and_mask_messages_hf(tagged, TALK)
    assert tagged.decode(tokens) == "1+2=3<eos>;4+5=9<eos>"
    assert mask.tolist() == [0] * 4 + [1, 1] + [0] * 5 + [1, 1]
    assert prompt_length == 4
    other_tokens, other_mask, other_length = tokenize_and_mask_messages_default(tagged, TALK)
    assert (other_tokens.tolist(), other_mask.tolist(), other_length) == (tokens.tolist(), mask.tolist(), 4)


def test_the_opening_of_an_answer_is_not_the_assistants(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, chat_template=OPENING)
    tokens, mask, prompt_length = tokenize_and_mask_messages_default(tokenizer, TALK)
    written = tokenizer.decode([t for t, m in zip(tokens.tolist(), mask.tolist(), strict=True) if m])
    assert tokenizer.decode(tokens) == "u:1+2=;a:3;u:;4+5=;a:9;"
    assert written == "3;9;"
    assert tokenizer.decode(tokens[:prompt_length]) == "u:1+2=;a:"


def test_a_conversation_without_an_answer_has_an_empty_mask(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    for method in (tokenize_and_mask_messages_hf, tokenize_and_mask_messages_default):
        tokens, mask, prompt_length = method(tokenizer, ASK)
        assert len(tokens) == 4 and mask.sum() == 0 and prompt_length == 0


def test_the_method_follows_the_template() -> None:
    assert get_action_mask_method("{%- generation -%}x{% endgeneration %}") is tokenize_and_mask_messages_hf
    assert get_action_mask_method(ROLES) is tokenize_and_mask_messages_default
    assert get_action_mask_method(None) is tokenize_and_mask_messages_default


def test_parts_that_are_texts_are_rendered_as_one_text(tmp_path: Path) -> None:
    """Templates of models for text know no parts."""
    tiny_tokenizer(tmp_path, chat_template=OPENING)
    tokenizer = loaded(tmp_path)
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2="}]
    assert render_chat(tokenizer, [{"role": "user", "content": parts}])[0] == render_chat(tokenizer, ASK)[0]
    image = [{"role": "user", "content": [*parts, {"type": "image"}]}]
    assert "image" in tokenizer.decode(render_chat(tokenizer, image)[0]), "others are the template's"
