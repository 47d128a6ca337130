"""Pictures as short code: `rect 10 20 30 40 red; circle 50 50 9 blue`, for models that can't write SVG yet."""

from __future__ import annotations

from mmrl.api.verifiers.parse import only_answer, thought
from mmrl_rendering.svg import Refused

COLOURS = ("red", "blue", "green", "orange", "purple", "black", "gold", "teal", "pink", "grey")
SIDE = 100
"""Units of a picture's side."""
SHAPES = {
    "rect": ("x", "y", "width", "height"),
    "circle": ("cx", "cy", "r"),
    "ellipse": ("cx", "cy", "rx", "ry"),
    "line": ("x1", "y1", "x2", "y2"),
    "triangle": ("x1", "y1", "x2", "y2", "x3", "y3"),
}
"""Shape -> meaning of its numbers; a line is 4 wide."""
MAX_SHAPES = 64
MAX_CHARS = 4_000


def find(completion: str) -> str:
    """The shapes of a completion: the content of its one answer tag, or all of it without a tag. Raises Refused."""
    text, why = thought(completion)[1], ""
    if "answer>" in text:
        found, why = only_answer(completion)
        text = found or ""
    if why or len(text) > MAX_CHARS:
        raise Refused(why or f"longer than {MAX_CHARS:,} characters")
    return text.strip()


def to_svg(text: str) -> str:
    """SVG code for shapes, separated by `;` or line breaks. Raises Refused for an invalid one."""
    parts = [p.split() for p in text.replace("\n", ";").split(";") if p.strip()]
    if not parts or len(parts) > MAX_SHAPES:
        raise Refused(f"{len(parts)} shapes, where 1 to {MAX_SHAPES} are drawn")
    return f'<svg viewBox="0 0 {SIDE} {SIDE}">{"".join(_element(p) for p in parts)}</svg>'


def _element(words: list[str]) -> str:
    name, numbers, colour = words[0], words[1:-1], words[-1]
    keys = SHAPES.get(name, ())
    if not keys or len(numbers) != len(keys) or not all(n.isascii() and n.isdigit() and len(n) < 4 for n in numbers):
        raise Refused(f"{' '.join(words)[:40]!r} is no shape such as rect 10 20 30 40 red")
    if colour not in COLOURS:
        raise Refused(f"{colour[:20]!r} is no colour: {', '.join(COLOURS)}")
    if name == "triangle":
        points = " ".join(f"{x},{y}" for x, y in zip(numbers[::2], numbers[1::2], strict=True))
        return f'<polygon points="{points}" fill="{colour}"/>'
    shown = " ".join(f'{k}="{n}"' for k, n in zip(keys, numbers, strict=True))
    paint = f'stroke="{colour}" stroke-width="4"' if name == "line" else f'fill="{colour}"'
    return f"<{name} {shown} {paint}/>"
