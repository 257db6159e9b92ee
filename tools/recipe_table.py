"""Writes the sizing table of `docs/recipes.md` and of its Chinese half: `python -m tools.recipe_table` (`--check`).

Each row is a configuration whose memory `trinity estimate` computes from the sizes of a published model. Nothing is
downloaded, no GPU is needed, and nothing in the table was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity.launch.estimation import estimate

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "recipes.md", ROOT / "docs" / "recipes.zh.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
CARD_GIB = 80
PROMPT_TOKENS, RESPONSE_TOKENS = 1024, 2048
# hidden, feed-forward, layers, heads, key-value heads, vocabulary, tied: as in the `config.json` of each model.
MODELS: dict[str, tuple[str, int, int, int, int, int, int, bool]] = {
    "Qwen2.5-0.5B": ("qwen2", 896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B": ("qwen2", 1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-3B": ("qwen2", 2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-7B": ("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-14B": ("qwen2", 5120, 13824, 48, 40, 8, 152064, False),
    "Qwen2.5-32B": ("qwen2", 5120, 27648, 64, 40, 8, 152064, False),
    "Llama-3.1-70B": ("llama", 8192, 28672, 80, 64, 8, 128256, False),
}


@dataclass(frozen=True)
class Recipe:
    """One row: a model on GPUs, `engines` of `parallel` GPUs each, the rest for the trainer."""

    model: str
    gpus: int
    engines: int = 1
    parallel: int = 1
    is_adapter: bool = False
    utilization: float = 0.8
    further: tuple[tuple[str, Any], ...] = ()

    @property
    def trainer_gpus(self) -> int:
        """GPUs of the trainer; one card is shared."""
        return self.gpus - self.engines * self.parallel or 1


FILES = (("synchronizer.sync_method", "checkpoint"),)
OFFLOAD = (("trainer.offload_policy", True),)
RECIPES = (
    Recipe("Qwen2.5-0.5B", 1, utilization=0.3),
    Recipe("Qwen2.5-1.5B", 1, utilization=0.3),
    Recipe("Qwen2.5-3B", 1, utilization=0.3, is_adapter=True),
    Recipe("Qwen2.5-3B", 2),
    Recipe("Qwen2.5-7B", 1, utilization=0.3, is_adapter=True, further=OFFLOAD),
    Recipe("Qwen2.5-7B", 2, is_adapter=True),
    Recipe("Qwen2.5-7B", 4),
    Recipe("Qwen2.5-7B", 8, engines=4),
    Recipe("Qwen2.5-14B", 8, is_adapter=True, further=FILES),
    Recipe("Qwen2.5-14B", 8, engines=2, further=FILES),
    Recipe("Qwen2.5-14B", 16, engines=8, further=FILES),
    Recipe("Qwen2.5-32B", 16, parallel=4, further=FILES),
    Recipe("Qwen2.5-32B", 32, engines=4, parallel=4, further=FILES),
    Recipe("Llama-3.1-70B", 32, parallel=4, further=FILES),
    Recipe("Llama-3.1-70B", 64, engines=8, parallel=4, further=FILES),
)


def model_config(name: str) -> dict[str, Any]:
    """Return the sizes of a model as its `config.json` has them."""
    kind, hidden, inner, layers, heads, kv_heads, vocabulary, is_tied = MODELS[name]
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }


def configuration(recipe: Recipe, model: Path) -> dict[str, Any]:
    """Return the configuration of a row, as a mapping of sections."""
    rollout = {
        "engine_type": "vllm",
        "engine_num": recipe.engines,
        "tensor_parallel_size": recipe.parallel,
        "gpu_memory_utilization": recipe.utilization,
    }
    tree: dict[str, Any] = {
        "model": {
            "model_path": str(model),
            "max_prompt_tokens": PROMPT_TOKENS,
            "max_response_tokens": RESPONSE_TOKENS,
        },
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"},
        "buffer": {
            "batch_size": 64,
            "total_steps": 100,
            "explorer_input": {"taskset": {"path": "train.jsonl", "default_workflow_type": "math_boxed_workflow"}},
        },
        "explorer": {"rollout_model": rollout},
        "cluster": {"node_num": -(-recipe.gpus // 8), "gpu_per_node": min(recipe.gpus, 8)},
    }
    if recipe.is_adapter:
        tree["model"]["lora_configs"] = [{"lora_rank": 32, "lora_alpha": 32}]
    for key, value in recipe.further:
        *parents, last = key.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return tree


def estimated(recipe: Recipe) -> dict[str, Any]:
    """Return what `trinity estimate --json` says of a row."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(model_config(recipe.model)))
        (stage,), _ = estimate(configuration(recipe, model), card_bytes=CARD_GIB * 2**30)
    return stage.facts()


def cells(recipe: Recipe) -> list[str]:
    """Return the cells of a row.

    Raises:
        ValueError: it does not fit.
    """
    stage = estimated(recipe)
    on_cards = {part["process"]: part["bytes"] / 2**30 for part in stage["processes"] if "GPU" in part["place"]}
    trainer = next(size for process, size in on_cards.items() if "trainer" in process)
    engine = next(size for process, size in on_cards.items() if "engine" in process)
    host = stage["host_bytes"] / 2**30
    if max(trainer, engine) > CARD_GIB:
        raise ValueError(f"{recipe} does not fit: trainer {trainer:.0f}, engine {engine:.0f} GiB")
    return [
        recipe.model,
        str(recipe.gpus),
        "LoRA, r 32" if recipe.is_adapter else "full",
        f"{recipe.engines} x {recipe.parallel}",
        str(recipe.trainer_gpus) if recipe.gpus > 1 else "shared",
        f"{trainer:.0f} GiB",
        f"{engine:.0f} GiB",
        f"{host:.0f} GiB",
        "; ".join(f"`{key}: {str(value).lower()}`" for key, value in recipe.further) or "-",
        "computed",
    ]


HEADS = (
    [
        "Model",
        "GPUs",
        "Weights",
        "Engines x GPUs",
        "Trainer GPUs",
        "Trainer GPU",
        "Engine GPU",
        "Host",
        "Also",
        "Basis",
    ],
    ["模型", "GPU", "权重", "引擎 x GPU", "训练 GPU", "训练卡", "引擎卡", "主机内存", "另需", "依据"],
)
CHINESE = {"full": "全部", "shared": "共用", "computed": "计算值"}


def tables(recipes: Iterable[Recipe] = RECIPES) -> list[str]:
    """Return the table in both languages."""
    rows = [cells(recipe) for recipe in recipes]
    made = []
    for head, words in zip(HEADS, ({}, CHINESE), strict=True):
        lines = [head, ["---"] * len(head), *([words.get(cell, cell) for cell in row] for row in rows)]
        made.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return made


def with_table(text: str, table: str) -> str:
    """Return the page with another table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main(words: list[str]) -> int:
    """Write the tables, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page differs")
    check = parser.parse_args(words).check
    status = 0
    for page, table in zip(PAGES, tables(), strict=True):
        text = page.read_text(encoding="utf-8")
        new = with_table(text, table)
        if check and new != text:
            sys.stderr.write(f"{page.name} differs: python -m tools.recipe_table\n")
            status = 1
        elif not check:
            page.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
