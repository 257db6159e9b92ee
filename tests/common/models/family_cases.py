"""Conversations with each family's template, and what was said in them, written by hand from the published formats."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text} | more


def call(arguments: Any, **more: Any) -> Message:
    function = {"name": "add", "arguments": arguments}
    return answer("", tool_calls=[{"id": "abcdefghi", "type": "function", "function": function}]) | more


def result(text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": "abcdefghi"}


TURNS = [user("1+2, größe?"), answer("3 数学"), user("go on"), answer("naïve 九")]
WITH_SYSTEM = [system("be brief"), *TURNS]
EMPTY = [user("a"), answer(""), user("b"), answer("c")]
THOUGHTS = [user("a"), answer("<think>\nwhy\n</think>\n\n3"), user("b"), answer("c")]
THOUGHT_LAST = [user("a"), answer("<think>\nwhy\n</think>\n\n3")]
BLANKS_LAST = [user("a"), answer(" 3 \n")]
BLANKS = [*BLANKS_LAST, user("b"), answer("c")]
ASKED_LAST = [user("a"), answer("3"), user("b")]
TOOLS = [user("a"), call({"a": 1}), result("2"), answer("3")]
REWRITTEN = "refused"

QWEN = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
QWEN_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
)
ASKS = "<|start_header_id|>user<|end_header_id|>\n\n"
SAYS = "<|start_header_id|>assistant<|end_header_id|>\n\n"

END = {
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "mistral": "</s>",
    "gemma3": "<end_of_turn>",
    "phi3_5": "<|end|>",
    "deepseek_r1": "<｜end▁of▁sentence｜>",
    "glm4_5": "<|user|>",
}
# What the prompt ends with already, where a message repeats it.
OPENED = {"deepseek_r1": "<think>\n"}

# Family, options, conversation, text with what was said between « and ».
CASES: list[tuple[str, dict[str, Any], list[Message], str]] = [
    (
        "qwen2_5",
        {},
        TURNS,
        f"{QWEN}<|im_start|>user\n1+2, größe?<|im_end|>\n<|im_start|>assistant\n«3 数学<|im_end|>»\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n«naïve 九<|im_end|>»",
    ),
    (
        "qwen2_5",
        {},
        WITH_SYSTEM,
        "<|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\n1+2, größe?<|im_end|>\n<|im_start|>assistant\n«3 数学<|im_end|>»\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n«naïve 九<|im_end|>»",
    ),
    (
        "qwen2_5",
        {},
        EMPTY,
        f"{QWEN}<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<|im_end|>»\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n«c<|im_end|>»",
    ),
    (
        "qwen2_5",
        {},
        THOUGHTS,
        f"{QWEN}<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\n«<think>\nwhy\n</think>\n\n3<|im_end|>»\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n«c<|im_end|>»",
    ),
    (
        "qwen2_5",
        {},
        BLANKS,
        f"{QWEN}<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n« 3 \n<|im_end|>»\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n«c<|im_end|>»",
    ),
    (
        "qwen2_5",
        {},
        ASKED_LAST,
        f"{QWEN}<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«3<|im_end|>»",
    ),
    # The header of an answer of tool calls alone ends without a newline, which the opening of a prompt has.
    (
        "qwen2_5",
        {},
        TOOLS,
        f"{QWEN}<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«{QWEN_CALL}<|im_end|>»\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n«3<|im_end|>»",
    ),
    (
        "qwen3",
        {},
        TURNS,
        "<|im_start|>user\n1+2, größe?<|im_end|>\n<|im_start|>assistant\n«3 数学<|im_end|>»\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n«naïve 九<|im_end|>»",
    ),
    ("qwen3", {}, THOUGHTS, REWRITTEN),
    (
        "qwen3",
        {},
        THOUGHT_LAST,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<think>\nwhy\n</think>\n\n3<|im_end|>»",
    ),
    (
        "qwen3",
        {},
        [user("a"), answer("3", reasoning_content="why")],
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<think>\nwhy\n</think>\n\n3<|im_end|>»",
    ),
    ("qwen3", {"enable_thinking": False}, TURNS, REWRITTEN),
    (
        "qwen3",
        {"enable_thinking": False},
        [system("be brief"), user("a"), answer("3")],
        "<|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«3<|im_end|>»",
    ),
    (
        "qwen3",
        {},
        EMPTY,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<|im_end|>»\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n«c<|im_end|>»",
    ),
    (
        "qwen3",
        {},
        [user("a"), call({"a": 1}, content="<think>\nwhy\n</think>\n\n"), result("2"), answer("3")],
        f"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<think>\nwhy\n</think>\n\n{QWEN_CALL}<|im_end|>»\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n«3<|im_end|>»",
    ),
    (
        "llama3_1",
        {},
        TURNS,
        f"{LLAMA}<|eot_id|>{ASKS}1+2, größe?<|eot_id|>{SAYS}«3 数学<|eot_id|>»"
        f"{ASKS}go on<|eot_id|>{SAYS}«naïve 九<|eot_id|>»",
    ),
    (
        "llama3_1",
        {},
        WITH_SYSTEM,
        f"{LLAMA}be brief<|eot_id|>{ASKS}1+2, größe?<|eot_id|>{SAYS}«3 数学<|eot_id|>»"
        f"{ASKS}go on<|eot_id|>{SAYS}«naïve 九<|eot_id|>»",
    ),
    (
        "llama3_1",
        {},
        EMPTY,
        f"{LLAMA}<|eot_id|>{ASKS}a<|eot_id|>{SAYS}«<|eot_id|>»{ASKS}b<|eot_id|>{SAYS}«c<|eot_id|>»",
    ),
    ("llama3_1", {}, BLANKS, REWRITTEN),
    ("llama3_1", {}, BLANKS_LAST, f"{LLAMA}<|eot_id|>{ASKS}a<|eot_id|>{SAYS}« 3 \n<|eot_id|>»"),
    (
        "llama3_1",
        {},
        TOOLS,
        f'{LLAMA}<|eot_id|>{ASKS}a<|eot_id|>{SAYS}«{{"name": "add", "parameters": {{"a": 1}}}}<|eot_id|>»'
        f'<|start_header_id|>ipython<|end_header_id|>\n\n"2"<|eot_id|>{SAYS}«3<|eot_id|>»',
    ),
    (
        "mistral",
        {},
        TURNS,
        "<s>[INST] 1+2, größe?[/INST]« 3 数学</s>»[INST] go on[/INST]« naïve 九</s>»",
    ),
    # The system prompt moves to the last question, so that later prompts lack what the first answer answered.
    ("mistral", {}, WITH_SYSTEM, REWRITTEN),
    ("mistral", {}, [system("be brief"), user("a"), answer("3")], "<s>[INST] be brief\n\na[/INST]« 3</s>»"),
    ("mistral", {}, EMPTY, "<s>[INST] a[/INST]« </s>»[INST] b[/INST]« c</s>»"),
    ("mistral", {}, BLANKS, REWRITTEN),
    (
        "mistral",
        {},
        TOOLS,
        '<s>[INST] a[/INST]«[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]</s>»'
        '[TOOL_RESULTS] {"content": 2, "call_id": "abcdefghi"}[/TOOL_RESULTS]« 3</s>»',
    ),
    (
        "gemma3",
        {},
        WITH_SYSTEM,
        "<bos><start_of_turn>user\nbe brief\n\n1+2, größe?<end_of_turn>\n<start_of_turn>model\n«3 数学<end_of_turn>»\n"
        "<start_of_turn>user\ngo on<end_of_turn>\n<start_of_turn>model\n«naïve 九<end_of_turn>»",
    ),
    (
        "gemma3",
        {},
        EMPTY,
        "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n«<end_of_turn>»\n"
        "<start_of_turn>user\nb<end_of_turn>\n<start_of_turn>model\n«c<end_of_turn>»",
    ),
    ("gemma3", {}, BLANKS, REWRITTEN),
    (
        "phi3_5",
        {},
        WITH_SYSTEM,
        "<|system|>\nbe brief<|end|>\n<|user|>\n1+2, größe?<|end|>\n<|assistant|>\n«3 数学<|end|>»\n"
        "<|user|>\ngo on<|end|>\n<|assistant|>\n«naïve 九<|end|>»",
    ),
    (
        "phi3_5",
        {},
        EMPTY,
        "<|user|>\na<|end|>\n<|assistant|>\n«<|end|>»\n<|user|>\nb<|end|>\n<|assistant|>\n«c<|end|>»",
    ),
    ("phi3_5", {}, ASKED_LAST, "<|user|>\na<|end|>\n<|assistant|>\n«3<|end|>»"),
    # Its prompts open the thought, which no earlier turn keeps: several answers are never one sequence.
    ("deepseek_r1", {}, THOUGHTS, REWRITTEN),
    ("deepseek_r1", {}, TURNS, REWRITTEN),
    ("deepseek_r1", {}, EMPTY, REWRITTEN),
    (
        "deepseek_r1",
        {},
        [system("be brief"), user("1+2, größe?"), answer("数学\n</think>\n\n3")],
        "<｜begin▁of▁sentence｜>be brief<｜User｜>1+2, größe?<｜Assistant｜><think>\n"
        "«数学\n</think>\n\n3<｜end▁of▁sentence｜>»",
    ),
    (
        "deepseek_r1",
        {},
        THOUGHT_LAST,
        "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜><think>\n«why\n</think>\n\n3<｜end▁of▁sentence｜>»",
    ),
    # What follows an answer is its end: a question, the result of a tool.
    ("glm4_5", {}, TURNS, REWRITTEN),
    ("glm4_5", {}, THOUGHTS, REWRITTEN),
    (
        "glm4_5",
        {"enable_thinking": False},
        WITH_SYSTEM,
        "[gMASK]<sop><|system|>\nbe brief<|user|>\n1+2, größe?/nothink<|assistant|>\n<think></think>"
        "«\n3 数学<|user|>»\ngo on/nothink<|assistant|>\n<think></think>«\nnaïve 九»",
    ),
    (
        "glm4_5",
        {},
        [user("a"), call({"a": 1}, content="<think>why</think>"), result("2"), answer("<think>so</think>\n3")],
        "[gMASK]<sop><|user|>\na<|assistant|>«\n<think>why</think>\n<tool_call>add\n<arg_key>a</arg_key>\n"
        "<arg_value>1</arg_value>\n</tool_call><|observation|>»\n<tool_response>\n2\n</tool_response>"
        "<|assistant|>«\n<think>so</think>\n3»",
    ),
    (
        "glm4_5",
        {"enable_thinking": False},
        EMPTY,
        "[gMASK]<sop><|user|>\na/nothink<|assistant|>\n<think></think>«<|user|>»\n"
        "b/nothink<|assistant|>\n<think></think>«\nc»",
    ),
]
