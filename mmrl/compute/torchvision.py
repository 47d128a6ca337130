"""Makes `import torchvision` work with a CPU build of torch.

PyPI's torchvision is compiled for CUDA torch. With CPU torch its compiled operators can't load, and `import torchvision`, and
with it every vision model of transformers, raises "operator torchvision::nms does not exist". It is enough to declare the two
operators that its import looks up: transforms, image and video processors need no more. torchvision's own operators are used
wherever they load.

`import mmrl` calls `prepare_torchvision()`. For programs that import torchvision without mmrl a `.pth` file does the same:
`python -m mmrl.compute.torchvision --install-pth`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PTH_NAME = "mmrl_torchvision.pth"

# Runs at the start of every interpreter of the environment, so it imports nothing until torchvision is imported.
_PTH_SOURCE = """
class MmrlTorchvision:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision":
            try:
                from mmrl.compute.torchvision import prepare_torchvision
            except ModuleNotFoundError:
                return
            prepare_torchvision()
sys.meta_path.insert(0, MmrlTorchvision)
"""


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


def install_pth(directory: Path | None = None) -> Path:
    """Write the `.pth` file into `directory`, by default this environment's site-packages, and return its path."""
    import sysconfig

    path = (directory or Path(sysconfig.get_path("purelib"))) / PTH_NAME
    path.write_text(f"import sys; exec({_PTH_SOURCE!r})\n", encoding="utf-8")
    return path


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m mmrl.compute.torchvision", description="Make `import torchvision` work with CPU torch."
    )
    parser.add_argument("--install-pth", action="store_true", required=True, help="do it in every process of this environment")
    parser.parse_args()
    print(f"wrote {install_pth()}")


if __name__ == "__main__":
    main()
