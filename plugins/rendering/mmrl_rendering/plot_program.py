"""The side of the sandbox: read a program from stdin, give up rights, run it, and write its figure to stdout.

Run by its path (`mmrl.api.processes.child`), so of mmrl it imports that module alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import sys
import warnings
from typing import Any

from mmrl.api.processes.child import beside, limit, read_request

HEADER = struct.Struct(">4sII")
"""`plot`, width and height; RGB follows. Or `fail`, the length of a message and 0."""
ADDRESSES = 4 * 2**30
"""Address space in bytes; matplotlib and numpy take a quarter of it."""
SECONDS = 20
"""Processor time; the other side stops the program earlier by the clock."""
FILE = 16 * 2**20
"""Largest file in the scratch folder."""
MAX_PIXELS = 4_000_000
READS = ("open", "openat", "openat2")
"""What a program may still call of `FILES_AND_PROCESSES`: fonts are read when a text first needs them."""


def main(packages: list[str], scratch: str) -> None:
    """Run the program on stdin, and write its figure. packages: where matplotlib is. scratch: the folder that can be written."""
    code = read_request().decode("utf-8", "replace")
    answer = os.fdopen(os.dup(1), "wb")
    silence = (
        os.open(os.devnull, os.O_WRONLY) if os.path.exists(os.devnull) else os.open(f"{scratch}/prints", os.O_CREAT | os.O_WRONLY)
    )
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.chdir(scratch)
    os.environ |= {"MPLBACKEND": "Agg", "MPLCONFIGDIR": scratch, "HOME": scratch, "TMPDIR": scratch}
    sys.path += packages
    warnings.simplefilter("ignore")
    try:
        figure = drawn(code)
        picture = HEADER.pack(b"plot", *size_of(figure)) + pixels(figure)
    except BaseException as error:  # noqa: BLE001  whatever the program raises is its answer
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300].encode("utf-8", "replace")
        picture = HEADER.pack(b"fail", len(text), 0) + text
    answer.write(picture)
    answer.flush()
    os._exit(0)


def drawn(code: str) -> Any:
    """The figure that a program saved last or has open. Raises what the program raises, and ValueError without a figure."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    saved: list[Any] = []
    Figure.savefig = lambda self, *args, **options: saved.append(self)  # type: ignore[method-assign, assignment]
    plt.show = lambda *args, **options: None
    system_calls = beside("system_calls")
    most = {resource.RLIMIT_AS: ADDRESSES, resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_FSIZE: FILE, resource.RLIMIT_CORE: 0}
    limit(most)
    system_calls.forbid({name: numbers for name, numbers in system_calls.FILES_AND_PROCESSES.items() if name not in READS})
    with contextlib.suppress(SystemExit):
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    figure = saved[-1] if saved else plt.gcf() if plt.get_fignums() else None
    if figure is None:
        raise ValueError("the program draws no figure")
    return figure


def size_of(figure: Any) -> tuple[int, int]:
    """(width, height) in pixels. Raises ValueError for a figure without pixels, or with too many."""
    width, height = (int(side) for side in figure.canvas.get_width_height())
    if not 1 <= width * height <= MAX_PIXELS:
        raise ValueError(f"the figure has {width} x {height} pixels, and may have up to {MAX_PIXELS:,}")
    return width, height


def pixels(figure: Any) -> bytes:
    """The figure's RGB."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    size_of(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    rgba = np.asarray(canvas.buffer_rgba()).astype(np.float32)
    alpha = rgba[..., 3:] / 255
    return bytes((rgba[..., :3] * alpha + 255 * (1 - alpha)).round().astype(np.uint8).tobytes())
