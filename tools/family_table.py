"""Write the table of model families and its page in both languages: `python tools/family_table.py`.

Every causal language-model family that the installed transformers knows is built tiny and tried. The tests compare the
files with what is so; run this after an upgrade of transformers or a change of what is trained. What the table says of
vLLM (`tools/vllm_families.py` measures it), which families the torch engine refuses, and whose modules are renamed, is
kept as it stands there.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForTokenClassification, PreTrainedModel  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES  # noqa: E402

from tests.families import FAMILIES, NOT_BUILT, tiny_config, tiny_model  # noqa: E402
from trinity.common.errors import EnvironmentProblem  # noqa: E402
from trinity.common.models.families import OWN, REFUSED, REFUSED_ON_CPU, TABLE, VISION, families, table  # noqa: E402
from trinity.engine.torch.hf_decoder import HFDecoder  # noqa: E402
from trinity.engine.torch.hf_loading import hf_decoder  # noqa: E402
from trinity.engine.torch.row_decoder import RowDecoder  # noqa: E402
from trinity.trainer.verl.decoder import is_common  # noqa: E402
from trinity.trainer.verl.layout import choose_layout  # noqa: E402
from trinity.trainer.verl.loading import value_head  # noqa: E402


def entries(family: str) -> dict[str, dict[str, Any]]:
    """Return what the table says of one family, also under the name that its text model has."""
    if family in NOT_BUILT:
        return {family: entry(family, trainer=REFUSED, critic=REFUSED, engine=REFUSED, reason=NOT_BUILT[family])}
    model = tiny_model(tiny_config(family))
    trainer, reason = way(model, has_logits=True)
    critic = value_model(family)
    critic_way = REFUSED if critic is None else way(critic, has_logits=False)[0]
    found = {"trainer": trainer, "critic": critic_way, "engine": served(family), "reason": reason}
    return {name: entry(name, **found) for name in (str(model.config.model_type), family)}


def entry(family: str, *, trainer: str, critic: str, engine: str, reason: str) -> dict[str, Any]:
    """Return the entry of a family: what was found, and what the table says besides."""
    said = table()["families"].get(family, {})
    reasons = {"trainer": reason} if trainer == REFUSED else {}
    reasons |= {name: why for name, why in said.get("reasons", {}).items() if name != "trainer"}
    made = {"trainer": trainer, "critic": critic, "engine": engine}
    made |= {name: said[name] for name in ("vllm", "is_renamed", "is_encoder") if name in said}
    return made | ({"reasons": reasons} if reasons else {})


def value_model(family: str) -> PreTrainedModel | None:
    """Return the family's model with one number a token; None where transformers has none."""
    if family not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES:
        return None
    config = tiny_config(family)
    config.num_labels = 1
    model: Any = AutoModelForTokenClassification.from_config(config, attn_implementation="eager")
    try:
        value_head(model)
    except EnvironmentProblem:
        return None
    return model.eval()


def served(family: str) -> str:
    """Return how the torch engine computes a family."""
    known = families().get(family)
    if known is not None and known.engine == REFUSED:
        return REFUSED
    if family in OWN:
        return "own"
    return ENGINE_KINDS[hf_decoder(tiny_model(tiny_config(family)), max_model_len=64).kind]


def way(model: PreTrainedModel, *, has_logits: bool) -> tuple[str, str]:
    """Return how a model is trained, and why not if it is refused."""
    if is_common(model):
        return "own", ""
    try:
        return choose_layout(model, has_logits=has_logits, may_pack=True).kind, ""
    except EnvironmentProblem as problem:
        return REFUSED, REASONS[next(words for words in REASONS if words in str(problem))]


ENGINE_KINDS = {HFDecoder.kind: "slots", RowDecoder.kind: "rows"}
REASONS = {
    "is not causal": "what they compute at a token depends on later tokens",
    "are not those of one linear layer": "their logits are not those of one linear layer with a scale and a bound",
    "does not compute a list of text tokens": "they do not compute a list of text tokens by themselves",
    "computes a row otherwise": "rows that stand beside each other change each other",
}


def new_table() -> str:
    """Return the whole table, a family a line."""
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = [entries(name) for name in FAMILIES]
        known = {name: made for each in found for name, made in each.items() if name not in FAMILIES}
        known |= {name: each[name] for name, each in zip(FAMILIES, found, strict=True)}
    head = table() | {"tried_with": {"transformers": transformers.__version__}}
    lines = [f' "{name}": {json.dumps(value)},' for name, value in head.items() if name != "families"]
    rows = ",\n".join(f'  "{name}": {json.dumps(known[name])}' for name in sorted(known))
    return "\n".join(["{", *lines, ' "families": {', rows, " }", "}", ""])


TEXTS: dict[str, dict[str, Any]] = {
    "en": {
        "page": "docs/families.md",
        "title": "Model families",
        "other": "[中文](families.zh.md)",
        "intro": """\
Look up your model here before you train it. Every causal language model of the installed Transformers is either
computed right, or refused by name before anything starts. "Right" means that rows trained or sampled together give
the same log-probabilities, gradients and samples as each row alone. The reference is the model's own eager forward
pass in float32.

The table is measured. Each family was built tiny and with random weights, with windows shorter than its rows, and
with soft caps, scales and dropout. `python tools/family_table.py` makes the table again, and the tests compare it
with the code. It was made with Transformers {version}. The words mean:""",
        "words": {
            "own": "Trinity's own forward pass",
            "packed": "Hugging Face's forward pass over all rows in one list, with Trinity's attention: windows, soft caps, sinks",
            "padded": "Hugging Face's forward pass over padded rows, for families with layers other than attention; no sequence parallelism",
            "slots": "Hugging Face's forward pass over several rows at once",
            "rows": "Hugging Face's forward pass, one row per call, which is slow",
            "right": "measured with vLLM on a CPU: log-probabilities of samples equal Hugging Face's, before and after new weights",
            "refused": "`trinity validate` refuses it, and says what works instead",
            REFUSED_ON_CPU: "measured with vLLM on a CPU: the results differ, so a start on a CPU is refused; not measured on a GPU",
            "not started": "vLLM on a CPU does not start with this family, and says why; not measured on a GPU",
            "not served": "vLLM has no model of this family; if it uses Transformers' model instead, that is not measured",
        },
        "head": ["Family", "Training", "Critic", "Torch engine", "vLLM"],
        "vision": "Families that read images",
        "vision text": (
            "For {names}, training and the torch engine compute the language model with Trinity's own forward pass, and "
            "images with the vision model of Transformers; see [images](workflows.md#images).\n"
            "Other families with a vision model are refused by name if rows have images."
        ),
        "table": "All families",
        "why": "Why some cannot be trained",
        "reasons": {},
    },
    "zh": {
        "page": "docs/families.zh.md",
        "title": "模型系列",
        "other": "[English](families.md)",
        "intro": """\
训练一个模型之前，请在这里查找它。所安装的 Transformers 里的每个因果语言模型，要么计算正确，要么在启动之前被点名拒绝。
“正确”是指：一起训练或一起采样的各行，其对数概率、梯度和样本与每一行单独计算相同；
以模型自己的 eager 前向计算（float32）为准。

这张表由实测得出：每个系列都用很小的随机模型搭建，窗口比行短，并打开 soft cap、缩放和 dropout。
`python tools/family_table.py` 重新生成它，测试把它与代码对照。生成时的 Transformers 版本是 {version}。各个词的意思：""",
        "words": {
            "own": "Trinity 自己的前向计算",
            "packed": "Hugging Face 的前向计算，所有行排成一列，注意力用 Trinity 的：窗口、soft cap、sink",
            "padded": "Hugging Face 的前向计算，各行填充到等长，用于含有注意力以外的层的系列；不支持序列并行",
            "slots": "Hugging Face 的前向计算，多行同时计算",
            "rows": "Hugging Face 的前向计算，每次调用算一行，较慢",
            "right": "在 CPU 上用 vLLM 测得：更新权重之前和之后，样本的对数概率都与 Hugging Face 相同",
            "refused": "`trinity validate` 会拒绝它，并说明可以怎样代替",
            REFUSED_ON_CPU: "在 CPU 上用 vLLM 测过，计算结果不同，因此在 CPU 上启动时拒绝；没有在 GPU 上测过",
            "not started": "vLLM 在 CPU 上无法启动这个系列，并说明原因；没有在 GPU 上测过",
            "not served": "vLLM 没有这个系列的模型；如果它改用 Transformers 的模型，这种情况没有测过",
        },
        "head": ["系列", "训练", "Critic", "torch 引擎", "vLLM"],
        "vision": "读取图像的系列",
        "vision text": (
            "对于 {names}，训练和 torch 引擎用 Trinity 自己的前向计算处理语言模型，用 Transformers 的视觉模型处理图像；见[图像](workflows.zh.md#图像)。"
            "其他带视觉模型的系列，如果数据行带有图像，会被点名拒绝。"
        ),
        "table": "所有系列",
        "why": "为什么有些不能训练",
        "reasons": {
            "what they compute at a token depends on later tokens": "它们在一个 token 处的计算取决于后面的 token",
            "their logits are not those of one linear layer with a scale and a bound": "它们的 logits 不是一个带缩放和上限的线性层",
            "reads bytes through three models": "通过三个模型读取字节",
            "needs timm": "需要 timm",
            "drafts for another model": "为另一个模型起草",
            "writes audio tokens of a text encoder's prompt": "根据文本编码器的提示写出音频 token",
            "holds a vision model; its text model is qwen4_exp_text": "带有视觉模型；它的文本模型是 qwen4_exp_text",
            "its own code does not run at tiny sizes": "它自己的代码在很小的尺寸下不能运行",
        },
    },
}


def page(language: str) -> str:
    """Return the page of the families in `en` or `zh`."""
    text = TEXTS[language]
    version = table()["tried_with"]["transformers"]
    known = {name: family for name, family in families().items() if name in FAMILIES}
    lines = [f"# {text['title']}", "", text["other"], "", text["intro"].format(version=version), ""]
    lines += [f"- `{word}`: {meaning}" for word, meaning in text["words"].items()]
    images = text["vision text"].format(names=", ".join(f"`{name}`" for name in VISION))
    lines += ["", f"## {text['vision']}", "", images]
    lines += ["", f"## {text['table']}", "", _row(text["head"]), _row(["---"] * 5)]
    lines += [_row([f"`{name}`", f.trainer, f.critic, f.engine, f.vllm]) for name, f in sorted(known.items())]
    lines += ["", f"## {text['why']}", ""]
    why = {name: family.reasons["trainer"] for name, family in sorted(known.items()) if family.trainer == REFUSED}
    for reason in dict.fromkeys(why.values()):
        names = ", ".join(f"`{name}`" for name, own in why.items() if own == reason)
        lines.append(f"- {names}: {text['reasons'].get(reason, reason)}")
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    TABLE.write_text(new_table(), encoding="utf-8")
    table.cache_clear()
    families.cache_clear()
    for language, text in TEXTS.items():
        (ROOT / text["page"]).write_text(page(language), encoding="utf-8")
