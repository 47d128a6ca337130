"""The published files of grounding benchmarks: by which keys a row is known, and what its keys mean.

From the code of each: SeeClick's pretrain/screenspot_test.py; ScreenSpot-Pro-GUI-Grounding's eval_screenspot_pro.py; UI-Vision's
eval/grounding/eval_uivision.py and mapdict_cat2platform.json; MMBench-GUI's benchmarks/l2_element_grounding.py; OSWorld-G's
benchmark/OSWorld-G.json, and the classification_result.json beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import display_path, shorten
from mmrl.api.tasks.tables import read_json

POLYGON, REFUSAL = "polygon", "refusal"
"""Forms of a box beside `sources.FORMS`: a polygon's corners, x1, y1, x2, y2, ...; none, as what is asked for isn't there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The rows of one benchmark."""

    name: str
    keys: frozenset[str]
    """A row with all of these is one of it."""
    form: str
    """The format of its boxes, of `sources.FORMS`; boxes whose numbers all lie between 0 and 1 are in shares of the picture
    where `may_be_unit`."""
    box: str = "bbox"
    may_be_unit: bool = False
    raw_platform: bool = False
    """The platform is reported as it is written, and not as mobile, desktop or web."""
    in_folders: bool = False
    """Pictures are in a folder for each platform."""
    may_be_gone: bool = False
    """What is asked for may not be on the screen."""


def _layout(name: str, keys: str, form: str, **more: Any) -> Layout:
    return Layout(name=name, keys=frozenset(keys.split()), form=form, **more)


LAYOUTS = (
    _layout("MMBench-GUI L2", "bbox grounding_type", "xyxy", may_be_unit=True, raw_platform=True, in_folders=True),
    _layout("OSWorld-G", "box_coordinates box_type", "xywh", box="box_coordinates", may_be_gone=True),
    _layout("UI-Vision", "bbox prompt_to_evaluate", "xyxy", raw_platform=True),
    *(_layout("ScreenSpot-Pro", f"bbox {key}", "xyxy") for key in ("ui_type", "application", "img_size")),
    _layout("ScreenSpot", "bbox data_type", "xywh"),
)
"""In this order, since later ones have fewer keys."""
LEVELS = ("basic", "functional", "spatial")
"""The parts of UI-Vision, by which its files are named."""
_CATEGORIES = {
    "Education": "Anki|Zotero|GrassGIS|Calibre|Audacity|QGIS|OpenBoard|Mendeley",
    "Browsers": "Brave|Chromium|Mozilla Firefox|DuckDuckGo",
    "Development": "VSCode|Atom|FreeCAD|Eclipse|NetBeans|PyCharm|IntelliJ IDEA|Brackets|Geany|Bluefish|KDevelop|Komodo Edit|"
    "Code::Blocks|Qt Creator|Arduino IDE|Spyder|Ubuntu Terminal|Conky|Bash|gedit",
    "Productivity": "LibreOffice Calc|LibreOffice Draw|LibreOffice Impress|LibreOffice Writer|draw.io|Joplin|OpenProject|Affine|"
    "Zulip|PDFedit|OnlyOffice Calendar|OnlyOffice Document Editor|OnlyOffice Forms|OnlyOffice PDF Forms|"
    "OnlyOffice Presentation|OnlyOffice Spreadsheet|Nextcloud|Gnumeric|Simplenote|Cryptomator|WeKan|7-Zip|GnuCash|Bitwarden|"
    "Metabase|Jitsi|Flameshot|Nemo",
    "Creativity": "Blender|GIMP|Inkscape|Krita|darktable|FontForge|MuseScore|Scribus|OpenShot|OBS Studio|Lightworks|Shotcut|"
    "Natron|OpenToonz|WordPress",
    "Entertainment": "VLC Media Player|Kodi|Element|Signal|Mastodon|Lemmy|Matrix|Emby",
}
_GROUP_OF = {name.lower(): group for group, names in _CATEGORIES.items() for name in names.split("|")}


def layout_of(row: Mapping[str, Any]) -> Layout | None:
    """The benchmark of a row; None for another table."""
    there = {key for key, value in row.items() if value is not None}  # a table of several benchmarks has the columns of all
    return next((layout for layout in LAYOUTS if layout.keys <= there), None)


def box_form(layout: Layout, row: Mapping[str, Any], box: Any) -> tuple[Any, str]:
    """(the box, its format) of a row, as the benchmark's code reads them: -1 of MMBench-GUI is the edge, corners of UI-Vision may
    stand in any order. Raises ValueError for an unknown form."""
    if layout.name == "OSWorld-G":
        form = {"bbox": layout.form, POLYGON: POLYGON, REFUSAL: REFUSAL}.get(str(row["box_type"]))
        if form is None:
            raise ValueError(f"its box_type is {row['box_type']!r:.40} and not bbox, polygon or refusal")
        return box, form
    if isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box):
        if layout.name == "UI-Vision":
            return [*map(min, box[:2], box[2:]), *map(max, box[:2], box[2:])], layout.form
        if layout.may_be_unit:
            box = [0 if v == -1 else v for v in box]
            return box, "unit" if all(0 <= v <= 1 for v in box) else layout.form
    return box, layout.form


def level_of(layout: Layout | None, row: Mapping[str, Any], file: str) -> str:
    """The part of the benchmark to which a row belongs; empty without parts."""
    if layout is None or layout.name not in ("MMBench-GUI L2", "UI-Vision"):
        return ""
    return str(row.get("grounding_type") or next((level for level in LEVELS if Path(file).stem.endswith(level)), ""))


def group_of(layout: Layout | None, row: Mapping[str, Any]) -> str:
    """The group of a row: ScreenSpot-Pro's, or the category of UI-Vision's application; empty without one."""
    if layout is not None and layout.name == "UI-Vision":
        return str(row.get("category") or _GROUP_OF.get(str(row.get("platform")).lower(), ""))
    return str(row.get("group") or "")


def labels_of(layout: Layout | None, row: Mapping[str, Any], file: str) -> Sequence[str]:
    """The categories of a row of OSWorld-G, of which it may have several; empty without the file that says them."""
    if layout is None or layout.name != "OSWorld-G":
        return ()
    return _classified(str(Path(file).expanduser().parent / "classification_result.json")).get(str(row.get("id")), ())


@cache
def _classified(file: str) -> Mapping[str, Sequence[str]]:
    if not Path(file).is_file():
        return {}
    found: dict[str, list[str]] = {}
    try:
        for label, items in read_json(Path(file))["classified"].items():
            for item in items:
                found.setdefault(str(item["id"]), []).append(str(label))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise UserError(f"{display_path(file)} is none of OSWorld-G ({shorten(error, 80)}): correct or remove it") from error
    return found
