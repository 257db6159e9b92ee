"""Each of the fifteen questions of a newcomer's first hour has its answer under a heading, in both languages."""

from __future__ import annotations

import pytest

from tests.docs.pages import Page, page

# Question, page, and the heading that answers it in English and in Chinese.
QUESTIONS = (
    ("How do I use a dataset of the hub, with subset and split?", "own-data", "Data", "数据"),
    ("How do I write a reward? Do other columns and arguments arrive?", "rewards", "A rule", "规则"),
    (
        "How do I set a system prompt, or switch thinking on and off?",
        "tasksets",
        "What a prompt is made of",
        "提示由什么组成",
    ),
    ("How do I train 7B on 8 GPUs?", "recipes", "7B on 8 GPUs", "8 块 GPU 训练 7B"),
    ("What are batch, train batch, mini-batch, micro-batch and epoch?", "batch-sizes", "The numbers", "各个数字"),
    (
        "What are `num_generations`, `beta`, `rollout.n`, `ppo_mini_batch_size` here?",
        "coming-from",
        "Batch sizes",
        "批大小",
    ),
    ("How do I see samples while it trains?", "monitoring", "See samples", "查看样本"),
    (
        "The reward is flat. What do I check, in which order?",
        "troubleshooting",
        "The reward does not rise",
        "奖励不上升",
    ),
    ("What do the console and healthy curves look like?", "monitoring", "Healthy curves", "健康的曲线"),
    ("How do I compute pass@k and evaluate a checkpoint?", "evaluation", "pass@k", "pass@k"),
    ("How do I write a loss or an advantage of my own?", "plugins", "Policy loss", "策略损失"),
    ("Which models, CUDA, data types and containers?", "install", "Which models", "哪些模型"),
    ("How do I use a language model as a judge?", "rewards", "A judge", "评判模型"),
    (
        "How do I log in to W&B and name the project? How do I submit to SLURM?",
        "monitoring",
        "Weights and Biases",
        "Weights and Biases",
    ),
    ("vLLM is out of memory. What is `gpu_memory_utilization`?", "troubleshooting", "Out of memory", "内存不足"),
)
FAQ = page("docs/faq.md")


@pytest.mark.parametrize(("question", "name", "english", "chinese"), QUESTIONS, ids=lambda value: value[:40])
def test_a_question_is_answered_under_its_heading(question: str, name: str, english: str, chinese: str) -> None:
    answer = page(f"docs/{name}.md")
    for part, title in ((answer, english), (answer.twin, chinese)):
        assert title in [found for _, found in part.headings], part.name
        assert len(_below(part, title)) > 200, f"{part.name}: {title} says next to nothing"


@pytest.mark.parametrize("faq", [FAQ, FAQ.twin], ids=lambda part: part.name)
def test_the_table_of_the_faq_leads_to_the_answers(faq: Page) -> None:
    lines = [line for line in faq.text.splitlines() if line.startswith("| ")]
    for number, (question, name, english, chinese) in enumerate(QUESTIONS, 1):
        title = chinese if faq.is_chinese else english
        target = f"[{title}]({name}{'.zh' if faq.is_chinese else ''}.md#"
        (line,) = [line for line in lines if line.startswith(f"| {number} |")]
        assert target in line and (faq.is_chinese or question in line), line


def _below(part: Page, title: str) -> str:
    """Return what stands below a heading, down to the next of its level or above."""
    marks, _, rest = next(
        (line.partition(" ")[0], line, part.text.partition(line)[2])
        for line in part.text.splitlines()
        if line.startswith("#") and line.partition(" ")[2] == title
    )
    end = [index for index in (rest.find(f"\n{marks[:n]} ") for n in range(1, len(marks) + 1)) if index >= 0]
    return rest[: min(end, default=len(rest))]
