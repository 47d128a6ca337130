"""Imports for plugins with a kind of stage.

`mmrl.api` imports no other part of mmrl, so each name is listed in a table and imported on first use, as in::

    from mmrl.api.stages import SampledSteps
"""

from __future__ import annotations

import importlib
from typing import Any

NAMES = {
    "SampledSteps": "mmrl.train.stages.sampled:SampledSteps",
    "PluginStage": "mmrl.config.sections:PluginStage",
    "Sampled": "mmrl.train.sampling.groups:Sampled",
    "StageContext": "mmrl.train.context:StageContext",
}
"""Name -> "module:name"."""


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = NAMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(NAMES)
