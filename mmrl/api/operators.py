"""Makes `import torchvision` work with a CPU build of torch; `import mmrl` calls `prepare_torchvision()`.

PyPI's torchvision is compiled for CUDA torch. With CPU torch its compiled operators can't load, and `import torchvision`, and
with it every vision model of transformers, raises "operator torchvision::nms does not exist". It is enough to declare the two
operators that its import looks up: transforms, image and video processors need no more. torchvision's own operators are used
wherever they load.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _TorchvisionFinder:
    """Declares the missing operators right after torchvision has tried to load its own."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torchvision.extension":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_then_declare(module: ModuleType) -> None:
            load(module)
            _declare_missing_ops(module)

        spec.loader.exec_module = load_then_declare  # type: ignore[method-assign]
        return spec


def _declare_missing_ops(extension: ModuleType) -> None:
    if extension._has_ops():
        return
    import torch

    for op in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, op):
            torch.library.define(f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def prepare_torchvision() -> None:
    """Make a later `import torchvision` of this process work. It imports nothing now, and may be called again."""
    if _TorchvisionFinder not in sys.meta_path:
        sys.meta_path.insert(0, _TorchvisionFinder)  # type: ignore[arg-type]
    left_over = sys.modules.get("torchvision.extension")  # there if an earlier import of torchvision failed
    if left_over is not None:
        _declare_missing_ops(left_over)
