"""The environment variables of workers: those of this list, so that no verifier sees the passwords and keys of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mmrl.registry.plugin_info import PluginInfo

MODULES = "MMRL_MODULES"
"""The variable with the local files that a worker can import and doesn't load as plugins."""
NAMES = frozenset(
    [
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "FONTCONFIG_FILE", "FONTCONFIG_PATH"),
        *("MMRL_BROWSER", "PLAYWRIGHT_BROWSERS_PATH", "MUJOCO_GL", "PYOPENGL_PLATFORM", "TORCH_HOME"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE"),
    ]
)
PREFIXES = ("LC_", "PYTHON", "CUDA_", "NVIDIA_", "ROCR_", "HIP_", "OMP_", "MKL_", "OPENBLAS_", "VK_", "MMRL_TEST_")


def scrubbed(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The variables that every worker gets, and those that its verifiers' specs name."""
    return {k: v for k, v in environment.items() if k in NAMES or k in more or k.startswith(PREFIXES)}


def of_plugin(plugin: PluginInfo) -> dict[str, str]:
    """Settings with which a process loads only this plugin, beside mmrl's own verifiers. A local file may import the others, of
    which one with a stage takes seconds to load."""
    if plugin.dist is None:
        return {"MMRL_PLUGINS": "", "MMRL_PLUGIN_FILES": plugin.target, MODULES: os.environ.get("MMRL_PLUGIN_FILES", "")}
    return {"MMRL_PLUGINS": plugin.name, "MMRL_PLUGIN_FILES": ""}
