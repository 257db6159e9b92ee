"""Rules of the trained model: folder, adapter and lengths in tokens."""

from __future__ import annotations

from trinity.common.config.buffer import GenerationConfig
from trinity.common.config.following import fill_defaults, note_idle
from trinity.common.config.keys import KEYS, Key, part_of, present
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import num_workers
from trinity.common.config.rules.engines import engines
from trinity.common.config.rules.tasksets import tasksets

MODEL = KEYS.model
LORA = present(MODEL.lora_configs)
ADAPTER = LORA[0]
VLLM = ("vllm", "vllm_async")
LONG = 8192
"""Tokens above which a sequence needs settings of its own."""
TOKENS_A_DEVICE = 2048
"""Tokens of a long response that one device holds well."""


def check_model_paths(resolution: Resolution) -> None:
    """Refuse a run without a model."""
    if not resolution.config.model.model_path:
        resolution.problem(
            "E1821",
            MODEL.model_path,
            "`model.model_path` is missing",
            suggestion="write the folder of a Hugging Face model",
        )


def resolve_adapter(resolution: Resolution) -> None:
    """Check `model.lora_configs`; set whether the run creates the adapter."""
    configs = resolution.config.model.lora_configs
    if not configs:
        return
    if len(configs) > 1:
        resolution.problem(
            "E1870",
            LORA,
            f"`{LORA}` has {len(configs)} entries, and a run trains one adapter",
            rule="one entry",
            suggestion="keep one entry",
        )
        return
    path = configs[0].path
    if path is None:
        resolution.derive(ADAPTER.is_dummy, True, "no path: the run makes the adapter, which adds nothing at first")
        return
    if configs[0].is_dummy:
        resolution.problem(
            "E1872",
            ADAPTER.is_dummy,
            f"`{ADAPTER.is_dummy}: true` means an adapter that the run makes, but path names {path}",
            involves=(ADAPTER.path,),
            suggestion="remove `is_dummy`, which is filled in",
        )
    note_idle(resolution, ADAPTER)


def resolve_lengths(resolution: Resolution) -> None:
    """Fill the lengths of model, prompts and responses.

    These are max_model_len, max_prompt_tokens, max_response_tokens and min_response_tokens.
    """
    model = resolution.config.model
    total, prompt, response = model.max_model_len, model.max_prompt_tokens, model.max_response_tokens
    if total is None:
        if prompt is None or response is None:
            resolution.problem(
                "E1820",
                MODEL.max_model_len,
                "`model.max_model_len` is missing",
                rule="given, or max_prompt_tokens and max_response_tokens are",
                involves=(MODEL.max_prompt_tokens, MODEL.max_response_tokens),
                suggestion="write `max_model_len: 2048` under `model`",
            )
            return
        total = prompt + response
        resolution.derive(MODEL.max_model_len, total, "max_prompt_tokens + max_response_tokens")
    if not _fits(resolution, total, prompt=prompt, response=response):
        return
    if prompt is None:
        prompt = max(1, total // 2) if response is None else total - response
        reason = "half of max_model_len" if response is None else "max_model_len - max_response_tokens"
        resolution.derive(MODEL.max_prompt_tokens, prompt, reason)
    if response is None:
        response = total - prompt
        resolution.derive(MODEL.max_response_tokens, response, "max_model_len - max_prompt_tokens")
    _resolve_minimum(resolution, response)


def _fits(resolution: Resolution, total: int, *, prompt: int | None, response: int | None) -> bool:
    """Return whether the parts fit the whole; note a problem otherwise."""
    asked = (prompt or 1) + (response or 1)
    if asked <= total:
        return True
    is_response = response is not None and (response >= total or prompt is None)
    key = MODEL.max_response_tokens if is_response else MODEL.max_prompt_tokens
    parts = " + ".join(
        f"{name} ({value})"
        for name, value in (("max_prompt_tokens", prompt), ("max_response_tokens", response))
        if value is not None
    )
    left = "" if prompt is not None and response is not None else ", which leaves no token for the rest"
    resolution.problem(
        "E1802",
        key,
        f"`{key}`: {parts} does not fit into max_model_len ({total}){left}",
        rule="max_prompt_tokens + max_response_tokens <= max_model_len",
        involves=(MODEL.max_model_len,),
        suggestion=f"write `max_model_len: {asked}` or less tokens",
    )
    return False


def _resolve_minimum(resolution: Resolution, response: int) -> None:
    minimum = resolution.config.model.min_response_tokens
    if minimum < response:
        return
    if resolution.is_given(MODEL.min_response_tokens):
        resolution.problem(
            "W1823",
            MODEL.min_response_tokens,
            f"`model.min_response_tokens` ({minimum}) is lowered to "
            f"{response - 1}: it must be below max_response_tokens ({response})",
        )
    resolution.derive(MODEL.min_response_tokens, response - 1, "below max_response_tokens")


def hand_down(resolution: Resolution) -> None:
    """Fill the keys that engines and tasksets inherit from section `model`."""
    if not resolution.explores:
        return
    for engine in engines(resolution.config):
        fill_defaults(resolution, engine)
    for taskset in tasksets(resolution):
        _hand_to_taskset(resolution, taskset.rollout_args)


def _hand_to_taskset(resolution: Resolution, key: Key[GenerationConfig]) -> None:
    fill_defaults(resolution, key)
    longest, asked = resolution.config.model.max_response_tokens, resolution.get(key.max_tokens)
    if longest is not None and asked is not None and asked > longest:
        resolution.problem(
            "E1802",
            key.max_tokens,
            f"`{key.max_tokens}` ({asked}) is more than model.max_response_tokens ({longest})",
            rule="<= model.max_response_tokens",
            involves=(MODEL.max_response_tokens,),
            suggestion=f"write {longest} or less",
        )


def suggest_long_sequences(resolution: Resolution) -> None:
    """Suggest what long sequences need of engine and trainer (W1946)."""
    longest, response = resolution.get(KEYS.model.max_model_len), resolution.get(KEYS.model.max_response_tokens)
    if longest is None or longest <= LONG or not resolution.explores:
        return
    _suggest_engine_budget(resolution, longest)
    shared = KEYS.trainer.ulysses_sequence_parallel_size
    workers, wanted = num_workers(resolution.config), (response or 0) // TOKENS_A_DEVICE
    if (response or 0) > LONG and resolution.get(shared) == 1 and workers > 1:
        size = max(number for number in range(1, workers + 1) if workers % number == 0 and number <= wanted)
        resolution.problem(
            "W1946",
            shared,
            f"`{shared}` is 1, and a response may have {response} tokens: one device holds all that a sequence needs",
            suggestion=f"write `ulysses_sequence_parallel_size: {size}` if the memory is too small",
        )


def _suggest_engine_budget(resolution: Resolution, longest: int) -> None:
    """Suggest that a prefill pass of vLLM has room for a whole sequence.

    vLLM's own budget depends on its release and the device.
    """
    budget = part_of(KEYS.explorer.rollout_model.extra_engine_args, "max_num_batched_tokens")
    given = resolution.config.explorer.rollout_model.extra_engine_args.get("max_num_batched_tokens")
    is_vllm = resolution.get(KEYS.explorer.rollout_model.engine_type) in VLLM
    is_less = isinstance(given, int) and given < longest
    if is_less or (given is None and is_vllm):
        own = "not written, so that it is vLLM's own"
        what = f"({given}) is less" if is_less else f"({own}) may be less"
        resolution.problem(
            "W1946",
            budget,
            f"`{budget}` {what} than a sequence of {longest} tokens, which is then computed in pieces",
            suggestion=f"write `max_num_batched_tokens: {longest}`",
        )
