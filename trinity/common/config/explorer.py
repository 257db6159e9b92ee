"""Section `explorer`: rollout engines, workflow runners and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trinity.common.config.base import (
    GUIDE,
    LATER,
    OWN,
    TRINITY,
    Count,
    Facts,
    Float,
    IdleWith,
    Natural,
    NonNegative,
    Port,
    Positive,
    Renamed,
    Section,
    key,
    only,
    section,
)
from trinity.common.config.buffer import BufferName
from trinity.common.config.model import InferenceModelConfig


class OverRolloutConfig(Section):
    """Continuation before the slowest tasks of a batch are done."""

    ratio: Annotated[Float, Field(ge=0, lt=1)] = key(0.0, "Share of straggler tasks that may be abandoned.", GUIDE)
    wait_after_min: NonNegative = key(30.0, "Wait after the required share in seconds.", GUIDE)
    return_partial_tasks: bool = key(False, "Keep the finished rollouts of unfinished tasks.", TRINITY)


class DynamicTimeoutConfig(Section):
    """Deadline of a task from the average time of successful ones."""

    enable: bool = key(False, "Use it.", GUIDE)
    ratio: Positive = key(3.0, "Deadline as a multiple of the average time, > 0.", GUIDE)
    warmup_min_steps: Natural = key(1, "Steps before it is used.", TRINITY)


# The engine of the trained model has these from section `model`; auxiliary models have their own.
_OF_ROLLOUT = {
    "engine_type": Facts(
        only(
            "auto",
            "torch",
            "vllm",
            "vllm_async",
            "external",
            instead="use --set explorer.rollout_model.engine_type=torch",
        )
    ),
    "lora_configs": Facts(only(instead="write `model.lora_configs`")),
    "model_path": Facts(LATER, default_from="model.model_path"),
    "tensor_parallel_size": Facts(verl_names=("tensor_model_parallel_size",)),
    **{name: Facts(LATER) for name in ("logprobs", "repetition_penalty")},
}


_SERVE = (IdleWith(".mode", but=("serve",)),)


class ExplorerConfig(Section):
    """Rollouts and evaluation."""

    name: BufferName = key("explorer", "Name of the explorer; unique among those that share a run.", GUIDE)
    runner_per_model: Count = key(8, "Workflow runners per engine instance, >= 1.", GUIDE)
    runner_num: Count | None = key(
        None,
        "Older form of runner_per_model.",
        TRINITY,
        renamed=Renamed("explorer.runner_per_model", "Trinity-RFT 0.3"),
    )
    max_timeout: Positive = key(1800.0, "Longest time of one rollout in seconds, > 0.", TRINITY)
    max_retry_times: Natural = key(2, "Retries of a rollout that failed or timed out.", GUIDE)
    env_vars: dict[str, str] = key({}, "Environment variables of the runners.", GUIDE)
    runner_prepare_concurrency: Count = key(8, "Runners prepared at once.", TRINITY)
    runner_prepare_max_retries: Natural = key(2, "Retries of a runner that cannot be prepared.", TRINITY)
    concurrent_mode: Literal["sequential", "asynchronous", "multi-threading"] = key(
        "sequential", "How a runner makes the rollouts of a task where the workflow makes one per call.", TRINITY
    )
    max_repeat_times_per_runner: Count | None = key(None, "Rollouts of one task per runner; null: all.", TRINITY)
    runner_isolation: Literal["auto", "thread", "process"] = key(
        "auto", "Runners as threads, or in processes that can be killed; auto: processes on Ray.", OWN
    )
    runners_per_process: Count | None = key(None, "Runners that share a process; null: one process a core.", OWN)
    runner_memory_bytes: Count | None = key(
        None,
        "Most resident memory of a process of runners and of what it started, in bytes; above it, it is killed and "
        "replaced. null: no limit.",
        OWN,
        idle_with=(IdleWith("runner_isolation", ("thread",), why="threads share the memory of the run"),),
    )
    rollout_model: InferenceModelConfig = section(InferenceModelConfig, "Engine of the trained model.", at=_OF_ROLLOUT)
    auxiliary_models: tuple[InferenceModelConfig, ...] = key((), "Further models that workflows call.", GUIDE)
    eval_interval: Count | None = key(100, "Steps between evaluations, >= 1; null: never.", GUIDE)
    eval_on_startup: bool = key(True, "Evaluate the original model at step 0.", GUIDE)
    bench_on_latest_checkpoint: bool = key(False, "Mode bench: only the latest checkpoint.", TRINITY)
    over_rollout: OverRolloutConfig = section(OverRolloutConfig, "Continue before the slowest tasks are done.")
    dynamic_timeout: DynamicTimeoutConfig = section(DynamicTimeoutConfig, "Deadline from measured times.")
    runner_state_report_interval: NonNegative = key(0.0, "Seconds between reports of runner states; 0: none.", GUIDE)
    engine_recovery_timeout: Positive = key(300.0, "Longest time without any engine in seconds; then an error.", OWN)
    engine_probe_first_wait: NonNegative = key(30.0, "Seconds from the start of engines to their first probe.", OWN)
    engine_probe_interval: Positive = key(5.0, "Seconds between two probes of an engine, > 0.", OWN)
    engine_probe_timeout: Positive = key(
        10.0, "Longest wait for the answer to a probe in seconds; then a new engine.", OWN
    )
    max_inflight_batches: Count = key(
        2,
        "Sync style fully_async: batches under way.",
        TRINITY,
        idle_with=(IdleWith("synchronizer.sync_style", but=("fully_async",)),),
    )
    api_max_requests: Count = key(
        1024, "Requests under way of the OpenAI-compatible endpoint; a further one is answered 429, >= 1.", OWN
    )
    proxy_port: Port = key(8010, "Mode serve: port, 0 to 65535; 0: a free one.", TRINITY, idle_with=_SERVE)
    listen_address: str = key("127.0.0.1", "Mode serve: address to listen on.", OWN, idle_with=_SERVE)
    service_status_check_interval: Positive = key(
        60.0, "Mode serve: seconds between two checks of the engines, > 0.", TRINITY, idle_with=_SERVE
    )
    min_running_model_num: Count = key(
        1, "Mode serve: engines without which no call is answered, >= 1.", TRINITY, idle_with=_SERVE
    )
    db_url: str | None = key(
        None, "Mode serve: database of recorded calls; null: proxy_history.db of the job.", TRINITY, idle_with=_SERVE
    )
