"""Elements on recorded screens: ScreenSpot, its version 2 and its Pro, GUI-G1's data, your own tables.

Every source is read as rows of one form, so that tasks need not know the formats. An unusable row raises when it is read, and the
message names its file and line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl import UserError
from mmrl.api.tasks.tables import DataTable, resolve_image
from mmrl_gui.geometry import is_number
from mmrl_gui.tables import Table, first, parsed, picture_key, text_of

IMAGE_KEYS = ("img_filename", "image", "image_path", "img", "file_name", "screenshot")
TEXT_KEYS = ("instruction", "problem", "expression", "text", "question")
BOX_KEYS = ("bbox_2d", "bbox", "solution", "box")
FORMS = ("xyxy", "xywh", "unit")
"""Formats of boxes: two corners; a corner and the size; two corners as shares of the picture."""
_PRO_KEYS = ("ui_type", "application", "img_size")
_SOURCES = {"ios": "mobile", "android": "mobile", "windows": "desktop", "macos": "desktop", "linux": "desktop"}
_WEB = ("web", "tool", "shop", "gitlab", "forum")
_PREFIXES = {"mobile": "mobile", "pc": "desktop", "desktop": "desktop", "web": "web"}
"""Prefixes of the names of ScreenSpot's pictures -> platform."""


@dataclass(frozen=True)
class Elements(DataTable):
    """The rows of several tables."""

    tables: tuple[Table, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    """(table, row) of each row."""
    keys: tuple[str, ...] = ()
    """Decides a row's split: its picture, so that none is in two splits."""

    def location(self, index: int) -> str:
        table, row = self.places[index]
        return self.tables[table].rows.location(row)


def elements(tables: list[Table], boxes: str | None) -> Elements:
    """Rows `{"id", "image", "instruction", "box", "form", "platform", "type", "group", "rate"}`. boxes: of `FORMS`; by default
    the convention of the key, see `_form`."""
    places = [(t, row) for t, table in enumerate(tables) for row in range(len(table.rows))]
    keys = [_key(tables[t].rows, row) for t, row in places]

    def read(index: int) -> dict[str, Any]:
        t, row = places[index]
        return {"id": f"{t}-{row}", **_plain(tables[t].rows[row], tables[t], boxes)}

    name = ":".join(table.path for table in tables)
    return Elements(name, len(places), read, tables=tuple(tables), places=tuple(places), keys=tuple(keys))


def _key(rows: DataTable, row: int) -> str:
    """The picture of a row, see `picture_key`; for an unreadable row, which raises when it is used, its location."""
    try:
        image = first(rows[row], IMAGE_KEYS)
    except UserError:
        image = None
    return picture_key(image) or f"{rows.name} {row}"


def _plain(row: Mapping[str, Any], table: Table, boxes: str | None) -> dict[str, Any]:
    image = first(row, IMAGE_KEYS)
    if image is None:
        raise ValueError(f"it has no picture under any of {', '.join(IMAGE_KEYS)}")
    words = text_of(row, TEXT_KEYS)
    if not words:
        raise ValueError(f"it has no instruction under any of {', '.join(TEXT_KEYS)}")
    key = next((k for k in BOX_KEYS if row.get(k) is not None), None)
    if key is None:
        raise ValueError(f"there is no box under any of {', '.join(BOX_KEYS)}")
    kind = str(row.get("ui_type") or row.get("data_type") or "")
    return {
        "image": resolve_image(table.path, image, table.folder),
        "instruction": words,
        "box": (box := parsed(row[key])),
        "form": boxes or _form(row, key, box),
        "platform": _platform(row, image),
        "type": kind if kind in ("text", "icon") else "",
        "group": str(row.get("group") or ""),
        "rate": row.get("rate"),
    }


def _form(row: Mapping[str, Any], key: str, box: Any) -> str:
    """The format of a box: ScreenSpot and its version 2 have a corner and the size, the Pro and all keys other than bbox two
    corners."""
    if isinstance(box, list) and box and all(is_number(v) and 0 <= v <= 1 for v in box):
        raise ValueError(f'its {key} is {box!r:.80}, less than a pixel: set boxes = "unit" if it is in shares of the picture')
    if key != "bbox" or any(k in row for k in _PRO_KEYS):
        return "xyxy"
    if "data_type" in row:
        return "xywh"
    raise ValueError(
        'its bbox may be two corners or a corner and the size: set boxes = "xyxy" or "xywh", or "unit" for shares of the picture'
    )


def _platform(row: Mapping[str, Any], image: Any) -> str:
    """mobile, desktop or web; empty if unknown."""
    for key in ("platform", "data_source"):
        name = str(row.get(key) or "").lower()
        if name:
            return _SOURCES.get(name, "web" if name in _WEB else name[:40])
    prefix = image.rpartition("/")[2].partition("_")[0].lower() if isinstance(image, str) else ""
    return _PREFIXES.get(prefix, "")


def corners(box: Any, form: str, size: tuple[int, int]) -> Any:
    """A box as two corners in pixels; an invalid one unchanged, for the check to refuse."""
    try:
        a, b, c, d = box if isinstance(box, list | tuple) else [box]
        if form == "xywh":
            return [a, b, a + c, b + d]
        return [a * size[0], b * size[1], c * size[0], d * size[1]] if form == "unit" else [a, b, c, d]
    except (TypeError, ValueError):
        return box
