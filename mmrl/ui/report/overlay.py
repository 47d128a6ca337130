"""Marks as SVG over an image and as bars under a video: gold marks with solid lines, a completion's marks with dashed lines.

The style sheet sets colours and lines by class; style attributes are not used, because a page's policy may forbid them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mmrl.api.tasks.overlays import Overlay
from mmrl.ui.report.text import esc

NAMES = {"true": "gold", "said": "completion"}
"""`Overlay.source` -> its name on pages."""
LETTERS = 11
"""Height of a label in pixels on the page."""
WIDE = 0.66
"""Approximate width of a letter as a share of its height."""
TOLD = 4
"""Up to this many marks of a kind are described one by one to screen readers; more are counted."""


def overlay_svg(marks: Sequence[Overlay], true: Sequence[Overlay], size: tuple[int, int], shown: float) -> str:
    """Marks as the content of an SVG in image pixels. true: gold marks, which grids are compared with. size: (width, height) of
    the image. shown: width of the image on the page in pixels, which sets the size of labels and points."""
    unit = size[0] / shown
    drawn = [_drawn(mark, true, size, unit) for mark in marks if mark.kind != "interval"]
    return "".join([*(behind for behind, _ in drawn), *(front for _, front in drawn)])


def _drawn(mark: Overlay, true: Sequence[Overlay], size: tuple[int, int], unit: float) -> tuple[str, str]:
    """(light lines behind all marks, for contrast on any background; the mark itself)."""
    solid, css = "", ""
    if mark.kind == "grid":
        lines, more = _grid(mark, true, size, unit)
    else:
        xs, ys = ([v * side for v in mark.coordinates[axis::2]] for axis, side in enumerate(size))
        lines, solid = _SHAPES[mark.kind](xs, ys, size, unit)
        more = _label(mark, xs, ys, size, unit) if mark.label else ""
        css = " spot" if mark.kind == "point" else ""
    paths = [(lines, ""), *([(solid, " solid")] if solid else [])]
    behind = "".join(f'<path class="behind{css}" d="{path}"/>' for path, _ in paths)
    front = "".join(f'<path class="line{css}{kind}" d="{path}"/>' for path, kind in paths)
    return f'<g class="mark">{behind}</g>', f'<g class="mark {mark.source}">{front}{more}</g>'


Shape = tuple[str, str]
"""(path that is solid for gold and dashed for a completion, path that is always solid)."""


def _box(xs: Sequence[float], ys: Sequence[float], size: tuple[int, int], unit: float) -> Shape:
    (x1, x2), (y1, y2) = ([_within(v, side, unit) for v in ends] for ends, side in ((xs, size[0]), (ys, size[1])))
    return f"M{x1:.2f} {y1:.2f}H{x2:.2f}V{y2:.2f}H{x1:.2f}Z", ""


def _point(xs: Sequence[float], ys: Sequence[float], size: tuple[int, int], unit: float) -> Shape:
    """A ring with four ticks that leave its centre free, so that small objects stay visible."""
    (x,), (y,), r = xs, ys, 7 * unit
    ring = f"M{x - r:.2f} {y:.2f}a{r:.2f} {r:.2f} 0 1 0 {2 * r:.2f} 0a{r:.2f} {r:.2f} 0 1 0 {-2 * r:.2f} 0Z"
    ticks = ((-r, 0, 0.5 * r, "h"), (r, 0, -0.5 * r, "h"), (0, -r, 0.5 * r, "v"), (0, r, -0.5 * r, "v"))
    return ring, "".join(f"M{x + dx:.2f} {y + dy:.2f}{way}{by:.2f}" for dx, dy, by, way in ticks)


def _path(xs: Sequence[float], ys: Sequence[float], size: tuple[int, int], unit: float) -> Shape:
    """A line with an arrowhead at its end."""
    line = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in zip(xs, ys, strict=True))
    way, head = math.atan2(ys[-1] - ys[-2], xs[-1] - xs[-2]), 10 * unit
    sides = [(xs[-1] - head * math.cos(way + turn), ys[-1] - head * math.sin(way + turn)) for turn in (0.5, -0.5)]
    (ax, ay), (bx, by) = sides
    return line, f"M{ax:.2f} {ay:.2f}L{xs[-1]:.2f} {ys[-1]:.2f}L{bx:.2f} {by:.2f}"


_SHAPES: dict[str, Callable[[Sequence[float], Sequence[float], tuple[int, int], float], Shape]] = {
    "box": _box,
    "point": _point,
    "path": _path,
}


def _within(value: float, side: int, unit: float) -> float:
    """A coordinate, moved one unit inside if it lies at the image's edge, so that its line is visible."""
    return min(max(value, unit), side - unit) if 0 <= value <= side else value


def _label(mark: Overlay, xs: Sequence[float], ys: Sequence[float], size: tuple[int, int], unit: float) -> str:
    """The label beside its mark and inside the image: above a gold mark, below a completion's mark, if there is room."""
    height, gap = LETTERS * unit, 4 * unit
    text = _short(mark.label, int(size[0] / (WIDE * height)))
    wide = WIDE * height * len(text)
    around = 8 * unit if mark.kind == "point" else 0.0
    above, below = min(ys) - around - gap, max(ys) + around + gap + 0.75 * height
    x = xs[0] - (wide / 2 if mark.kind == "point" else 0)
    first, second = (above, below) if mark.source == "true" else (below, above)
    y = first if height <= first <= size[1] - gap else second
    x, y = (max(low, min(v, high)) for v, low, high in ((x, gap, size[0] - wide - gap), (y, height, size[1] - gap)))
    return _text(text, x, y, height)


def _grid(mark: Overlay, true: Sequence[Overlay], size: tuple[int, int], unit: float) -> tuple[str, str]:
    """(the grid's lines, the labels of its cells with a shade on those that differ from the gold grid)."""
    rows, columns = (int(v) for v in mark.coordinates)
    width, height = size[0] / columns, size[1] / rows
    same = (
        gold.labels for gold in true if gold.kind == "grid" and (gold.coordinates, gold.image) == (mark.coordinates, mark.image)
    )
    right = next(same, mark.labels) if mark.source == "said" else mark.labels
    inner = [f"M{column * width:.2f} 0V{size[1]}" for column in range(1, columns)]
    inner += [f"M0 {row * height:.2f}H{size[0]}" for row in range(1, rows)]
    frame, _ = _box((0, size[0]), (0, size[1]), size, unit)
    cells = []
    for place, (label, should) in enumerate(zip(mark.labels, right, strict=True)):
        x, y, text = place % columns * width, place // columns * height, _short(label, 20)
        if text and label != should:
            cells.append(f'<rect class="other" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>')
        if text:
            letters = min(1.5 * LETTERS * unit, 0.6 * height, 0.8 * width / (WIDE * len(text)))
            cells.append(_text(text, x + width / 2, y + height / 2 + 0.36 * letters, letters, ' text-anchor="middle"'))
    return "".join([frame, *inner]), "".join(cells)


def _text(text: str, x: float, y: float, height: float, more: str = "") -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" font-size="{height:.2f}" stroke-width="{height / 3:.2f}"'
    return f"<text {place}{more}>{esc(text)}</text>"


def _short(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: max(1, most - 1)]}\u2026"


# -- videos -----------------------------------------------------------------------------------------------------------------


def interval_bars(marks: Sequence[Overlay]) -> str:
    """Intervals of a video as bars, one per line, clipped at the video's end."""
    return "".join(_bar(mark) for mark in marks if mark.kind == "interval")


def _bar(mark: Overlay) -> str:
    start, end, length = mark.coordinates
    left = min(100 * start / length, 98.5)
    wide = max(1.5, min(100 * end / length, 100.0) - left)
    label = f", {esc(mark.label)}" if mark.label else ""
    text = f"{NAMES[mark.source]} {start:.1f} to {end:.1f} s{label}"
    return (
        f'<div class="mark {mark.source} time"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="whole" d="M0 5H100"/><rect class="line" x="{left:.1f}" y="1" width="{wide:.1f}" height="8"/></svg>'
        f"<small>{text}</small></div>"
    )


# -- in words ---------------------------------------------------------------------------------------------------------------


def describe_overlays(marks: Sequence[Overlay]) -> str:
    """Description of marks for screen readers, not escaped: `; gold box; completion's box, IoU 0.62`."""
    texts = []
    for of, name in NAMES.items():
        some = [mark for mark in marks if mark.source == of]
        texts += [f"{name} {_words(mark)}" for mark in some] if len(some) <= TOLD else [f"{len(some)} marks of the {name}"]
    return "".join(f"; {text}" for text in texts)


def _words(mark: Overlay) -> str:
    beyond = ", outside the image" if is_off_picture(mark) else ""
    cells = f" {' '.join(label or '-' for label in mark.labels)}" if mark.kind == "grid" else ""
    return f"{mark.kind}{cells}{f', {mark.label}' if mark.label else ''}{beyond}"


def is_off_picture(mark: Overlay) -> bool:
    """Whether the mark lies completely outside its image."""
    if mark.kind in ("grid", "interval"):
        return False
    return any(max(ends) < 0 or min(ends) > 1 for ends in (mark.coordinates[::2], mark.coordinates[1::2]))


def legend(page: str) -> str:
    """The legend of the kinds of marks on a page; empty if the page has none."""
    line = '<svg width="34" height="12" aria-hidden="true"><path class="line" d="M1 6H33"/></svg>'
    shade = '<svg width="34" height="12" aria-hidden="true"><rect class="other" width="34" height="12"/></svg>'
    keys = (
        ('class="mark true', "true", line, "gold answer"),
        ('class="mark said', "said", line, "completion"),
        ('class="other"', "said", shade, "completion differs from the gold answer"),
    )
    shown = "".join(f'<li class="mark {of}">{key}<span>{name}</span></li>' for css, of, key, name in keys if css in page)
    return f'<ul class="legend of-marks">{shown}</ul>' if shown else ""
