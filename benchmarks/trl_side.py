"""TRL's side of the step benchmark; run it with an interpreter that has TRL.

`default` is TRL's default on-policy configuration: one update over all sequences in fp32. `best` is the fastest
configuration that was found for it on a CPU: four accumulated micro-batches, under bf16 autocast where the processor
has AVX-512. Elsewhere such products are emulated, which takes over 900 s, and the micro-batches are fp32.
Episodes are generated turn by turn with TRL's own generation, as its loop of tools does, and trained as one sequence
each, in which follow-ups are masked.
Prints one JSON line: seconds of every step after the first, in CPU time of all threads and in wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import work
    from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def grpo_config(folder: Path, variant: str, steps: int, name: str) -> GRPOConfig:
    """Return TRL's configuration of the work: `default`, or `best` in four micro-batches."""
    import torch
    import work
    from trl import GRPOConfig

    size = work.WORKS[name]
    sequences = size.prompts * size.samples
    batch = sequences if variant == "default" else sequences // 4
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=variant == "best" and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=sequences // batch,
        num_generations=size.samples,
        max_completion_length=size.new_tokens,
        generation_kwargs={"min_new_tokens": size.new_tokens},
        gradient_checkpointing=False,
        loss_type="grpo",
        beta=0.0,
        epsilon=0.2,
        temperature=1.0,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        max_steps=steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )


def rollout_of(size: work.Work) -> Callable[[list[Any], GRPOTrainer], dict[str, Any]]:
    """Return a `rollout_func` of episodes: one response has all turns, with `work.FOLLOW_UP` between them.

    Raises:
        RuntimeError: by the function; it was asked for fewer episodes or generated fewer tokens than the work has.
    """
    import work

    def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        follow_up = [{"role": "assistant", "content": ""}, {"role": "user", "content": work.FOLLOW_UP}]
        text = tokenizer.apply_chat_template(follow_up, tokenize=False, add_generation_prompt=True)
        between = tokenizer(text[text.index(work.SPECIAL[2]) :], add_special_tokens=False)["input_ids"]
        asked = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
        responses, masks = [[] for _ in asked], [[] for _ in asked]
        for turn in range(size.turns):
            if turn:
                responses = [ids + between for ids in responses]
                masks = [mask + [0] * len(between) for mask in masks]
            so_far = [prompt + ids for prompt, ids in zip(asked, responses, strict=True)]
            new, _ = trainer._generate_single_turn(so_far, None, {}, 1)
            responses = [ids + more for ids, more in zip(responses, new, strict=True)]
            masks = [mask + [1] * len(more) for mask, more in zip(masks, new, strict=True)]
        if [sum(mask) for mask in masks] != [size.turns * size.new_tokens] * (size.prompts * size.samples):
            raise RuntimeError(f"{len(masks)} episodes, or their numbers of new tokens, are not those of {size}")
        return {"prompt_ids": asked, "completion_ids": responses, "logprobs": None, "env_mask": masks}

    return rollout


def main() -> None:
    """Run the configuration that the arguments name and print its times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--variant", choices=("default", "best"), required=True)
    parser.add_argument("--work", default="standard", help="one of `work.WORKS`")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    import torch
    import work
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    torch.set_num_threads(arguments.threads)
    size = work.WORKS[arguments.work]
    marks: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            if not marks:
                marks.append((time.process_time(), time.perf_counter()))

        def on_step_end(self, *_: object, **__: object) -> None:
            marks.append((time.process_time(), time.perf_counter()))

    problems = [json.loads(line) for line in (arguments.folder / "train.jsonl").read_text().splitlines()]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in problems]
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32),
        reward_funcs=lambda completions, answer, **_: [
            work.reward(completion[0]["content"], truth) for completion, truth in zip(completions, answer, strict=True)
        ],
        args=grpo_config(arguments.folder, arguments.variant, arguments.steps, arguments.work),
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(arguments.folder),
        callbacks=[Clock()],
        rollout_func=rollout_of(size) if size.turns > 1 else None,
    )
    trainer.train()
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(marks, marks[1:], strict=False)][1:]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": [s[0] for s in steps], "wall_s": [s[1] for s in steps], "peak_rss_mib": peak_mib}))


if __name__ == "__main__":
    main()
