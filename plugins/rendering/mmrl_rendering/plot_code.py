"""Programs that draw a chart with matplotlib, for the task `rendering/plot`."""

from __future__ import annotations

import json

from mmrl_rendering.chart import Chart


def as_program(chart: Chart) -> str:
    """The program of a chart, as a person would write it."""
    lines = ["import matplotlib.pyplot as plt", ""]
    body = {"bar": _bars, "line": _lines, "scatter": _points, "pie": _pie}[chart.type](chart)
    lines += [*body, f"plt.title({_text(chart.title)})"]
    if chart.type != "pie":
        lines += [f"plt.xlabel({_text(chart.x)})", f"plt.ylabel({_text(chart.y)})"]
        lines += ["plt.legend()"] if len(chart.series) > 1 else []
    return "\n".join([*lines, "plt.show()"])


def _bars(chart: Chart) -> list[str]:
    labels, several = _list(chart.labels), len(chart.series)
    if several == 1:
        return [f"plt.bar({labels}, {_list(chart.series[0][1])})"]
    width = 0.8 / several
    drawn = []
    for number, (name, values) in enumerate(chart.series):
        shift = round((number - (several - 1) / 2) * width, 3)
        drawn.append(f"plt.bar([i + {shift:g} for i in range({len(values)})], {_list(values)}, {width:.3g}, label={_text(name)})")
    return [*drawn, f"plt.xticks(range({len(chart.labels)}), {labels})"]


def _lines(chart: Chart) -> list[str]:
    return [f'plt.plot({_list(chart.labels)}, {_list(values)}, marker="o", label={_text(name)})' for name, values in chart.series]


def _points(chart: Chart) -> list[str]:
    return [
        f"plt.scatter({_list([x for x, _ in points])}, {_list([y for _, y in points])}, label={_text(name)})"
        for name, points in chart.series
    ]


def _pie(chart: Chart) -> list[str]:
    return [f"plt.pie({_list(chart.series[0][1])}, labels={_list(chart.labels)})"]


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(values: object) -> str:
    items = [f"{v:g}" if isinstance(v, float) else _text(str(v)) for v in values]  # type: ignore[attr-defined]
    return f"[{', '.join(items)}]"
