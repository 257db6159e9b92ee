"""A request to vLLM: its prompt, and what our sampler reads of it."""

from __future__ import annotations

from typing import Any

from trinity.common.models.generate_params import GenerateParams
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.vllm.requests import Texts
from trinity.engine.vllm.settings import OWN_ARGS


async def ask(
    llm: Any,
    name: str,
    prompt: SeenPrompt,
    params: GenerateParams,
    *,
    key: int,
    forced: list[int] | None,
    stops: Texts,
    stop_ids: list[int],
) -> Any:
    """Return vLLM's final output of a request.

    Args:
        llm: vLLM's engine.
        name: of the request.
        prompt: with images only if the model reads them.
        params: `max_tokens` is set.
        key: noise key of the sample.
        forced: tokens to take in place of samples; None: the prompt is not scored.
        stops: the stop strings that vLLM looks for.
        stop_ids: the tokens that end a response.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    own = {
        "id": name,
        "key": key,
        "forced": forced or [],
        **{field: getattr(params, field) for field in ("temperature", "top_k", "top_p", "min_tokens")},
    }
    asked = SamplingParams(
        temperature=0.0,
        max_tokens=params.max_tokens,
        stop=list(stops),
        stop_token_ids=[] if params.ignore_eos else stop_ids,
        ignore_eos=True,
        detokenize=bool(stops),
        logprobs=0,
        prompt_logprobs=None if forced is None else 0,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={OWN_ARGS: own},
    )
    last = None
    async for output in llm.generate(_given(prompt), asked, f"trinity-{name}"):
        last = output
    assert last is not None, "a request that ends has an output"
    return last


def _given(prompt: SeenPrompt) -> Any:
    if prompt.pictures:
        from trinity.engine.vllm.pictures import engine_input

        return engine_input(prompt)
    from vllm import TokensPrompt

    return TokensPrompt(prompt_token_ids=prompt.tokens)
