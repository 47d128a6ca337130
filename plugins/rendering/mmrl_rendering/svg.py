"""SVG of a model: parsed within limits, rewritten from allowed elements, and then rendered.

The renderer never gets the text of a completion. It gets elements and attributes of the lists below, which have no files, no
network, no entities, no scripts, no references to elements other than gradients, and no cost that grows faster than the text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from PIL import Image

MAX_CHARS = 20_000
"""Characters of a picture's code."""
MAX_ELEMENTS = 256
MAX_DEPTH = 16
MAX_ATTRIBUTES = 32
MAX_LAYERS = 32
"""Maximum of elements with an opacity or a gradient: each costs as much as a canvas."""
MAX_PATH = 4_000
"""Numbers in all paths and points together."""
MAX_NUMBER = 1e5
"""Maximal absolute value of a number."""
MAX_REACH = 2e5
"""Maximal pixels of a number after all transforms, and of transforms and relative steps together: the renderer's floats are too
coarse for curves that are further out, and it cuts them into millions of pieces."""
MAX_CURVES = 4e6
"""Maximal pixels of the numbers of all paths and radii together: the outline of one arc of 100,000 pixels takes milliseconds. The
maximum of numbers, all inside the largest picture, stays below it."""
MAX_SIDE = 1024
"""Maximal pixels of the longer side of a rendering."""
NAMESPACE = "http://www.w3.org/2000/svg"
SHAPES = frozenset({"path", "rect", "circle", "ellipse", "line", "polyline", "polygon"})
ELEMENTS = SHAPES | {"svg", "g", "defs", "linearGradient", "radialGradient", "stop", "title", "desc"}
SILENT = frozenset({"title", "desc"})
"""Elements that are allowed but not rendered."""
PATHS = frozenset({"d", "points"})
CURVES = frozenset({"d", "r", "rx", "ry"})
PAINT = frozenset({"fill", "stroke", "stop-color", "color"})
# others, such as class and viewBox, are left out; dashes can be millions on one line
ATTRIBUTES = frozenset(
    """d points fill stroke stop-color color x y width height rx ry cx cy r x1 y1 x2 y2 fx fy fill-rule fill-opacity
    stroke-width stroke-opacity stroke-linecap stroke-linejoin stroke-miterlimit opacity transform offset stop-opacity
    gradientUnits gradientTransform spreadMethod id href""".split()  # noqa: SIM905  a list would fill a page
)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_PAINT = re.compile(r"[\w#%.,()\s-]{1,80}|url\(\s*[\"']?#[\w-]{1,64}[\"']?\s*\)(?:\s+[\w#]{1,32})?")
_TRANSFORM = re.compile(r"(matrix|translate|scale|rotate|skewX|skewY)\s*\(([^()]*)\)[\s,]*")
_ID = re.compile(r"#[\w-]{1,64}")
_RELATIVE = re.compile(r"[mlhvcsqta]([^a-df-zA-DF-Z]*)")
"""A step of a path in small letters, which is relative to the end of the last one; an e belongs to a number."""
_NAME = re.compile(r"[\w-]{1,64}")


class Refused(ValueError):
    """The code is not a picture that will be rendered; the message gives the reason in one line."""


def find(completion: str) -> str:
    """The one `<svg ...>...</svg>` of a completion, after its thinking. Raises Refused."""
    text = completion.rpartition("</think>")[2]
    if len(text) > 4 * MAX_CHARS:
        raise Refused(f"longer than {4 * MAX_CHARS:,} characters")
    if text.count("<svg") != 1 or text.count("</svg>") != 1:
        raise Refused(f"{text.count('<svg')} opening and {text.count('</svg>')} closing svg tags")
    start, end = text.index("<svg"), text.index("</svg>") + len("</svg>")
    if end <= start or text.count("<think>"):
        raise Refused("no svg element after the thinking")
    return text[start:end]


def clean(code: str, size: tuple[int, int] | None = None) -> str:
    """The same picture, rewritten from allowed elements and attributes, with `size` pixels (by default its own size).

    Raises Refused for everything else.
    """
    if len(code) > MAX_CHARS:
        raise Refused(f"the code is longer than {MAX_CHARS:,} characters")
    bare = re.sub(r"<!--(?:[^-]|-(?!-)){0,20000}-->", "", code)
    for sign, what in (("<!", "a DOCTYPE, an entity or a broken comment"), ("<?", "a processing instruction"), ("\0", "NUL")):
        if sign in bare:
            raise Refused(f"the code has {what}")
    reader = _Reader(size)
    parser = expat.ParserCreate(namespace_separator="|")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    try:
        parser.Parse(bare.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise Refused(f"no XML: {expat.ErrorString(error.code)}, line {error.lineno}") from None
    if not reader.shapes:
        raise Refused("nothing is drawn")
    return "".join(reader.out)


def render(code: str, size: tuple[int, int] | None = None) -> Image.Image:
    """The rendering of SVG code, RGB on white. size: (width, height) in pixels, by default its own. Raises Refused."""
    import resvg_py

    try:
        png = resvg_py.svg_to_bytes(svg_string=clean(code, size), skip_system_fonts=True, background="#ffffff")
    except Refused:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  any error of the renderer; its panics are not Exceptions
        raise Refused(f"it does not render: {' '.join(str(error).split())[:120]}") from None
    with Image.open(io.BytesIO(png)) as picture:
        return picture.convert("RGB")


class _Reader:
    """Takes elements as they are parsed, and writes those that are allowed."""

    def __init__(self, size: tuple[int, int] | None) -> None:
        self.size, self.out = size, list[str]()
        self.elements = self.depth = self.numbers = self.shapes = self.layers = 0
        self.curves = 0.0
        self.zooms = [1.0]
        """Pixels of a unit, at each level."""
        self.ways = [0.0]
        """How many pixels the transforms have led away, at each level."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        space, _, local = name.rpartition("|")
        self.elements, self.depth = self.elements + 1, self.depth + 1
        if self.elements > MAX_ELEMENTS or self.depth > MAX_DEPTH or len(attributes) > MAX_ATTRIBUTES:
            raise Refused(f"more than {MAX_ELEMENTS} elements, {MAX_DEPTH} levels or {MAX_ATTRIBUTES} attributes of an element")
        if local not in ELEMENTS or space not in ("", NAMESPACE) or (local == "svg") != (self.depth == 1):
            raise Refused(f"the element {local[:40]!r} is not drawn here")
        self.shapes += local in SHAPES
        if local in SILENT:
            return
        self.out.append(f"<{local}{self._root(attributes) if local == 'svg' else ''}")
        flat = _flat(attributes)
        gradients = sum("url" in flat.get(key, "") for key in PAINT)
        if gradients and local not in SHAPES:
            raise Refused("a gradient paints shapes here, not groups of them")
        self.layers += gradients + (flat.get("opacity", "1") != "1")
        if self.layers > MAX_LAYERS:
            raise Refused(f"more than {MAX_LAYERS} elements with a gradient or an opacity")
        transform = flat.get("transform", "")
        self.ways.append(self.ways[-1] + self.zooms[-1] * sum(map(_size, _NUMBER.findall(transform))))
        self.zooms.append(self.zooms[-1] * _zoom(transform))
        for key, value in flat.items():
            if key.lower().startswith("on"):
                raise Refused(f"the attribute {key[:40]!r} is a script")
            if key not in ATTRIBUTES or (local == "svg" and key in ("width", "height", "x", "y")):
                continue
            self.out.append(f" {key}={quoteattr(self._checked(key, value))}")
        self.out.append(">")

    def end(self, name: str) -> None:
        self.depth -= 1
        local = name.rpartition("|")[2]
        if local not in SILENT:
            self.zooms.pop()
            self.ways.pop()
            self.out.append(f"</{local}>")

    def _checked(self, key: str, value: str) -> str:
        if key == "id":
            if not _NAME.fullmatch(value):
                raise Refused("an id is letters, digits, _ and -")
            return value
        if key == "href" and not _ID.fullmatch(value):
            raise Refused("a reference leads out of the picture")
        if key in PAINT and not (_PAINT.fullmatch(value) and ("url" not in value.lower() or "#" in value)):
            raise Refused(f"{value[:40]!r} is no paint: a colour or url(#id)")
        if "(" in value and key not in PAINT | {"transform", "gradientTransform"}:
            raise Refused(f"the attribute {key!r} holds a function")
        if key not in PAINT | {"href"}:
            self._count(key, value, self.zooms[-2 if key == "transform" else -1])
        return value

    def _count(self, key: str, value: str, zoom: float) -> None:
        found = [_size(n) for n in _NUMBER.findall(value)]
        self.numbers += len(found) if key in PATHS else 0
        if self.numbers > MAX_PATH:
            raise Refused(f"more than {MAX_PATH:,} numbers in paths")
        most = max(found, default=0.0)
        if most > MAX_NUMBER or most * zoom > MAX_REACH:
            raise Refused(f"a number beyond {MAX_NUMBER:,.0f}, or {MAX_REACH:,.0f} pixels")
        steps = " ".join(_RELATIVE.findall(value)) if key == "d" else ""
        if self.ways[-1] + sum(map(_size, _NUMBER.findall(steps))) * zoom > MAX_REACH:
            raise Refused(f"transforms and relative steps lead further than {MAX_REACH:,.0f} pixels")
        self.curves += sum(found) * zoom if key in CURVES else 0.0
        if self.curves > MAX_CURVES:
            raise Refused(f"paths and radii of more than {MAX_CURVES:,.0f} pixels together")

    def _root(self, attributes: Mapping[str, str]) -> str:
        box = [float(n) for n in _NUMBER.findall(attributes.get("viewBox", ""))]
        own = [_length(attributes.get(side)) for side in ("width", "height")]
        if len(box) != 4:
            box = [0.0, 0.0, own[0] or (self.size or (100, 100))[0], own[1] or (self.size or (100, 100))[1]]
        if not all(math.isfinite(v) and abs(v) <= MAX_NUMBER for v in box) or box[2] <= 0 or box[3] <= 0:
            raise Refused("the viewBox is empty or too large")
        width, height = self.size or (own[0] or box[2], own[1] or box[3])
        if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
            raise Refused(f"a picture of {width:g} x {height:g} pixels: {MAX_SIDE} is the most")
        self.zooms[-1] = max(width, height) / min(box[2], box[3])
        self.ways[-1] = max(map(abs, box[:2])) * self.zooms[-1]
        if self.ways[-1] > MAX_REACH:
            raise Refused(f"the viewBox begins further out than {MAX_REACH:,.0f} pixels")
        shown = " ".join(f"{v:g}" for v in box)
        return f' xmlns="{NAMESPACE}" width="{round(width)}" height="{round(height)}" viewBox="{shown}"'


def _size(number: str) -> float:
    return abs(float(number))


def _zoom(text: str) -> float:
    """The maximal enlargement of a list of transforms. Raises Refused for an invalid one."""
    zoom, at = 1.0, 0
    text = text.strip()
    while at < len(text):
        match = _TRANSFORM.match(text, at)
        numbers = [float(n) for n in _NUMBER.findall(match[2])] if match else []
        if not match or not numbers:
            raise Refused("the transform is no list of matrix, translate, scale, rotate, skewX and skewY")
        at = match.end()
        if match[1] == "scale":
            zoom *= max(map(abs, numbers))
        elif match[1] == "matrix":
            zoom *= sum(map(abs, numbers[:4]))
        elif match[1].startswith("skew"):
            if abs(numbers[0]) > 80:
                raise Refused("a skew of more than 80 degrees")
            zoom *= 1 + math.tan(math.radians(abs(numbers[0])))
    return zoom


def _length(text: str | None) -> float:
    """Pixels of `12`, `12px`; 0 for percentages and all else."""
    match = _NUMBER.match(text or "")
    if not match or (text or "")[match.end() :].strip() not in ("", "px"):
        return 0.0
    return float(match[0]) if abs(float(match[0])) <= MAX_NUMBER else 0.0


def _flat(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes by their local names, with the declarations of `style` as attributes."""
    flat: dict[str, str] = {}
    for name, value in attributes.items():
        key = name.rpartition("|")[2]
        if key != "style":
            flat[key] = value
    for part in attributes.get("style", "").split(";"):
        key, colon, value = part.partition(":")
        if colon:
            flat[key.strip()] = value.strip()
        elif part.strip():
            raise Refused("the style is no list of declarations")
    return flat
