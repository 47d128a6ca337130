"""The arguments of vLLM's engine: those that follow from the run file, those of `compute.vllm`, and their check against the
signature of the vLLM that is installed."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.config.sections import ComputeConfig
from mmrl.policies.vlm.vlm import VLM

CPU_CACHE = 2**30
"""Bytes of vLLM's key-value cache on a CPU."""
SET_BY = {
    "model": "policy.model",
    "dtype": "policy.dtype",
    "max_model_len": "generate.max_context",
    "max_num_seqs": "generate.batch_size",
    "gpu_memory_utilization": "compute.gpu_memory_utilization",
    "tensor_parallel_size": "compute.tensor_parallel",
    "enable_sleep_mode": "compute.sleep_mode",
}
"""Argument of vLLM -> the key of a run file that sets it."""
KEPT = {
    "logprobs_mode": "log-probabilities have to be those of the distribution that is sampled",
    "enable_lora": "adapters are worked into the weights that vLLM is given",
    "quantization": "vLLM's weights have to be the learner's",
    "speculative_config": "tokens have to be drawn from the learner's distribution alone",
    "pipeline_parallel_size": "an engine is spread over GPUs by compute.tensor_parallel",
    "data_parallel_size": "there are more engines with compute.learners or compute.engines",
    "limit_mm_per_prompt": "it sizes vLLM's buffers, and limits no prompts here",
}
"""Argument of vLLM -> why a run file can't set it. So are all others that `fixed` sets, without which nothing here would work."""


def engine_args(
    policy: VLM,
    settings: ComputeConfig,
    batch_size: int,
    max_context: int,
    folder: str,
    device: torch.device,
    known: type,
    routes: bool = False,
) -> dict[str, Any]:
    """Arguments of `vllm.EngineArgs`. known: that class. routes: the engine tells which experts it chose. Raises UserError for
    names in `compute.vllm` that it doesn't know or that are set here, and if there are fewer GPUs than it is sharded over."""
    fixed = _fixed(policy, settings, batch_size, max_context, folder, device, uses_v2(settings, routes))
    if routes:
        fixed["enable_return_routed_experts"] = True
    names = [field.name for field in dataclasses.fields(known)]
    for name in settings.vllm:
        key = f"compute.vllm.{name}"
        if name in SET_BY:
            raise UserError(f"{key}: use {SET_BY[name]}")
        if name in KEPT or name in fixed:
            raise UserError(f"{key} can't be set: {KEPT.get(name, 'mmrl sets it itself')}: leave it out")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{key}: the EngineArgs of the installed vLLM have no such argument{hint}")
    check_signature(fixed, known)
    return _usual(policy, max_context, device) | dict(settings.vllm) | fixed


def check_signature(given: Mapping[str, Any], known: type) -> None:
    """Raise UserError if the installed vLLM doesn't know an argument that is given here, or the choice made for it."""
    kinds, cure = (
        {field.name: field.type for field in dataclasses.fields(known)},
        'which mmrl needs: pip install "multimodal-rl[vllm]"',
    )
    for name, value in given.items():
        if name not in kinds:
            raise UserError(f"the installed vLLM has no argument {name}, {cure}")
        if typing.get_origin(kinds[name]) is typing.Literal and value not in typing.get_args(kinds[name]):
            raise UserError(f"the installed vLLM doesn't know {name} = {value!r}, {cure}")


def _usual(policy: VLM, max_context: int, device: torch.device) -> dict[str, Any]:
    """What `compute.vllm` may change."""
    found: dict[str, Any] = {"mm_processor_cache_gb": 0, "enforce_eager": device.type == "cpu"}
    if policy.family.capabilities.recurrent:
        found["enable_prefix_caching"] = False  # states of layers aren't kept for every token
    if device.type == "cpu":
        found |= {"kv_cache_memory_bytes": CPU_CACHE, "max_num_batched_tokens": max(max_context, 4096)}
    return found


def uses_v2(settings: ComputeConfig, routes: bool) -> bool:
    """Whether the engine runs vLLM's Model Runner V2."""
    return settings.model_runner == "v2" or (settings.model_runner == "auto" and routes)


def _fixed(
    policy: VLM, settings: ComputeConfig, batch_size: int, max_context: int, folder: str, device: torch.device, v2: bool
) -> dict[str, Any]:
    on_cpu = device.type == "cpu"
    room: dict[str, Any] = {"gpu_memory_utilization": settings.gpu_memory_utilization, "enable_sleep_mode": settings.sleep_mode}
    if on_cpu:  # on a CPU, chunked prefill can't be used with seeds per request: its generators can't be rewound
        room = {"enable_chunked_prefill": False}
    if has_separate_workers(settings):
        room |= apart(settings)
    own = device.index or 0
    if not on_cpu and (own or has_separate_workers(settings)):
        room["device_ids"] = devices(own, settings.tensor_parallel, ranks.local_size(), torch.cuda.device_count())
    return {
        "model": folder,
        "runner": "generate",
        "load_format": "dummy",
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "max_model_len": max_context,
        "max_num_seqs": batch_size,
        **room,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "logits_processors": ["mmrl.rollout.generate.vllm_worker:" + ("BannedV2" if v2 else "Banned")],
        "additional_config": {"mmrl_banned": sorted(policy.banned)},
        "worker_extension_cls": "mmrl.rollout.generate.vllm_worker.Reloading",
        "limit_mm_per_prompt": {"image": 64, "video": 8, "audio": 8},  # sizes its buffers; preprocessed inputs are not counted
        "mm_device_do_normalize": False,  # pixels are normalised already
        "disable_log_stats": True,
    }


def has_separate_workers(settings: ComputeConfig) -> bool:
    """Whether vLLM's workers have to be separate processes, whatever the model is."""
    return settings.tensor_parallel > 1 or distributed.is_initialized()


def apart(settings: ComputeConfig) -> dict[str, Any]:
    """Arguments with which vLLM's workers are separate processes."""
    return {"tensor_parallel_size": settings.tensor_parallel, "distributed_executor_backend": "mp"}


def devices(own: int, spread: int, learners: int, present: int) -> list[int]:
    """The `spread` GPUs of the engine of the learner on GPU `own`: that one, and others that no learner of this machine has. On
    another learner's GPU, the engine would wake up while that one computes."""
    taken = list(range(learners)) if learners > 1 else [own]
    spare = [gpu for gpu in range(present) if gpu not in taken]
    first = taken.index(own) * (spread - 1)
    found = [own, *spare[first : first + spread - 1]]
    if len(found) < spread:
        raise UserError(
            f"compute.tensor_parallel = {spread}: the vLLM of the learner on GPU {own} needs {spread - 1} more that no "
            f"learner has, and there are {present} for {learners}: lower it, or compute.learners"
        )
    return found
