"""Icons: strokes and shapes on a square of 24 units, and their names."""

from __future__ import annotations

import math

_SPEAKER = '<path d="M3 9h4l5-4v14l-5-4H3z"/>'
_LENS = '<circle cx="10.5" cy="10.5" r="6.5"/><path d="M15.3 15.3L21 21"/>'
_CIRCLE = '<circle cx="12" cy="12" r="9"/>'


def _path(d: str) -> str:
    return f'<path d="{d}"/>'


def _dots(*places: tuple[float, float]) -> str:
    return "".join(f'<circle cx="{x}" cy="{y}" r="1.3" fill="currentColor"/>' for x, y in places)


def _around(count: int, *radii: float) -> list[tuple[float, float]]:
    """`count` points for each turn of the radii, from the top on, clockwise."""
    steps = [(2 * math.pi * i / (count * len(radii)), radii[i % len(radii)]) for i in range(count * len(radii))]
    return [(round(12 + r * math.sin(a), 2), round(12 - r * math.cos(a), 2)) for a, r in steps]


def _polygon(points: list[tuple[float, float]]) -> str:
    return _path("M" + "L".join(f"{x} {y}" for x, y in points) + "z")


def _gear() -> str:
    """Eight teeth, each of which has a flat top and a flat foot."""
    turns = [(k + part, r) for k in range(8) for part, r in ((-0.2, 9.5), (0.2, 9.5), (0.3, 7.0), (0.7, 7.0))]
    points = [(math.pi / 4 * turn, r) for turn, r in turns]
    return _polygon([(round(12 + r * math.sin(a), 2), round(12 - r * math.cos(a), 2)) for a, r in points])


def _rays() -> str:
    inner, outer = _around(8, 7.0), _around(8, 9.8)
    return "".join(_path(f"M{x} {y}L{u} {v}") for (x, y), (u, v) in zip(inner, outer, strict=True))


ICONS: dict[str, str] = {
    "trash": _path("M4 7h16M9 7V4h6v3M6 7l1 13.5h10L18 7M10 11v6M14 11v6"),
    "gear": _gear() + '<circle cx="12" cy="12" r="3.2"/>',
    "magnifying glass": _LENS,
    "plus": _path("M12 4.5v15M4.5 12h15"),
    "minus": _path("M4.5 12h15"),
    "cross": _path("M6 6l12 12M18 6L6 18"),
    "tick": _path("M4 12.5l5.5 5.5L20 7"),
    "left arrow": _path("M20 12H4M11 5l-7 7 7 7"),
    "right arrow": _path("M4 12h16M13 5l7 7-7 7"),
    "up arrow": _path("M12 20V4M5 11l7-7 7 7"),
    "down arrow": _path("M12 4v16M5 13l7 7 7-7"),
    "left chevron": _path("M15 5l-7 7 7 7"),
    "right chevron": _path("M9 5l7 7-7 7"),
    "down chevron": _path("M5 9l7 7 7-7"),
    "star": _polygon(_around(5, 9.8, 4.2)),
    "heart": _path("M12 20.5C5.5 16 2.8 12.3 2.8 8.9A4.7 4.7 0 0 1 12 7a4.7 4.7 0 0 1 9.2 1.9c0 3.4-2.7 7.1-9.2 11.6z"),
    "bell": _path("M6 17v-6a6 6 0 0 1 12 0v6l2 2H4zM10 22h4M12 5V3"),
    "three lines": _path("M4 6h16M4 12h16M4 18h16"),
    "house": _path("M3 11.5L12 4l9 7.5M6 9.5V20h12V9.5M10 20v-6h4v6"),
    "person": '<circle cx="12" cy="8" r="4"/>' + _path("M4 21c0-5 3.5-7.5 8-7.5s8 2.5 8 7.5"),
    "envelope": '<rect x="3" y="5" width="18" height="14" rx="1.5"/>' + _path("M3.5 6.5l8.5 7 8.5-7"),
    "pencil": _path("M4 20l1-5L16 4l4 4L9 19zM13.5 6.5l4 4"),
    "share": '<circle cx="18" cy="5" r="2.5"/><circle cx="6" cy="12" r="2.5"/><circle cx="18" cy="19" r="2.5"/>'
    + _path("M8.2 10.8l7.6-4.5M8.2 13.2l7.6 4.5"),
    "download": _path("M12 3.5v11.5M7 10.5l5 5 5-5M4 20h16"),
    "upload": _path("M12 16V4M7 9l5-5 5 5M4 20h16"),
    "padlock": '<rect x="5" y="11" width="14" height="9.5" rx="1.5"/>' + _path("M8 11V8a4 4 0 0 1 8 0v3"),
    "eye": _path("M2 12c3-5 6.5-7 10-7s7 2 10 7c-3 5-6.5 7-10 7s-7-2-10-7z") + '<circle cx="12" cy="12" r="3"/>',
    "calendar": '<rect x="4" y="5" width="16" height="15" rx="1.5"/>' + _path("M4 10h16M8 3v4M16 3v4"),
    "clock": _CIRCLE + _path("M12 7v5l3.5 2.5"),
    "camera": _path("M3 8h4.5L9 5h6l1.5 3H21v11.5H3z") + '<circle cx="12" cy="13.3" r="3.6"/>',
    "picture": '<rect x="3" y="4" width="18" height="16" rx="1.5"/><circle cx="8.5" cy="9" r="1.7"/>'
    + _path("M4 18l5-6 4 4.5 3-3 4.5 4.5"),
    "play": _path("M7 4l13 8-13 8z"),
    "pause": _path("M8.5 5v14M15.5 5v14"),
    "skip forward": _path("M5 5l10 7-10 7zM19 5v14"),
    "skip back": _path("M19 5L9 12l10 7zM5 5v14"),
    "loudspeaker": _SPEAKER + _path("M15.5 9a4 4 0 0 1 0 6M18 6.5a8 8 0 0 1 0 11"),
    "crossed-out loudspeaker": _SPEAKER + _path("M16 9.5l5 5M21 9.5l-5 5"),
    "shuffle": _path("M3 7h4l9 10h5M3 17h4l3-3.3M13 10.3L16 7h5M18 4l3 3-3 3M18 14l3 3-3 3"),
    "repeat": _path("M17 3l3 3-3 3M20 6H8a4 4 0 0 0-4 4v1.5M7 21l-3-3 3-3M4 18h12a4 4 0 0 0 4-4v-1.5"),
    "folder": _path("M3 5.5h6l2 3h10v11H3z"),
    "sheet of paper": _path("M6 3h8l4 4.5V21H6zM14 3v5h4"),
    "two sheets": '<rect x="8.5" y="8.5" width="12" height="12" rx="1.5"/>'
    + _path("M16 8.5V4.5a1 1 0 0 0-1-1H4.5a1 1 0 0 0-1 1V15a1 1 0 0 0 1 1h4"),
    "scissors": '<circle cx="6" cy="6" r="2.7"/><circle cx="6" cy="18" r="2.7"/>' + _path("M8.2 7.6L20 18M8.2 16.4L20 6"),
    "printer": _path("M7 9V3h10v6M7 17H3.5V9h17v8H17M7 14h10v7H7z"),
    "funnel": _path("M3 4.5h18l-7 8.5v7.5l-4-2.5V13z"),
    "two arrows": _path("M7 4v15M3.5 15.5L7 19l3.5-3.5M17 20V5M13.5 8.5L17 5l3.5 3.5"),
    "four squares": "".join(f'<rect x="{x}" y="{y}" width="7" height="7" rx="1"/>' for x in (4, 13) for y in (4, 13)),
    "list": _path("M9 6h12M9 12h12M9 18h12") + _dots((4.5, 6), (4.5, 12), (4.5, 18)),
    "three dots": _dots((5, 12), (12, 12), (19, 12)),
    "telephone": _path(
        "M6 3h3.5l1.8 5L9 9.7c1 2.4 2.9 4.3 5.3 5.3l1.7-2.3 5 1.8V18c0 1.7-1 3-2.7 3C10 20.5 3.5 14 3 5.7 3 4 4.3 3 6 3z"
    ),
    "video camera": '<rect x="2.5" y="6" width="13" height="12" rx="2"/>' + _path("M15.5 10.5l6-3.5v10l-6-3.5"),
    "microphone": '<rect x="9" y="3" width="6" height="11" rx="3"/>' + _path("M5 11a7 7 0 0 0 14 0M12 18v3.5"),
    "paper plane": _path("M3 11.5L21 3l-6.5 18-3.5-8zM11 13L21 3"),
    "paper clip": _path("M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.5 17a1.7 1.7 0 0 1-2.4-2.4L14 7.7"),
    "smiling face": _CIRCLE + _path("M8 14c1 2 2.4 3 4 3s3-1 4-3") + _dots((9, 9.5), (15, 9.5)),
    "bookmark": _path("M6 3h12v18l-6-5-6 5z"),
    "flag": _path("M5 21.5V4h14l-3.5 4.7 3.5 4.8H5"),
    "price tag": _path("M3 12V4h8l10 10-8 8z") + _dots((7.5, 8.5)),
    "trolley": _path("M2 4h3l3 11.5h10l3-8H6") + '<circle cx="9" cy="19.5" r="1.6"/><circle cx="17" cy="19.5" r="1.6"/>',
    "map pin": _path("M12 21.5c-4.8-5.5-7-9-7-12a7 7 0 0 1 14 0c0 3-2.2 6.5-7 12z") + '<circle cx="12" cy="9.5" r="2.5"/>',
    "globe": _CIRCLE + _path("M3 12h18M12 3c3 3 4 6 4 9s-1 6-4 9c-3-3-4-6-4-9s1-6 4-9"),
    "chain": _path("M10 14a4 4 0 0 0 6 0l3.5-3.5a4 4 0 0 0-6-6L12 6M14 10a4 4 0 0 0-6 0l-3.5 3.5a4 4 0 0 0 6 6L12 18"),
    "round arrow": _path("M20 12a8 8 0 1 1-2.6-5.9M20 3v5h-5"),
    "backward arrow": _path("M8 4.5l-4.5 4.5L8 13.5M4 9h10a5.7 5.7 0 0 1 0 11.5h-3"),
    "question mark": _CIRCLE + _path("M9 9.5a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.3") + _dots((12, 17.3)),
    "letter i": _CIRCLE + _path("M12 11v6.5") + _dots((12, 7.5)),
    "warning triangle": _path("M12 3.5L22 20.5H2zM12 10v5") + _dots((12, 17.7)),
    "radio waves": _path("M2.5 9.5c5.5-5 13.5-5 19 0M5.8 13c3.7-3.2 8.7-3.2 12.4 0M9 16.3c1.9-1.5 4.1-1.5 6 0")
    + _dots((12, 19.5)),
    "sun": '<circle cx="12" cy="12" r="4.2"/>' + _rays(),
    "moon": _path("M20 14.5A8.7 8.7 0 0 1 9.5 4a8.7 8.7 0 1 0 10.5 10.5z"),
    "power": _path("M12 3v8.5M7 5.8a8.5 8.5 0 1 0 10 0"),
    "bar chart": _path("M3.5 20.5h17M7 17v-5M12 17V5M17 17V9"),
    "key": '<circle cx="7.5" cy="15.5" r="4"/>' + _path("M10.5 12.5L20 3M16.5 6.5l3 3M14 9l2 2"),
    "box": _path("M3.5 7.5L12 3l8.5 4.5v9L12 21l-8.5-4.5zM3.5 7.5L12 12l8.5-4.5M12 12v9"),
    "musical note": '<circle cx="7" cy="18" r="3"/><circle cx="17" cy="16" r="3"/>' + _path("M10 18V6l10-2v12"),
    "card": '<rect x="2.5" y="5" width="19" height="14" rx="2"/>' + _path("M2.5 10h19M6 15h4"),
    "speech bubble": _path("M4 4.5h16v12H11l-5 4.5v-4.5H4z"),
    "bluetooth sign": _path("M7 7l10 10-5 4V3l5 4L7 17"),
    "battery": '<rect x="2" y="7.5" width="17" height="9" rx="2"/>' + _path("M22 10.5v3M5.5 10.5v3M9 10.5v3"),
}
"""Name -> drawing, in strokes of the text's colour."""


def svg(name: str, size: float = 1.25, weight: float = 2.0, filled: bool = False) -> str:
    """An icon as a picture in a page. size: in em. weight: of the strokes, of 24. filled: closed shapes are filled."""
    paint = "currentColor" if filled else "none"
    return (
        f'<svg class="i" viewBox="0 0 24 24" style="width:{size}em;height:{size}em" fill="{paint}" stroke="currentColor" '
        f'stroke-width="{weight}" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">{ICONS[name]}</svg>'
    )
