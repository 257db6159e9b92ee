"""vLLM's side of the engine benchmark; run it with an interpreter that has vLLM.

One kind of work goes through `LLM` in this process, with its prefix cache and the log-probability of each token.
A conversation's turns are asked together with those of the others. Prints one JSON line: CPU seconds of all threads,
wall seconds, and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

KV_BYTES = 1 << 30


def main() -> None:
    """Measure one kind of work in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--work", required=True, help="JSON of the kind of work")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the model")
    arguments = parser.parse_args()
    if not arguments.compiled:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    print(json.dumps(measured(arguments)))


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds, memory and the log-probabilities' number of the work."""
    import engine
    import prompts
    import torch
    from vllm import LLM

    torch.set_num_threads(arguments.threads)
    work = engine.Work(**json.loads(arguments.work))
    llm = LLM(
        arguments.folder,
        dtype=arguments.dtype,
        enforce_eager=not arguments.compiled,
        max_model_len=engine.length_of(work),
        max_num_seqs=64,
        kv_cache_memory_bytes=KV_BYTES,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    asked(llm, [[3, 4, 5]], samples=1, new=2)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    held, cpu, wall = prompts.memory_mib("VmRSS"), time.process_time(), time.perf_counter()
    histories = [engine.text(work.first, number) for number in range(work.conversations)]
    count = 0
    for turn in range(work.turns):
        samples = asked(llm, histories, samples=work.samples, new=work.new)
        count += sum(len(each) for of_prompt in samples for each in of_prompt)
        histories = [
            history + of_prompt[0] + engine.text(work.asked, 100 * turn + number)
            for number, (history, of_prompt) in enumerate(zip(histories, samples, strict=True))
        ]
    return {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "peak_mib": prompts.memory_mib("VmHWM") - held,
        "process_mib": prompts.memory_mib("VmHWM"),
        "tokens": count,
    }


def asked(llm: Any, histories: list[list[int]], *, samples: int, new: int) -> list[list[list[int]]]:
    """Return the tokens of each prompt's samples, which have `new` tokens and a log-probability each."""
    from vllm import SamplingParams

    params = SamplingParams(
        n=samples, max_tokens=new, min_tokens=new, ignore_eos=True, temperature=1.0, logprobs=0, detokenize=False
    )
    found = llm.generate([{"prompt_token_ids": history} for history in histories], params, use_tqdm=False)
    for answer in found:
        assert all(len(each.logprobs) == new for each in answer.outputs), "every token has a log-probability"
    return [[list(each.token_ids) for each in answer.outputs] for answer in found]


if __name__ == "__main__":
    main()
