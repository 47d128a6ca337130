"""A device that is not there: tensors say they are on cuda:0 and are computed on the CPU.

What CUDA refuses is refused (operands on two devices, NumPy on a device's tensor, a CPU's random generator), and each wait of the
host for the device is recorded with the line that caused it, see `Ledger`. What would be a race between streams is an error, see
`streams`. Speed, memory and rounding are the CPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from pretended_device import cuda, library, tensor
from pretended_device.library import NoCompiler
from pretended_device.streams import Race
from pretended_device.tensor import DEVICE, LEDGER, DeviceTensor
from pretended_device.waits import Ledger, Seen, Wait, WaitForbidden

__all__ = ["DEVICE", "DeviceTensor", "Ledger", "NoCompiler", "Race", "Seen", "Wait", "WaitForbidden", "pretended_device"]


@contextmanager
def pretended_device(folder: Path, backward_in_threads: bool = False) -> Iterator[Ledger]:
    """Inside the block torch has a device cuda:0. folder: of the compiled library. backward_in_threads: backward passes run in a
    thread of torch's for the device, as on CUDA; else in the one that calls `backward()`, so that it is known which line waits.

    Raises NoCompiler where it can't be compiled, and where torch has a GPU or CUDA's library.
    """
    if torch.cuda.is_available() or torch.backends.cuda.is_built():
        raise NoCompiler("this torch has CUDA's own library: the pretended device takes the place of one that isn't there")
    made = library.load(folder)
    with ExitStack() as held:
        made.pretend(True)
        held.callback(made.pretend, False)
        kernels = tensor.kernels()
        held.callback(kernels._destroy)
        held.enter_context(cuda.functions(LEDGER))
        held.enter_context(torch.autograd.set_multithreading_enabled(backward_in_threads))
        yield LEDGER
