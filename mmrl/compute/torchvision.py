"""Writes a `.pth` file that makes `import torchvision` work with a CPU build of torch in programs that don't import mmrl:
`python -m mmrl.compute.torchvision --install-pth`. `mmrl.api.operators` says why and how.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

from mmrl.api.operators import prepare_torchvision as prepare_torchvision  # the .pth files of mmrl 0.2.0 import it from here

PTH_NAME = "mmrl_torchvision.pth"

# Runs at the start of every interpreter of the environment, so it imports nothing until torchvision is imported.
_PTH_SOURCE = """
class MmrlTorchvision:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision":
            try:
                from mmrl.api.operators import prepare_torchvision
            except ModuleNotFoundError:
                return
            prepare_torchvision()
sys.meta_path.insert(0, MmrlTorchvision)
"""


def install_pth(directory: Path | None = None) -> Path:
    """Write the `.pth` file into `directory`, by default this environment's site-packages, and return its path."""
    path = (directory or Path(sysconfig.get_path("purelib"))) / PTH_NAME
    path.write_text(f"import sys; exec({_PTH_SOURCE!r})\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mmrl.compute.torchvision", description="Make `import torchvision` work with CPU torch."
    )
    parser.add_argument("--install-pth", action="store_true", required=True, help="do it in every process of this environment")
    parser.parse_args()
    print(f"wrote {install_pth()}")


if __name__ == "__main__":
    main()
