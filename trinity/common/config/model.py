"""Section `model`: which model is trained and how long its sequences are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trinity.common.config.base import (
    GUIDE,
    LATER,
    OWN,
    TRINITY,
    Args,
    Count,
    Float,
    IdleWith,
    Int,
    Natural,
    NonNegative,
    Port,
    Positive,
    Section,
    key,
    only,
    section,
)
from trinity.common.constants import REASONING_PARSERS, TOOL_CALL_PARSERS

TopP = Annotated[Float, Field(gt=0, le=1)]
TopK = Annotated[Int, Field(ge=-1)]


# An adapter of a folder has these of its own.
_OF_NEW = (IdleWith("path", but=(None,), why="the adapter there has its own"),)


class LoraConfig(Section):
    """One low-rank adapter."""

    name: str | None = key(None, "Name of the adapter in lora_train_meta.json; null: lora_adapter.", TRINITY)
    path: str | None = key(None, "Folder of an existing adapter to start from; null: a new one.", TRINITY)
    base_model_name: str | None = key(
        None, "Model that adapter_config.json says the adapter belongs to; null: model_path.", TRINITY
    )
    lora_rank: Count = key(32, "Rank, >= 1.", TRINITY, idle_with=_OF_NEW)
    lora_alpha: Count = key(32, "Scale numerator, >= 1.", TRINITY, idle_with=_OF_NEW)
    lora_dtype: str = key(
        "auto", "Data type of the adapter's parameters; auto: float32.", TRINITY, support=only("auto", "float32")
    )
    target_modules: str | tuple[str, ...] = key(
        "all-linear",
        "Linear layers that get an adapter: a list of names, or a regular expression of whole names; all-linear: all.",
        TRINITY,
        idle_with=_OF_NEW,
    )
    exclude_modules: str | tuple[str, ...] | None = key(
        None, "Linear layers that get none, as target_modules; null: none is excluded.", TRINITY, idle_with=_OF_NEW
    )
    is_dummy: bool = key(False, "The adapter is made by the run; filled in from path.", TRINITY)


class TinkerConfig(Section):
    """Training through the Tinker service."""

    enable: bool = key(False, "Use the service.", TRINITY, support=only(False))
    base_model: str | None = key(None, "Model that the service trains.", TRINITY)
    rank: Count = key(16, "Rank of the adapter, >= 1.", TRINITY)
    seed: Int | None = key(None, "Seed of the adapter.", TRINITY)
    train_mlp: bool = key(True, "Train the feed-forward blocks.", TRINITY)
    train_attn: bool = key(True, "Train the attention blocks.", TRINITY)
    train_unembed: bool = key(True, "Train the output layer.", TRINITY)
    base_url: str | None = key(None, "Address of the service.", TRINITY)


class ExternalModelConfig(Section):
    """A model behind an OpenAI-compatible server: mode bench or an engine."""

    enable: bool = key(False, "Use the server for the model of mode bench.", TRINITY)
    base_url_env: str = key("OPENAI_BASE_URL", "Environment variable that holds the address with /v1.", TRINITY)
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that holds the key; unset: none is sent.", TRINITY)
    model_name: str | None = key(None, "Name of the model at the server.", TRINITY)


class ModelConfig(Section):
    """The trained model: chat template, lengths in tokens, sampling defaults."""

    model_path: str = key("", "Folder of the trained model (Hugging Face layout) or a hub id.", GUIDE)
    trust_remote_code: bool = key(False, "Run Python code that comes with the model.", TRINITY)
    critic_model_path: str | None = key(None, "Folder of the critic.", GUIDE, default_from="model.model_path")
    custom_chat_template: str | None = key(None, "Chat template as text; null: the tokenizer's.", GUIDE)
    chat_template_path: str | None = key(None, "File of a Jinja chat template; wins over custom_chat_template.", GUIDE)
    temperature: NonNegative = key(1.0, "Sampling temperature, >= 0; 0: greedy.", TRINITY)
    top_p: TopP = key(1.0, "Nucleus sampling, in (0, 1].", TRINITY)
    top_k: TopK = key(-1, "Candidates per token; -1: all.", TRINITY)
    logprobs: Natural = key(0, "Alternatives per token whose logprobs are returned, >= 0.", TRINITY, support=only(0))
    max_model_len: Count | None = key(None, "Longest sequence in tokens; null: prompt plus response.", GUIDE)
    max_prompt_tokens: Count | None = key(None, "Longest prompt in tokens; null: derived from max_model_len.", GUIDE)
    max_response_tokens: Count | None = key(
        None, "Longest response in tokens; null: derived from max_model_len.", GUIDE
    )
    min_response_tokens: Natural = key(1, "Shortest response in tokens, >= 0.", GUIDE)
    enable_prompt_truncation: bool = key(True, "Cut prompts to max_prompt_tokens.", GUIDE)
    prompt_truncation: Literal["stop", "left", "right", "middle"] = key(
        "stop",
        "What remains of a prompt above max_prompt_tokens: its first tokens, without a response and not "
        "trained (stop); "
        "its last (left) or first (right) tokens, or both ends (middle), with a response and trained.",
        OWN,
        idle_with=(IdleWith("enable_prompt_truncation", (False,)),),
    )
    repetition_penalty: Positive = key(1.0, "Penalty on repeated tokens, > 0; 1: none.", TRINITY, support=only(1.0))
    enable_thinking: bool | None = key(
        None, "Switch handed to the chat template; null: not handed.", TRINITY, support=only(None)
    )
    lora_configs: tuple[LoraConfig, ...] | None = key(None, "Low-rank adapters.", TRINITY)
    fully_sharded_loras: bool = key(False, "Shard adapters over all devices.", TRINITY, support=only(False))
    max_cpu_loras: Count | None = key(None, "Adapters kept in host memory.", TRINITY, support=only(None))
    rope_scaling: Args | None = key(
        None, "Position scaling, in the form of the model's config.json.", TRINITY, support=only(None, {})
    )
    rope_theta: Positive | None = key(None, "Base of the rotary position encoding.", TRINITY, support=only(None))
    tinker: TinkerConfig = section(TinkerConfig, "Training through the Tinker service.", TRINITY)
    external_model: ExternalModelConfig = section(ExternalModelConfig, "Model behind a server (mode bench).", TRINITY)


NO_KEY = "EMPTY"

# Keys of the engines that this program runs itself, and those of either among them.
_OF_ENGINE = (IdleWith("engine_type", ("external",)),)
_OF_VLLM = (IdleWith("engine_type", ("torch",)),)
_OF_TORCH = (IdleWith("engine_type", ("external", "vllm", "vllm_async")),)


class InferenceModelConfig(Section):
    """An inference engine; null values are inherited from section `model`."""

    engine_type: Literal["auto", "torch", "vllm", "vllm_async", "sglang", "tinker", "external"] = key(
        "auto",
        "Engine; auto: the best that this machine and version have; vllm_async means vllm.",
        GUIDE,
        support=only("auto", "torch", "vllm", "vllm_async", "external"),
    )
    engine_num: Count = key(1, "Number of engine instances, >= 1.", GUIDE, idle_with=_OF_ENGINE)
    tensor_parallel_size: Count = key(1, "Devices that share one layer, >= 1.", GUIDE, is_engine_arg=True)
    data_parallel_size: Count = key(1, "Replicas inside an engine, >= 1.", TRINITY, is_engine_arg=True)
    pipeline_parallel_size: Count = key(1, "Pipeline stages inside an engine, >= 1.", TRINITY, is_engine_arg=True)
    enable_history: bool = key(False, "Record the experiences of each call in the model wrapper.", GUIDE)
    history_limit: Count = key(
        16384, "Experiences that a history, or the record of mode serve, keeps until they are taken, >= 1.", OWN
    )
    model_path: str | None = key(None, "Model of the engine; null: model.model_path.", GUIDE)
    name: str | None = key(None, "Name by which a workflow finds the model, and clients ask for it.", TRINITY)
    trust_remote_code: bool | None = key(
        None, "", TRINITY, default_from="model.trust_remote_code", idle_with=_OF_ENGINE, is_engine_arg=True
    )
    enable_expert_parallel: bool = key(
        False, "Spread experts over devices.", TRINITY, idle_with=_OF_VLLM, is_engine_arg=True
    )
    extra_engine_args: Args = key({}, "Arguments handed to the engine as they are.", TRINITY, idle_with=_OF_ENGINE)
    use_v1: bool = key(True, "vLLM: engine version 1.", TRINITY, support=LATER)
    enforce_eager: bool = key(False, "vLLM: no captured graphs.", TRINITY, idle_with=_OF_VLLM, is_engine_arg=True)
    enable_prefix_caching: bool = key(
        True,
        "Compute only once what several prompts, or one turn and the next of a conversation, have in common.",
        TRINITY,
        idle_with=_OF_ENGINE,
        is_engine_arg=True,
    )
    prefix_cache_bytes: Count | None = key(
        None,
        "Torch engine: largest size of that cache in bytes, at least a block of 32 tokens; null: what the sequences "
        "under way may take, at most a quarter of the memory for keys and values, and at most what the sequences "
        "leave of it.",
        OWN,
        idle_with=(*_OF_TORCH, IdleWith("enable_prefix_caching", (False,))),
    )
    enable_chunked_prefill: bool = key(
        True, "vLLM: prefill in pieces.", TRINITY, idle_with=_OF_VLLM, is_engine_arg=True
    )
    gpu_memory_utilization: Annotated[Float, Field(gt=0, le=1)] = key(
        0.9,
        "Share of the device's memory for the engine, in (0, 1].",
        TRINITY,
        idle_with=_OF_ENGINE,
        is_engine_arg=True,
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = key(
        "auto",
        "Data type of the engine's weights; auto: bfloat16 where the device computes in it.",
        TRINITY,
        idle_with=_OF_ENGINE,
        is_engine_arg=True,
    )
    seed: Int | None = key(
        None, "Seed of sampling.", TRINITY, default_from="seed", idle_with=_OF_ENGINE, is_engine_arg=True
    )
    temperature: NonNegative | None = key(None, "", TRINITY, default_from="model.temperature")
    top_p: TopP | None = key(None, "", TRINITY, default_from="model.top_p")
    top_k: TopK | None = key(None, "", TRINITY, default_from="model.top_k")
    logprobs: Natural | None = key(None, "", TRINITY, support=only(0, 1), default_from="model.logprobs")
    repetition_penalty: Positive | None = key(
        None,
        "",
        TRINITY,
        support=only(1.0),
        default_from="model.repetition_penalty",
    )
    max_model_len: Count | None = key(None, "", TRINITY, default_from="model.max_model_len", is_engine_arg=True)
    max_prompt_tokens: Count | None = key(None, "", TRINITY, default_from="model.max_prompt_tokens")
    max_response_tokens: Count | None = key(
        None,
        "",
        TRINITY,
        default_from="model.max_response_tokens",
    )
    min_response_tokens: Natural | None = key(
        None,
        "",
        TRINITY,
        default_from="model.min_response_tokens",
    )
    enable_prompt_truncation: bool | None = key(
        None,
        "",
        TRINITY,
        default_from="model.enable_prompt_truncation",
    )
    ignore_eos: bool = key(False, "Generate on after the end-of-sequence token.", TRINITY)
    enable_multimodal: bool = key(
        False, "Read images in messages (torch and vLLM engines).", TRINITY, idle_with=_OF_ENGINE
    )
    chat_template: str | None = key(None, "Chat template as text; null inherits.", TRINITY, idle_with=_OF_ENGINE)
    enable_thinking: bool | None = key(None, "As model.enable_thinking; null inherits.", TRINITY, support=LATER)
    enable_openai_api: bool = key(False, "OpenAI clients of workflows: get_openai_client.", TRINITY)
    enable_log_requests: bool = key(False, "Log every request.", TRINITY, idle_with=_OF_VLLM)
    base_port: Port | None = key(None, "First port of the endpoints; null: any free one.", TRINITY, support=LATER)
    api_key: str = key(NO_KEY, "Mode serve: key of the endpoint; EMPTY or none: a random one.", TRINITY, secret=True)
    enable_auto_tool_choice: bool = key(
        False, "Parse responses for tool calls; needs tool_call_parser.", TRINITY, idle_with=_OF_ENGINE
    )
    tool_call_parser: str | None = key(
        None,
        "Format of the model's tool calls.",
        TRINITY,
        support=only(None, *TOOL_CALL_PARSERS),
        idle_with=(*_OF_ENGINE, IdleWith("enable_auto_tool_choice", (False,))),
    )
    reasoning_parser: str | None = key(
        None, "Format of the model's reasoning.", TRINITY, support=only(None, *REASONING_PARSERS), idle_with=_OF_ENGINE
    )
    external_model_config: ExternalModelConfig | None = key(None, "As model.external_model; null inherits.", TRINITY)
    nnodes: Count | None = key(None, "Nodes of one engine.", TRINITY, derived=True, support=LATER, is_engine_arg=True)
    node_rank: Natural | None = key(
        None, "Rank of a node inside an engine.", TRINITY, derived=True, support=LATER, is_engine_arg=True
    )
    enable_return_routed_experts: bool = key(False, "Return the chosen experts of each token.", TRINITY, support=LATER)
    weight_sync_buffer_size: Count = key(1024, "SGLang: buffer of weight updates in MB.", TRINITY, support=LATER)
    lora_configs: tuple[LoraConfig, ...] | None = key(
        None, "As model.lora_configs; null inherits.", TRINITY, support=LATER
    )
    rope_scaling: Args | None = key(None, "As model.rope_scaling; null inherits.", TRINITY, support=LATER)
    rope_theta: Positive | None = key(None, "As model.rope_theta; null inherits.", TRINITY, support=LATER)
