"""Rewards by rendering: the completion's picture is compared with the target.

`meta["code"]` is the language: svg (the default), short or chart. All comparisons give 0 to a canvas of one colour, and to code
that doesn't render: `Score.detail` says why.
"""

from __future__ import annotations

import math
from typing import Any

from PIL import Image

from mmrl import Case, Score
from mmrl_rendering import chart as charts
from mmrl_rendering import compare
from mmrl_rendering.code import render, source
from mmrl_rendering.compare import Pixels
from mmrl_rendering.svg import Refused

TITLE, AXES, LABELS, VALUES = 0.2, 0.1, 0.25, 0.45
"""Weights of the parts of a chart."""


def pixel(case: Case) -> Score:
    """1 - normalised L2: 1 - |target - shown|^2 / |target - its mean colour|^2, at least 0.

    Known exploits: the background and large areas count most; a few large blots come near a picture of few large shapes.
    """
    return _scored(case, compare.pixel)


def ssim(case: Case) -> Score:
    """Structural similarity, less that of a blank canvas, scaled so that the target has 1.

    Known exploits: if most of a picture is white, white around the shapes earns much of the remaining score.
    """
    return _scored(case, compare.ssim)


def edges(case: Case) -> Score:
    """Similarity of Canny's edges, blurred; see `mmrl_rendering.compare.edges`.

    Known exploits: colours don't count: outlines alone earn all. Combine it with `rendering/pixel`.
    """
    return _scored(case, compare.edges)


def picture(case: Case) -> Score:
    """Half `rendering/pixel`, a quarter `rendering/ssim`, a quarter `rendering/edges`; rendered once, all three in the parts.

    Known exploits: those of the three.
    """
    both = _both(case)
    if isinstance(both, Refused):
        return Score(0.0, detail=str(both))
    parts = {"pixel": compare.pixel(*both), "ssim": compare.ssim(*both), "edges": compare.edges(*both)}
    value = 0.5 * parts["pixel"] + 0.25 * parts["ssim"] + 0.25 * parts["edges"]
    return Score(min(1.0, value), parts, ", ".join(f"{name} {v:.2f}" for name, v in parts.items()))


def parse(case: Case) -> Score:
    """1 when the code parses, is within the limits, renders, and shows more than one colour.

    Known exploits: any picture earns it; combine it with a reward for its content.
    """
    try:
        shown = _render(case, None)
    except Refused as error:
        return Score(0.0, detail=str(error))
    flat = all(low == high for low, high in shown.getextrema())  # type: ignore[misc]  # RGB has three pairs
    return Score(float(not flat), detail="a canvas of one colour" if flat else f"renders, {shown.width} x {shown.height}")


def length(case: Case, free: float = 1.0, likeness: bool = True) -> Score:
    """1 - (max(0, L - free x L') / L')^2, at least 0, for code of L characters, L' of the right code; 0 if it doesn't render.

    free: the share of the right code's length that costs nothing; RLRF has one half, so that the right code itself has 0.75.
    likeness: scale the value by the similarity: in full from half of `rendering/pixel` on, below that in proportion, 0 for a
    picture that shows nothing of the target. Known exploits: without `likeness`, a dot has 1. With it, half a picture in few
    characters; combine it with `rendering/picture`.
    """
    try:
        if likeness:
            both = _both(case)
            if isinstance(both, Refused):
                raise both
            share = min(1.0, 2 * compare.pixel(*both))
        else:
            share = 1.0
            _render(case, None)
        code = source(case.completion, _code(case))
    except Refused as error:
        return Score(0.0, detail=str(error))
    right = _right_length(case)
    value = max(0.0, economy(len(code), right, free)) * share
    return Score(value, detail=f"{len(code)} characters, where {right} will do" + (f", x {share:.2f}" if share < 1 else ""))


def rlrf(case: Case, w_pixel: float = 1.0, w_edges: float = 1.0, w_length: float = 1.0) -> Score:
    """RLRF's reward for pictures, the parts that need no model: the mean of pixel L2, edge L2 and length, each from -1 to 1.

    Rodriguez et al. 2025, "Rendering-Aware Reinforcement Learning for Vector Graphics Generation", by its formulas; no code is
    published. Pixel: 1 - mean |a - b|^2 of the pictures at zero mean and unit variance. Edges: the same of Canny's edges, 3
    wide and blurred over 13. Length: 1 - (max(0, L - L'/2) / L')^2, in characters where the paper counts tokens. Left out:
    the semantic rewards, which need models: `rendering/clip@rlrf` and `rendering/dino@rlrf`. Code that doesn't render has -1.
    The right code itself has 0.75 for its length, and so 0.917 of equal weights.
    w_pixel, w_edges, w_length: weights of the three, which are divided by their sum.
    Known exploits, as published: a blank canvas has 0 for pixels and for edges and 1 for its length, a third in total.
    """
    both = _both(case)
    if isinstance(both, Refused):
        return Score(-1.0, detail=str(both))
    target, shown = both
    try:
        code = source(case.completion, _code(case))
    except Refused as error:
        return Score(-1.0, detail=str(error))
    pairs = {
        "pixel": (compare.normalised(target), compare.normalised(shown)),
        "edges": (compare.normalised(compare.edge_map(target)), compare.normalised(compare.edge_map(shown))),
    }
    parts = {name: max(-1.0, 1 - float(((a - b) ** 2).mean())) for name, (a, b) in pairs.items()}
    parts["length"] = max(-1.0, economy(len(code), _right_length(case), 0.5))
    weights = {"pixel": w_pixel, "edges": w_edges, "length": w_length}
    total = sum(weights.values())
    if not total > 0 or min(weights.values()) < 0:
        raise ValueError(f"weights {weights} must be 0 or more, and not all 0")
    value = sum(weights[name] * v for name, v in parts.items()) / total
    return Score(min(1.0, max(-1.0, value)), parts, ", ".join(f"{name} {v:.2f}" for name, v in parts.items()))


def chart(case: Case) -> Score:
    """The share of the fields of `meta["chart"]` that is right; 0 for another type or an invalid chart.

    Title 0.2, axes 0.1 (for a pie the title has both), labels 0.25, values 0.45. Texts are compared without regard to case
    and blanks. Labels must be at their position. A value counts 1 - 5 x its error over the range of all values, at least 0;
    series are compared in order, and their names are a third of the labels' share. Of a pie the shares count. Superfluous fields
    count as wrong. Known exploits: none without reading the chart; a chart of the right type without anything right has 0.
    """
    if "chart" not in case.meta:
        raise ValueError("meta has no chart: it is needed for the comparison")
    truth = charts.read(case.meta["chart"])
    try:
        found = charts.read(charts.find(case.completion))
    except Refused as error:
        return Score(0.0, detail=str(error))
    if found.type != truth.type:
        return Score(0.0, detail=f"a {found.type} chart, where a {truth.type} is shown")
    names = _share([n for n, _ in found.series], [n for n, _ in truth.series]) if truth.type != "pie" else 1.0
    labels = _share(found.labels, truth.labels) if truth.labels else names
    parts = {
        "title": float(_same(found.title, truth.title)),
        "axes": (_same(found.x, truth.x) + _same(found.y, truth.y)) / 2 if truth.type != "pie" else 0.0,
        "labels": labels if truth.type == "pie" else (2 * labels + names) / 3,
        "values": _values(found, truth),
    }
    if truth.type == "pie":
        parts["axes"] = parts["title"]
    value = TITLE * parts["title"] + AXES * parts["axes"] + LABELS * parts["labels"] + VALUES * parts["values"]
    return Score(min(1.0, value), parts, ", ".join(f"{name} {v:.2f}" for name, v in parts.items()))


# -- parts ------------------------------------------------------------------------------------------------------------------


def economy(length: int, right: int, free: float) -> float:
    """RLRF's efficiency, unbounded below."""
    return 1 - (max(0.0, length - free * right) / right) ** 2


def _code(case: Case) -> str:
    return str(case.meta.get("code", "svg"))


def _right_length(case: Case) -> int:
    return max(1, int(case.meta.get("length") or len(str(case.answer or ""))))


def _render(case: Case, size: tuple[int, int] | None) -> Image.Image:
    """The completion's picture, at the size for comparisons."""
    return render(case.completion, _code(case), size or compare.reduced(case.image_sizes[0] if case.image_sizes else (112, 112)))


def _both(case: Case) -> tuple[Pixels, Pixels] | Refused:
    """(target, rendering) at the same size, or the error."""
    target = case.images[0]
    size = compare.reduced(target.size)
    try:
        shown = render(case.completion, _code(case), compare.rendered(target.size))
    except Refused as error:
        return error
    both = (p if p.size == size else p.resize(size, Image.Resampling.BOX) for p in (target, shown))
    a, b = (compare.pixels(p) for p in both)
    return a, b


def _scored(case: Case, measure: Any) -> Score:
    both = _both(case)
    if isinstance(both, Refused):
        return Score(0.0, detail=str(both))
    value = float(measure(*both))
    return Score(value if math.isfinite(value) else 0.0, detail=f"{measure.__name__} {value:.3f}")


def _same(a: str, b: str) -> bool:
    return "".join(a.casefold().split()) == "".join(b.casefold().split())


def _share(found: Any, truth: Any) -> float:
    """The share of texts that are right at their position."""
    return sum(_same(a, b) for a, b in zip(found, truth, strict=False)) / max(len(found), len(truth), 1)


def _values(found: charts.Chart, truth: charts.Chart) -> float:
    """Closeness of the values, 0 to 1, over all series; points by x, then y; a pie's as shares of its sum."""
    if truth.type == "pie":
        found, truth = (
            c._replace(series=(("", tuple(v / sum(c.series[0][1]) for v in c.series[0][1])),)) for c in (found, truth)
        )
    every = [v for _, values in truth.series for v in values]
    axes = 2 if truth.type == "scatter" else 1
    flat = [[v[i] if axes == 2 else v for v in every] for i in range(axes)]
    spans = [max(max(vs) - min(vs), max(map(abs, vs)) / 2, 1e-9) for vs in flat]
    total = count = 0.0
    for s in range(max(len(found.series), len(truth.series))):
        have, want = (c.series[s][1] if s < len(c.series) else () for c in (found, truth))
        if axes == 2:
            have, want = tuple(sorted(have)), tuple(sorted(want))
        count += max(len(have), len(want))
        for a, b in zip(have, want, strict=False):
            pairs = zip(a, b, spans, strict=True) if axes == 2 else [(a, b, spans[0])]
            total += min(max(0.0, 1 - 5 * abs(x - y) / span) for x, y, span in pairs)
    return total / count
