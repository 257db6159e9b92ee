"""Our side of the step benchmark: the whole loop, from one YAML file to trained weights, through `trinity.launch`.

Explorer, workflow, reward, pipeline, experience store, trainer and weight synchronization all run as in `trinity run`.
Prints one JSON line: seconds of every step after the first, in CPU time of all threads and in wall time, where the CPU
time went, and what shows that the work was done.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import work

REWARD_PLUGIN = """\
import work
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("benchmark_reward")
class BenchmarkReward(RewardFn):
    def __call__(self, response=None, prompt=None, truth=None, return_dict=None, **_):
        return {"accuracy": work.reward(response, truth)}
"""
EPISODES_PLUGIN = """\
import work
from trinity.common.workflows import WORKFLOWS, MultiTurnWorkflow

TURNS = {turns}

@WORKFLOWS.register_module("benchmark_episodes")
class BenchmarkEpisodes(MultiTurnWorkflow):
    def run(self):
        messages, found = [{"role": "user", "content": self.task.task_desc}], []
        for turn in range(TURNS):
            (answer,) = self.model.chat(messages, **self.rollout_args)
            answer.eid.step = turn
            answer.reward = work.reward(answer.response_text, self.task.truth)
            found.append(answer)
            messages += [
                {"role": "assistant", "content": answer.response_text},
                {"role": "user", "content": work.FOLLOW_UP},
            ]
        return found
"""
CONFIG = """\
project: benchmark
name: grpo_step
checkpoint_root_dir: {job}
mode: both
algorithm:
  algorithm_type: {algorithm}
  repeat_times: {samples}
  kl_loss_fn: none
  optimizer: {{lr: 1.0e-5}}
model:
  model_path: {folder}
  max_prompt_tokens: {most_prompt}
  max_response_tokens: {new_tokens}
  min_response_tokens: {new_tokens}
buffer:
  batch_size: {prompts}
  train_batch_size: {rollouts}
  total_steps: {steps}
  explorer_input:
    default_workflow_type: {workflow}
    default_reward_fn_type: benchmark_reward
    taskset:
      name: problems
      storage_type: file
      path: {folder}/train.jsonl
      format: {{prompt_key: question, response_key: answer}}
      rollout_args: {{temperature: 1.0}}
explorer:
  runner_per_model: {prompts}
  concurrent_mode: multi-threading
synchronizer: {{sync_style: fixed, sync_interval: 1}}
trainer:
  save_interval: 0
  save_hf_checkpoint: never
  grad_clip: 1.0
  max_token_len_per_gpu: {micro_tokens}
  trainer_config:
    actor_rollout_ref:
      model: {{enable_gradient_checkpointing: false}}
"""
SHARED = "perf/trainer/shared_tokens"
FLOAT32 = {
    "explorer.rollout_model.dtype": "float32",
    "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.dtype": "float32",
}


APART = {"explorer.rollout_model.enable_prefix_caching": "false"}


class Clock:
    """CPU seconds of named parts and marks at the end of each training step.

    The parts do not overlap: one update follows one exploration, so the process works on one of them at a time.
    """

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self.marks: list[tuple[float, float, Counter[str]]] = []
        self.facts: dict[str, list[float]] = {}

    def on_metrics(self, actor: str, step: int, values: Mapping[str, float]) -> None:
        """Mark the end of a training step; keep what shows that its work was done."""
        for name in ("sample/experience_count", "response_length/min", "rollout/response_length/mean", SHARED):
            if name in values:
                self.facts.setdefault(name, []).append(values[name])
        if "perf/total_num_tokens" in values:
            self.marks.append((time.process_time(), time.perf_counter(), self.parts.copy()))

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Count the CPU time inside `owner.name` as that of `part`."""
        inner: Callable[..., Any] = vars(owner)[name]

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                self.parts[part] += time.process_time() - started

        setattr(owner, name, timed)


def _watch(clock: Clock) -> None:
    from trinity.buffer.store import ExperienceStore
    from trinity.engine.torch import engine
    from trinity.engine.torch.batch import RunningBatch
    from trinity.trainer.verl.worker import ActorWorker

    clock.wrap(RunningBatch, "admit", "generate")
    clock.wrap(RunningBatch, "step", "generate")
    clock.wrap(ActorWorker, "train_step", "update")
    clock.wrap(engine, "copy_weights", "sync")
    for name in ("append", "claim", "commit_step"):
        clock.wrap(ExperienceStore, name, "store")


def _apart() -> None:
    """Let the trainer compute every row from its first token on; the engine has no prefix cache either."""
    from trinity.trainer.verl.decoder import FastPackedDecoder

    FastPackedDecoder.can_share_prompts = FastPackedDecoder.can_share_prefixes = False


def measure(
    folder: Path, job: Path, *, steps: int, sizes: work.Work, overrides: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `steps` whole steps in the folder `job`; return seconds and facts.

    Args:
        folder: model, tokenizer and data.
        job: a folder to write to.
        steps: training steps.
        sizes: what a step does.
        overrides: values of keys of the configuration.

    Raises:
        RuntimeError: the run failed, or did not train on everything that it was to generate.
    """
    from trinity.launch.run import RunOptions, plan_run, run_plan

    plugins = job / "plugins"
    plugins.mkdir()
    (plugins / "benchmark_reward.py").write_text(REWARD_PLUGIN)
    (plugins / "benchmark_episodes.py").write_text(EPISODES_PLUGIN.replace("{turns}", str(sizes.turns)))
    rollouts, has_turns = sizes.prompts * sizes.samples, sizes.turns > 1
    text = CONFIG.format(
        **dataclasses.asdict(sizes),
        folder=folder,
        job=job / "checkpoints",
        steps=steps,
        rollouts=rollouts,
        most_prompt=max(64, sizes.prompt_tokens + 100 + (sizes.turns - 1) * (sizes.new_tokens + 100)),
        algorithm="multi_step_grpo" if has_turns else "grpo",
        workflow="benchmark_episodes" if has_turns else "simple_workflow",
    )
    (job / "grpo_step.yaml").write_text(text)
    clock = Clock()
    written = tuple(f"{key}={value}" for key, value in (overrides or {}).items())
    options = RunOptions(overrides=written, plugin_dirs=(plugins,), on_metrics=clock.on_metrics)
    plan = plan_run(job / "grpo_step.yaml", options)
    _watch(clock)
    result = run_plan(plan, options)
    if result.exit_code or len(clock.marks) != steps:
        raise RuntimeError(f"the run ended with status {result.exit_code} after {len(clock.marks)} of {steps} steps")
    return _summary(clock, sequences=rollouts * sizes.turns, new_tokens=sizes.new_tokens)


def _summary(clock: Clock, *, sequences: int, new_tokens: int) -> dict[str, Any]:
    pairs = list(zip(clock.marks, clock.marks[1:], strict=False))
    parts = [{name: b[2][name] - a[2][name] for name in b[2]} for a, b in pairs]
    for part, (a, b) in zip(parts, pairs, strict=True):
        part["workflow, reward, pipeline"] = b[0] - a[0] - sum(part.values())
    counts = clock.facts.get("sample/experience_count", [])
    shortest = clock.facts.get("response_length/min", [])
    if any(count != sequences for count in counts) or any(length != new_tokens for length in shortest):
        raise RuntimeError(f"each step is to train {sequences} x {new_tokens} tokens, got {counts} x {shortest}")
    return {
        "cpu_s": [b[0] - a[0] for a, b in pairs],
        "wall_s": [b[1] - a[1] for a, b in pairs],
        "parts_cpu_s": parts,
        "trained_sequences": counts,
        "shared_tokens": clock.facts[SHARED],
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Run the steps that the arguments ask for and print their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", choices=work.WORKS, default="standard")
    parser.add_argument("--apart", action="store_true", help="every row is computed from its first token on")
    for name in ("prompts", "samples", "new-tokens", "micro-tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dtype", choices=("auto", "float32"), default="auto")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    names = ("prompts", "samples", "new_tokens", "micro_tokens")
    given = {name: vars(arguments)[name] for name in names if vars(arguments)[name] is not None}
    sizes = dataclasses.replace(work.WORKS[arguments.work], **given)
    job = Path(tempfile.mkdtemp(prefix="grpo_step_"))
    try:
        if arguments.apart:
            _apart()
        overrides = (FLOAT32 if arguments.dtype == "float32" else {}) | (APART if arguments.apart else {})
        result = measure(arguments.folder.resolve(), job, steps=arguments.steps, sizes=sizes, overrides=overrides)
        print(json.dumps(result))
    finally:
        shutil.rmtree(job)


if __name__ == "__main__":
    main()
