"""The environment variables of workers: those of this list, so that no verifier sees the passwords and keys of a run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.simulators.gpus import cuda_variables
from mmrl.registry.plugin_info import PluginInfo

MODULES = "MMRL_MODULES"
"""The variable with the local files that a worker can import and doesn't load as plugins."""
NAMES = frozenset(
    [
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "FONTCONFIG_FILE", "FONTCONFIG_PATH"),
        *("MMRL_BROWSER", "PLAYWRIGHT_BROWSERS_PATH", "MUJOCO_GL", "PYOPENGL_PLATFORM", "TORCH_HOME"),
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CC", "CXX", "TRITON_HOME", "TRITON_CACHE_DIR", "TRITON_LIBCUDA_PATH"),
        *("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_CUDACRT_PATH", "TRITON_CUDART_PATH"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE"),
    ]
)
PREFIXES = (
    *("LC_", "PYTHON", "MMRL_TEST_", "OMP_", "MKL_", "OPENBLAS_"),
    *("CUDA_", "NVIDIA_", "ROCR_", "HIP_", "VK_", "TORCHINDUCTOR_"),
)
SECRET = "TORCHINDUCTOR_REDIS_URL"
"""It has one of these prefixes, and may hold a password."""


def scrubbed(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The variables that every worker gets, and those that its verifiers' specs name."""
    return {k: v for k, v in environment.items() if k in NAMES or k in more or (k.startswith(PREFIXES) and k != SECRET)}


def of_plugin(plugin: PluginInfo) -> dict[str, str]:
    """Settings with which a process loads only this plugin, beside mmrl's own verifiers. A local file may import the others, of
    which one with a stage takes seconds to load."""
    if plugin.dist is None:
        return {"MMRL_PLUGINS": "", "MMRL_PLUGIN_FILES": plugin.target, MODULES: os.environ.get("MMRL_PLUGIN_FILES", "")}
    return {"MMRL_PLUGINS": plugin.name, "MMRL_PLUGIN_FILES": ""}


def of_learner_gpu() -> dict[str, str]:
    """Variables with which `cuda` is this learner's GPU. None for a learner that is alone, which may use all, or on a CPU."""
    if "torch" not in sys.modules:  # so this is no learner, and importing torch takes seconds
        return {}
    import torch

    from mmrl.compute import ranks

    if ranks.world_size() == 1 or not torch.cuda.is_initialized():
        return {}
    return cuda_variables(f"cuda{ranks.local_device()}")


def names_a_gpu(options: Mapping[str, Any]) -> bool:
    """Whether one of a verifier's options is a GPU by its number, such as `cuda:1`, which counts all GPUs."""
    return any(re.fullmatch(r"cuda:\d+", value) for value in options.values() if isinstance(value, str))
