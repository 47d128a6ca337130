"""Render completions as pictures, for all languages."""

from __future__ import annotations

from PIL import Image

from mmrl.api.tasks.option_checks import check_choice
from mmrl_rendering import chart, html, plots, shapes, svg
from mmrl_rendering.svg import Refused

CODES = ("svg", "short", "chart", "html", "matplotlib")
"""The languages. `html` needs a browser and `matplotlib` a sandbox; `known` raises without them."""
CHART_SIZE = (280, 210)
SVG_SIZE = (112, 112)


def known(code: str) -> str:
    """The name of a language. Raises UserError for an unknown one."""
    check_choice("code", code, CODES)
    if code == "html":
        html.browser()
    if code == "matplotlib":
        plots.ready()
    return code


def source(completion: str, code: str = "svg") -> str:
    """The code in a completion, without the text around it. Raises Refused."""
    if code == "svg":
        return svg.find(completion)
    if code == "html":
        return html.find(completion)
    if code == "matplotlib":
        return plots.find(completion)
    return shapes.find(completion) if code == "short" else str(chart.find(completion))


def render(completion: str, code: str = "svg", size: tuple[int, int] | None = None) -> Image.Image:
    """The picture that a completion makes, RGB. For previews and reports, and for the verifiers.

    code: `svg`, `short` (`mmrl_rendering.shapes`), `chart` (`mmrl_rendering.chart`), `html` or `matplotlib`. size: (width,
    height) in pixels; by default that of an SVG or a figure, or that of the tasks. Raises `Refused`, a ValueError with a message
    of one line, if nothing can be shown.
    """
    if code == "chart":
        return chart.draw(chart.read(chart.find(completion)), size or CHART_SIZE)
    if code == "html":
        return html.render(html.find(completion), size)
    if code == "matplotlib":
        return plots.render(plots.find(completion), size)
    if code == "short":
        return svg.render(shapes.to_svg(shapes.find(completion)), size or SVG_SIZE)
    return svg.render(svg.find(completion), size)


__all__ = ["CODES", "Refused", "known", "render", "source"]
