"""veRL's section of the rollout engine."""

from __future__ import annotations

from trinity.common.config.dialects.data_keys import TESTS
from trinity.common.config.dialects.foreign_key import ForeignKey, harmless, honoured, refused

_ROLLOUT, _ENGINE = "actor_rollout_ref.rollout", "explorer.rollout_model"
_OLD = "the trainer computes old log-probabilities in the micro-batches of `actor`"
_FRESH = "the engine gets the trained weights before it samples"
_TURNS = (
    "enable", "max_assistant_turns", "max_user_turns", "max_turns", "tool_config_path", "function_tool_path",
    "interaction_config_path", "max_parallel_calls", "max_tool_response_length", "tool_response_truncate_side",
    "use_inference_chat_template", "tokenization_sanity_check_mode", "format", "num_repeat_rollouts",
    "completion_callback", "enable_tokenization_sanity_check",
)  # fmt: skip
_SIZES = "the sizes follow from the engine and the work"

ROLLOUT_KEYS: tuple[ForeignKey, ...] = (
    honoured(
        f"{_ROLLOUT}.name",
        f"{_ENGINE}.engine_type",
        via="engine",
        note="vllm; `torch` is Trinity's own engine, which serves `hf` too",
    ),
    honoured(f"{_ROLLOUT}.temperature", "model.temperature", via="sampling", default=1.0),
    honoured(f"{_ROLLOUT}.top_k", "model.top_k", via="sampling", default=-1, note="0 and -1: all"),
    honoured(f"{_ROLLOUT}.top_p", "model.top_p", via="sampling", default=1.0),
    honoured(f"{_ROLLOUT}.do_sample", "model.temperature", "algorithm.repeat_times", via="sampling", default=True),
    honoured(
        f"{_ROLLOUT}.n",
        "algorithm.repeat_times",
        "buffer.train_batch_size",
        via="sampling",
        default=1,
        note="rollouts of a prompt; a training step has `data.train_batch_size` times as many",
    ),
    refused(f"{_ROLLOUT}.over_sample_rate", "every prompt is sampled to its end", "remove it", 0, 0.0),
    honoured(
        f"{_ROLLOUT}.response_length", "model.max_response_tokens", via="lengths", note="as `data.max_response_length`"
    ),
    honoured(f"{_ROLLOUT}.prompt_length", "model.max_prompt_tokens", via="lengths", note="as `data.max_prompt_length`"),
    honoured(f"{_ROLLOUT}.max_model_len", "model.max_model_len", via="lengths", note="tokens"),
    honoured(f"{_ROLLOUT}.dtype", f"{_ENGINE}.dtype", via="engine", default="bfloat16"),
    honoured(f"{_ROLLOUT}.gpu_memory_utilization", f"{_ENGINE}.gpu_memory_utilization", default=0.5),
    honoured(f"{_ROLLOUT}.ignore_eos", f"{_ENGINE}.ignore_eos", default=False),
    honoured(f"{_ROLLOUT}.enforce_eager", f"{_ENGINE}.enforce_eager", via="engine"),
    harmless(f"{_ROLLOUT}.free_cache_engine", "an engine keeps its cache, on devices of its own where there are some"),
    harmless(f"{_ROLLOUT}.load_format", _FRESH),
    honoured(
        f"{_ROLLOUT}.tensor_model_parallel_size",
        f"{_ENGINE}.tensor_parallel_size",
        via="devices",
        default=1,
        note="vLLM, as far as a device is left for the trainer; the torch engine is on one device",
    ),
    harmless(f"{_ROLLOUT}.data_parallel_size", "the number of engines follows from the number of devices", 1),
    honoured(f"{_ROLLOUT}.pipeline_model_parallel_size", f"{_ENGINE}.pipeline_parallel_size", via="devices", default=1),
    refused(f"{_ROLLOUT}.expert_parallel_size", "experts of an engine are not spread", "write 1", 1),
    honoured(f"{_ROLLOUT}.max_num_batched_tokens", f"{_ENGINE}.extra_engine_args.max_num_batched_tokens", via="engine"),
    honoured(f"{_ROLLOUT}.max_num_seqs", f"{_ENGINE}.extra_engine_args.max_num_seqs", via="engine"),
    honoured(f"{_ROLLOUT}.enable_chunked_prefill", f"{_ENGINE}.enable_chunked_prefill", via="engine"),
    honoured(f"{_ROLLOUT}.enable_prefix_caching", f"{_ENGINE}.enable_prefix_caching"),
    harmless(f"{_ROLLOUT}.disable_log_stats", "an engine's own statistics are never printed"),
    harmless(f"{_ROLLOUT}.log_prob_micro_batch_size", _OLD),
    harmless(f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", _OLD),
    harmless(f"{_ROLLOUT}.log_prob_use_dynamic_bsz", _OLD),
    harmless(f"{_ROLLOUT}.log_prob_max_token_len_per_gpu", _OLD),
    harmless(f"{_ROLLOUT}.calculate_log_probs", "an engine always returns them", True),
    harmless(f"{_ROLLOUT}.mode", "requests are always independent of each other"),
    harmless(f"{_ROLLOUT}.logprobs_mode", "log-probabilities are those of the temperature", "processed_logprobs"),
    honoured(f"{_ROLLOUT}.seed", f"{_ENGINE}.seed"),
    honoured(f"{_ROLLOUT}.val_kwargs.do_sample", TESTS, via="tasks", default=False),
    honoured(f"{_ROLLOUT}.val_kwargs.temperature", TESTS, via="tasks", default=0, kind="number"),
    honoured(f"{_ROLLOUT}.val_kwargs.top_k", TESTS, via="tasks", default=-1),
    honoured(f"{_ROLLOUT}.val_kwargs.top_p", TESTS, via="tasks", default=1.0),
    honoured(f"{_ROLLOUT}.val_kwargs.n", TESTS, via="tasks", default=1),
    honoured(
        f"{_ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache",
        f"{_ENGINE}.extra_engine_args.disable_mm_preprocessor_cache",
        via="engine_kwargs",
    ),
    honoured(
        f"{_ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb",
        f"{_ENGINE}.extra_engine_args.mm_processor_cache_gb",
        via="engine_kwargs",
    ),
    honoured(f"{_ROLLOUT}.engine_kwargs.vllm.*", f"{_ENGINE}.extra_engine_args", via="engine_kwargs"),
    refused(f"{_ROLLOUT}.engine_kwargs.sglang", "SGLang is no engine here", "write vllm", is_section=True),
    refused(f"{_ROLLOUT}.engine_kwargs.trtllm", "TensorRT-LLM is no engine here", "write vllm", is_section=True),
    refused(
        f"{_ROLLOUT}.multi_turn",
        "a veRL file has one response per prompt here",
        "write a workflow of several turns, and our own file",
        switched=_TURNS,
    ),
    harmless(f"{_ROLLOUT}.agent", "workflows are run by runners", is_section=True),
    harmless(f"{_ROLLOUT}.trace", "every rollout is in the database, see `trinity show`", is_section=True),
    harmless(f"{_ROLLOUT}.skip_rollout", "prompts are always sampled", False),
    harmless(f"{_ROLLOUT}.skip_dump_dir", "it counts with `skip_rollout`", "/tmp/rollout_dump"),
    refused(f"{_ROLLOUT}.skip", "prompts are always sampled", "remove it", is_section=True),
    harmless(f"{_ROLLOUT}.update_weights_bucket_megabytes", _SIZES),
    harmless(
        f"{_ROLLOUT}.checkpoint_engine", "weights travel by `--set synchronizer.sync_method=...`", is_section=True
    ),
    harmless(f"{_ROLLOUT}.layered_summon", _SIZES),
    harmless(f"{_ROLLOUT}.multi_stage_wake_up", _SIZES),
    refused(f"{_ROLLOUT}.limit_images", "a prompt may have any number of images", "remove it"),
    refused(f"{_ROLLOUT}.quantization", "an engine has the weights that are trained", "remove it"),
    refused(f"{_ROLLOUT}.quantization_config_file", "an engine has the weights that are trained", "remove it"),
    refused(
        f"{_ROLLOUT}.disaggregation", "prompts and responses are computed by one engine", "remove it", is_section=True
    ),
    harmless(f"{_ROLLOUT}.prometheus", "metrics are in `metrics.jsonl`", is_section=True),
    harmless(f"{_ROLLOUT}.profiler", "there is no profiler", is_section=True),
    refused(f"{_ROLLOUT}.enable_rollout_routing_replay", "routes are not replayed", "remove it", False),
    refused(
        f"{_ROLLOUT}.full_determinism",
        "a run is deterministic as a whole",
        "remove it, and add --set deterministic=true",
        False,
    ),
    refused(f"{_ROLLOUT}.router_config_path", "requests go to the engine with the least work", "remove it"),
    harmless(f"{_ROLLOUT}.skip_tokenizer_init", "an engine gets tokens and gives tokens", True),
    refused(f"{_ROLLOUT}.moe_load_balance_metrics_interval", "the load of experts is not measured", "write 0", 0),
    refused(f"{_ROLLOUT}.mtp", "heads that predict further tokens are not used", "remove it", is_section=True),
    refused(f"{_ROLLOUT}.qat", "an engine has the weights that are trained", "remove it", is_section=True),
    harmless(f"{_ROLLOUT}.cudagraph_capture_sizes", _SIZES),
    harmless(f"{_ROLLOUT}.scheduling_policy", _SIZES, "fcfs"),
    harmless(f"{_ROLLOUT}.nnodes", "devices are those of `trainer`", 0),
    harmless(f"{_ROLLOUT}.n_gpus_per_node", "devices are those of `trainer`"),
)
