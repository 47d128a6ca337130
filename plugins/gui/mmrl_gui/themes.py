"""The look of a page: colours, fonts, corners, density; and its style sheet. All are drawn from a seed, none is fetched."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from importlib.resources import files

THEMES = ("light", "dark")
FONTS = (
    "'Liberation Sans',Arial,sans-serif",
    "'DejaVu Sans',Verdana,sans-serif",
    "'Liberation Serif','Times New Roman',serif",
    "'DejaVu Serif',Georgia,serif",
    "'Liberation Sans Narrow','Arial Narrow',sans-serif",
    "'Liberation Mono','Courier New',monospace",
)
"""Common fonts, the first most often, as in practice; a machine without them uses its own."""
_SHARES = (10, 5, 2, 2, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The look of one page."""

    theme: str
    """light or dark."""
    width: int
    """Pixels of the screen."""
    height: int
    """Pixels of the screen."""
    hue: int
    """Hue of accents, in degrees."""
    vivid: int
    """Saturation of accents, percent."""
    tint: int
    """Saturation of grounds and borders, percent."""
    font: str
    text: int
    """Font size in pixels."""
    radius: int
    """Radius of corners in pixels."""
    space: int
    """Smallest gap in pixels; others are multiples."""
    weight: float
    """Width of an icon's strokes, of 24 units."""
    filled: bool
    """Main buttons are filled instead of outlined."""
    lined: bool
    """Elements are separated by lines instead of backgrounds."""
    shadow: bool
    capitals: bool
    """Text of buttons is in capitals."""

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def narrow(self) -> bool:
        """Whether it is a telephone's screen: one column."""
        return self.width < 600

    @property
    def tiny(self) -> bool:
        """Whether it is a screen for tiny models, with few elements."""
        return self.width < 260


def draw_look(draw: random.Random, size: tuple[int, int], theme: str, level: str) -> Look:
    """A random look. theme: of `THEMES`. level: easy pages have larger text."""
    width, height = size
    base = 11 if width < 260 else 15
    larger = {"easy": (1, 3), "middle": (-1, 2), "hard": (-2, 1)}[level]
    text = base + draw.randint(*larger) if width >= 260 else base + draw.randint(0, 1)
    return Look(
        theme=theme,
        width=width,
        height=height,
        hue=draw.choice((draw.randrange(360), draw.randrange(195, 265))),
        vivid=draw.randint(45, 90),
        tint=draw.choice((0, 8, 16)),
        font=draw.choices(FONTS, _SHARES)[0],
        text=text,
        radius=draw.choice((0, 3, 6, 10, 16)),
        space=draw.choice((2, 3)) if width < 260 else max(3, round(text * draw.choice((0.3, 0.4, 0.5)))),
        weight=draw.choice((1.5, 1.8, 2.1, 2.5)),
        filled=draw.random() < 0.75,
        lined=draw.random() < 0.5,
        shadow=draw.random() < 0.5,
        capitals=draw.random() < 0.1,
    )


def style(look: Look) -> str:
    """The style sheet of a page."""
    sizes = f"--f:{look.font};--t:{look.text}px;--r:{look.radius}px;--s:{look.space}px;"
    return f":root{{{_colours(look)}{sizes}}}{_rules()}{_own(look)}"


def _colours(look: Look) -> str:
    h, v, t = look.hue, look.vivid, look.tint
    if look.theme == "dark":
        light = 66 if 20 < h < 200 else 74  # yellows and greens look lighter than blues
        named = {
            "bg": f"hsl({h} {t}% 9%)", "sf": f"hsl({h} {t}% 14%)", "s2": f"hsl({h} {t}% 20%)", "ln": f"hsl({h} {t}% 27%)",
            "fg": f"hsl({h} {t}% 93%)", "mu": f"hsl({h} {t}% 66%)", "ac": f"hsl({h} {v}% {light}%)", "on": f"hsl({h} {t}% 8%)",
            "so": f"hsl({h} {v // 2}% 25%)", "sh": "0 2px 8px rgb(0 0 0/.5)",
        }  # fmt: skip
    else:
        light = 30 if 40 < h < 200 else 42
        named = {
            "bg": f"hsl({h} {t}% 96%)", "sf": "#fff", "s2": f"hsl({h} {t}% 91%)", "ln": f"hsl({h} {t}% 82%)",
            "fg": f"hsl({h} {t}% 13%)", "mu": f"hsl({h} {t}% 40%)", "ac": f"hsl({h} {v}% {light}%)", "on": "#fff",
            "so": f"hsl({h} {v}% 91%)", "sh": "0 1px 4px rgb(0 0 0/.22)",
        }  # fmt: skip
    return "".join(f"--{name}:{value};" for name, value in named.items())


def _own(look: Look) -> str:
    rules = [f".i{{stroke-width:{look.weight}}}"]
    if look.capitals:
        rules.append(".b{text-transform:uppercase;letter-spacing:.04em;font-size:.88em}")
    if not look.filled:
        rules.append(".b.main{background:transparent;color:var(--ac);border-color:var(--ac)}")
    if look.lined:
        rules.append(".card,.row,.side,.panel{border-color:var(--ln)}.row{border-radius:0;border-width:0 0 1px}")
    if look.shadow:
        rules.append(".card,.top,.panel{box-shadow:var(--sh)}")
    return "".join(rules)


@functools.cache
def _rules() -> str:
    """Rules of all pages."""
    return files("mmrl_gui").joinpath("page.css").read_text(encoding="utf-8")
