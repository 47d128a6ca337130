"""Figures by matplotlib: the program is run in a sandbox, and its figure is what it saved last or left open.

The sandbox has the interpreter with its packages, which can be read, and a scratch folder in memory; no network, no other file
and no further process (`mmrl.api.processes.sandbox`).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from mmrl import UserError
from mmrl.api.errors import shorten
from mmrl.api.processes import CHILD, ENVIRONMENT, ChildProcess
from mmrl.api.processes.answers import EndedEarly, TookTooLong, answer_to
from mmrl.api.processes.sandbox import SCRATCH, bare_wrapper, check, interpreter
from mmrl.api.verifiers.parse import fenced_blocks, last_tag, thought
from mmrl_rendering import plot_program
from mmrl_rendering.plot_program import HEADER, MAX_PIXELS
from mmrl_rendering.svg import Refused

WHAT = "code = 'matplotlib'"
MAX_LENGTH = 20_000
SECONDS = 8.0
"""Time that a program may take, without what it waits for a processor; the start of matplotlib takes one of it."""
SCRATCH_MB = 64


def ready() -> None:
    """Raise UserError if this machine can't run programs, or has no matplotlib."""
    check(WHAT)
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f'{WHAT} needs matplotlib: pip install "multimodal-rl-rendering[plots]"')
    _tried()


@functools.cache
def _tried() -> None:
    try:
        _shown("import matplotlib.pyplot as plt; plt.figure(figsize=(1, 1))")
    except Refused as error:
        raise UserError(f"{WHAT}: a program can't run in the sandbox here: {shorten(error, 200)}") from None


def find(completion: str) -> str:
    """The program in a completion: the content of its last ``` fence, or else of its answer tag, or else all of it after the
    thinking. Raises Refused."""
    text = thought(completion)[1]
    text = last_tag(text) or text
    code = ([text, *fenced_blocks(text)][-1]).strip()
    if not code:
        raise Refused("there is no program")
    if len(code) > MAX_LENGTH:
        raise Refused(f"the program has more than {MAX_LENGTH:,} characters")
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"{type(error).__name__}: {shorten(error, 100)}") from None
    return code


def render(code: str, size: tuple[int, int] | None = None) -> Image.Image:
    """The figure of a program, RGB. size: (width, height) in pixels; by default the figure's own. Raises Refused for a program
    that fails, takes too long or draws no figure, UserError where there is no sandbox."""
    shown = _shown(code)
    return shown.copy() if size in (None, shown.size) else shown.resize(size or shown.size, Image.Resampling.BOX)


@functools.lru_cache(maxsize=128)
def _shown(code: str) -> Image.Image:
    """Cached, because a group often writes the same program, and several verifiers read it."""
    check(WHAT)
    packages = _packages()
    own = Path(plot_program.__file__).resolve()
    child = ChildProcess(
        "mmrl_rendering_plot_program:main",
        [[str(folder) for folder in packages], SCRATCH],
        file=str(own),
        python=interpreter(),
        environment={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
        pipes=True,
        wrapper=bare_wrapper([CHILD.parent.resolve(), own.parent, *packages], SCRATCH_MB),
    )
    try:
        return _read(answer_to(child, code.encode("utf-8", "replace"), SECONDS, HEADER.size + 3 * MAX_PIXELS))
    except TookTooLong:
        raise Refused("the program took too long and was stopped") from None
    except EndedEarly as error:
        raise Refused(f"the program ended early: it {str(error).partition(';')[0]}") from None
    finally:
        child.close()


@functools.cache
def _packages() -> list[Path]:
    """The folders from which matplotlib and what it needs are imported."""
    found = []
    for name in ("matplotlib", "numpy", "PIL", "contourpy", "kiwisolver", "cycler", "pyparsing", "dateutil", "six", "packaging"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise UserError(f'{WHAT} needs {name}: pip install "multimodal-rl-rendering[plots]"')
        path = Path(spec.origin)
        found.append((path.parent.parent if path.name == "__init__.py" else path.parent).resolve())
    folders = list(dict.fromkeys(found))
    _compile(folders)
    return folders


def _compile(folders: Sequence[Path]) -> None:
    """Let Python write the bytecode of matplotlib once, where an installer such as uv left it out: without it a program starts in
    three times the time, and nothing can be written in the sandbox."""
    source = importlib.util.find_spec("matplotlib.pyplot")
    if source is None or source.origin is None or Path(importlib.util.cache_from_source(source.origin)).exists():
        return
    code = f"import sys; sys.path += {[str(folder) for folder in folders]!r}; import matplotlib.pyplot"
    subprocess.run([interpreter(), "-c", code], env={**ENVIRONMENT, "MPLBACKEND": "Agg"}, capture_output=True, timeout=120)


def _read(answer: bytes) -> Image.Image:
    """The picture of an answer. Raises Refused for another answer: the program may have written it itself."""
    if len(answer) < HEADER.size:
        raise Refused("the program gives no figure")
    kind, width, height = HEADER.unpack(answer[: HEADER.size])
    rest = answer[HEADER.size :]
    if kind == b"fail":
        raise Refused(rest[:300].decode("utf-8", "replace"))
    if kind != b"plot" or not 1 <= width * height <= MAX_PIXELS or len(rest) != 3 * width * height:
        raise Refused("the program gives no figure")
    return Image.frombytes("RGB", (width, height), rest)
