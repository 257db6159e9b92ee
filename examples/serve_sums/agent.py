"""An agent that knows of Trinity only the address: it is asked sums, and says later which of them were right.

python agent.py URL FILE STEPS

FILE has lines with `question` and `answer`, which ends in `#### <result>`. TRINITY_API_KEY is the token.
"""

import asyncio
import json
import os
import sys

import openai

from trinity.explorer.proxy.client import TrinityClient

TASKS, ATTEMPTS = 8, 8  # of a commit; together the trainer's buffer.train_batch_size
DEADLINE_S = 300.0


async def attempt(client: openai.AsyncOpenAI, url: str, model: str, row: dict, task: str, run: int) -> float:
    """Answer a question once; return the reward, which the service is told, too."""
    trinity = TrinityClient(url, task_id=task, run_id=run)
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": row["question"]}],
        max_tokens=24,
        extra_headers={"X-Trinity-Task-Id": task, "X-Trinity-Run-Id": str(run)},
    )
    said = answer.choices[0].message.content or ""
    reward = float(said.rpartition("####")[2].strip() == row["answer"].rpartition("####")[2].strip())
    await trinity.feedback_async(reward, [answer.id], timeout=DEADLINE_S)
    return reward


async def main(url: str, file: str, steps: int) -> None:
    """Make `steps` commits, each with the weights that the one before it gave."""
    with open(file, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    service = TrinityClient(url)
    await service.wait_until_alive_async(DEADLINE_S)
    (model,) = await service.models_async()
    settings = {"base_url": f"{url}/v1", "api_key": os.environ["TRINITY_API_KEY"]}
    async with openai.AsyncOpenAI(**settings, max_retries=0, timeout=DEADLINE_S) as client:
        for step in range(steps):
            async with asyncio.timeout(DEADLINE_S):
                while (now := await service.get_metrics_async())["model_version"] < step:
                    await asyncio.sleep(0.05)
            chosen = [(step * TASKS + number) % len(rows) for number in range(TASKS)]
            attempts = [
                attempt(client, url, model, rows[place], f"step{step}-row{place}", run)
                for place in chosen
                for run in range(ATTEMPTS)
            ]
            rewards = await asyncio.gather(*attempts)
            done = await service.commit_async(timeout=DEADLINE_S)
            right = sum(rewards) / len(rewards)
            print(f"step {done['step']}: version {now['model_version']}, {right:.3f} right", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
