"""Elements on recorded screens: the published benchmarks of `layouts`, GUI-G1's data, your own tables.

Every source is read as rows of one form, so that tasks need not know the formats. An unusable row raises when it is read, and the
message names its file and line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.tasks.tables import DataTable, resolve_image
from mmrl_gui.geometry import is_number
from mmrl_gui.layouts import POLYGON, REFUSAL, Layout, box_form, group_of, labels_of, layout_of, level_of
from mmrl_gui.tables import Table, first, parsed, picture_key, text_of

IMAGE_KEYS = ("img_filename", "image", "image_path", "img", "file_name", "screenshot")
TEXT_KEYS = ("instruction", "prompt_to_evaluate", "problem", "expression", "text", "question")
BOX_KEYS = ("bbox_2d", "bbox", "solution", "box")
FORMS = ("xyxy", "xywh", "unit")
"""Formats of boxes: two corners; a corner and the size; two corners as shares of the picture."""
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
    """Rows `{"id", "image", "instruction", "box", "form", "platform", "type", "group", "level", "labels", "rate"}`, and `exact`
    for those of a known benchmark, `may_be_gone` as in `Layout`. boxes: of `FORMS`; by default the convention of the benchmark,
    or of the key, see `_form`."""
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
    layout = layout_of(row)
    image = _picture(row)
    if image is None:
        raise ValueError(f"it has no picture under any of {', '.join(IMAGE_KEYS)}")
    words = text_of(row, TEXT_KEYS)
    if not words:
        raise ValueError(f"it has no instruction under any of {', '.join(TEXT_KEYS)}")
    key = layout.box if layout else next((k for k in BOX_KEYS if row.get(k) is not None), None)
    if key is None or row.get(key) is None:
        raise ValueError(f"there is no box under any of {', '.join(BOX_KEYS)}")
    box, form = _boxed(layout, row, key, boxes)
    kind = str(row.get("ui_type") or row.get("data_type") or "")
    return {
        "image": _path(table, layout, row, image),
        "instruction": words,
        "box": box,
        "form": form,
        "exact": layout is not None,
        "may_be_gone": layout is not None and layout.may_be_gone,
        "platform": str(row.get("platform") or "")[:40] if layout and layout.raw_platform else _platform(row, image),
        "type": kind if kind in ("text", "icon") else "",
        "group": group_of(layout, row),
        "level": level_of(layout, row, table.path),
        "labels": labels_of(layout, row, table.path),
        "rate": row.get("rate"),
    }


def _picture(row: Mapping[str, Any]) -> Any:
    """A row's picture: one that is in the table, as in data sets on the Hub, which have its name beside it; else its path."""
    found = [row[key] for key in IMAGE_KEYS if row.get(key) not in (None, "")]
    return next((image for image in found if not isinstance(image, str)), found[0] if found else None)


def _path(table: Table, layout: Layout | None, row: Mapping[str, Any], image: Any) -> Any:
    if layout and layout.in_folders and isinstance(image, str):
        nested = resolve_image(table.path, f"{row.get('platform')}/{image}", table.folder)
        if Path(nested).is_file():
            return nested
    return resolve_image(table.path, image, table.folder)


def _boxed(layout: Layout | None, row: Mapping[str, Any], key: str, boxes: str | None) -> tuple[Any, str]:
    """(a row's box, its format): the benchmark's, or that of the key. boxes: the format that the user names."""
    box = parsed(row[key])
    found, form = box_form(layout, row, box) if layout else (box, "")
    if boxes and form not in (POLYGON, REFUSAL):
        return box, boxes
    return (found, form) if form and not _below_a_pixel(found, form) else (box, _form(key, box))


def _below_a_pixel(box: Any, form: str) -> bool:
    numbers = box if form in FORMS and form != "unit" and isinstance(box, list) else []
    return bool(numbers) and all(is_number(v) and 0 <= v <= 1 for v in numbers)


def _form(key: str, box: Any) -> str:
    """The format of a box in another table: two corners under all keys but bbox, which may be anything."""
    if _below_a_pixel(box, "xyxy"):
        raise ValueError(f'its {key} is {box!r:.80}, less than a pixel: set boxes = "unit" if it is in shares of the picture')
    if key != "bbox":
        return "xyxy"
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
