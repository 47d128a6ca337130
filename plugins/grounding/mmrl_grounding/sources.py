"""Your own pictures with boxes: JSONL as for VLM-R1 and ms-swift, tables as for RefCOCO, COCO's detection JSON.

Every source is read as rows of one form (a picture, the question, its objects), so that tasks need not know the formats. An
unusable row raises when it is read, and the message names its file and line, or its annotation.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import shorten
from mmrl.api.tasks.tables import DataTable, read_json, read_table, resolve_image
from mmrl.api.verifiers.parse import only_json, parse_numbers

IMAGE_KEYS = ("image", "image_path", "img", "file_name", "images")
TEXT_KEYS = ("expression", "expressions", "sentences", "sentence", "phrase", "text", "caption", "sent", "refs", "answer")
BOX_KEYS = ("bbox_2d", "bbox", "box", "solution")
COUNT_KEYS = ("count", "number")
OBJECT_KEYS = ("objects", "annotations", "boxes")
NAME = "<ref-object>"
PLACES = re.compile(f"{NAME}|<bbox>")
"""Places of ms-swift for a name and for a box."""
XYXY_KEYS = ("bbox_2d", "solution")
"""Keys whose boxes are x1, y1, x2, y2 by convention; the others are x, y, width, height, as in COCO and RefCOCO."""


@dataclass(frozen=True)
class Chosen(DataTable):
    """Some rows of several tables, each with one of its expressions."""

    tables: tuple[DataTable, ...] = ()
    places: Sequence[int] = ()
    """Table, row and expression of each row, one after the other."""
    splits: Mapping[str, array[int]] = field(default_factory=dict)
    """Split -> numbers of its rows."""

    def location(self, index: int) -> str:
        return self.tables[self.places[3 * index]].location(self.places[3 * index + 1])


def source(path: str, images: str | None, box_format: str | None, split_of: Callable[[str], str]) -> Chosen:
    """The rows of one file, or of several joined by ':'; `images` is then one folder for each of them, or one for all.

    split_of: the split of a picture, by its path as the row gives it, or by a hash of its bytes, so that no picture is in two
    splits.

    A row is `{"id", "image", "question", "expression", "objects", "count"}`; objects are `{"bbox_2d": [x1, y1, x2, y2],
    "label"}`, unchecked; count is the number of objects, if the row gives it. box_format: xywh or xyxy; by default the convention
    of the key. Raises UserError if a file is missing or has another format.
    """
    paths = [str(path)] if _exists(str(path)) else [p for p in str(path).split(":") if p]
    for one in paths:
        _exists(one)
    folders = str(images).split(":") if images else [None]
    if not paths or len(folders) not in (1, len(paths)):
        raise UserError(f"path names {len(paths)} files and images {len(folders)} folders: give one folder for each file, or one")
    folders = folders * len(paths) if len(folders) == 1 else folders
    tables = tuple(_table(p) for p in paths)
    places = array("Q")  # 24 bytes a row
    splits: dict[str, array[int]] = {}
    for t, table in enumerate(tables):
        for row, (key, expressions) in enumerate(map(_outline, table.scan((*IMAGE_KEYS, *TEXT_KEYS)))):
            numbers = splits.setdefault(split_of(key or f"{Path(paths[t]).name} {row}"), array("Q"))
            for expression in range(expressions):
                numbers.append(len(places) // 3)
                places.extend((t, row, expression))

    def read(index: int) -> dict[str, Any]:
        table, row, expression = places[3 * index : 3 * index + 3]
        plain = _plain(tables[table][row], expression, paths[table], folders[table], box_format)
        return {"id": f"{table}-{row}-{expression}", **plain}

    return Chosen(str(path), len(places) // 3, read, tables=tables, places=places, splits=splits)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, a NUL, an unknown user's home
        raise UserError(f"path {path!r:.80} can't be looked up: {shorten(error, 60)}: check the path") from None


def checked(objects: Sequence[Mapping[str, Any]], size: tuple[int, int], whole: bool) -> list[dict[str, Any]]:
    """Objects whose boxes are valid on a picture of `size`, clipped to its edges if they exceed them by a pixel at most.

    whole: round the corners to whole pixels, except for a box that would lose its area. Raises ValueError for the first invalid
    box.
    """
    return [{"bbox_2d": _sound(one, size, whole), "label": str(one.get("label", ""))} for one in objects]


def _sound(one: Mapping[str, Any], size: tuple[int, int], whole: bool) -> list[float]:
    try:
        return _clipped(one["bbox_2d"], size, whole, _named(one))
    except ValueError as error:
        if "key" not in one:
            raise
        raise ValueError(
            f'{error}; {one["key"]} was read as a corner and the size, and boxes = "xyxy" reads two corners'
        ) from None


def _clipped(box: Any, size: tuple[int, int], whole: bool, name: str) -> list[float]:
    if not isinstance(box, Sequence) or isinstance(box, str) or len(box) != 4:
        raise ValueError(f"{name} is {box!r:.60} and not four numbers")
    if not all(map(_finite, box)):
        raise ValueError(f"{name} is {list(box)!r:.80}, which are not four finite numbers")
    x1, y1, x2, y2 = box
    width, height = size
    if x1 >= x2 or y1 >= y2:
        raise ValueError(f"{name}, {[x1, y1, x2, y2]}, is {'empty' if x1 == x2 or y1 == y2 else 'reversed'}")
    if x1 < -1 or y1 < -1 or x2 > width + 1 or y2 > height + 1:
        raise ValueError(f"{name}, {[x1, y1, x2, y2]}, is outside its picture of {width} x {height}")
    inside = [max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)]
    if inside[0] >= inside[2] or inside[1] >= inside[3]:
        raise ValueError(f"{name}, {[x1, y1, x2, y2]}, is outside its picture of {width} x {height}")
    rounded = [round(v) for v in inside]
    return rounded if whole and rounded[0] < rounded[2] and rounded[1] < rounded[3] else inside


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _named(one: Mapping[str, Any]) -> str:
    label = f" of {one['label']!r:.40}" if one.get("label") else ""
    return f"the box{label}{one.get('from', '')}"


# -- tables -----------------------------------------------------------------------------------------------------------------


def _table(path: str) -> DataTable:
    local = Path(path).expanduser()
    if local.suffix.lower() == ".json" and local.is_file():
        try:
            found = read_json(local)
        except (ValueError, RecursionError, OSError) as error:
            raise UserError(f"{path} is no JSON ({shorten(error, 120)}): correct it") from error
        if isinstance(found, dict) and {"images", "annotations"} <= found.keys():
            return coco(path, found)
        if isinstance(found, list):
            return DataTable(path, len(found), found.__getitem__, "item")
        raise UserError(f"{path} is neither COCO's JSON, with images and annotations, nor a list of rows: see the guide")
    return read_table(path)


def _outline(row: Mapping[str, Any] | None) -> tuple[str, int]:
    """(the name of the picture, how many expressions) of a row."""
    if row is None:
        return "", 1
    image = _first(row, IMAGE_KEYS)
    image = image[0] if isinstance(image, list) and image else image
    if isinstance(image, bytes):  # a picture in the table
        image = hashlib.sha256(image).hexdigest()
    texts = _first(row, TEXT_KEYS)
    return image if isinstance(image, str) else "", len(texts) if isinstance(texts, list) and texts else 1


def _plain(row: dict[str, Any], expression: int, path: str, folder: str | None, form: str | None) -> dict[str, Any]:
    image = _first(row, IMAGE_KEYS)
    if isinstance(image, list):
        if len(image) != 1:
            raise ValueError(f"it has {len(image)} pictures, and boxes need exactly one")
        image = image[0]
    if image is None:
        raise ValueError(f"it has no picture under any of {', '.join(IMAGE_KEYS)}")
    plain: dict[str, Any] = {"image": resolve_image(path, image, folder)}
    if "conversations" in row:
        return plain | _conversation(row["conversations"])
    if "messages" in row and isinstance(row.get("objects"), Mapping):
        return plain | swift(row)
    texts = _first(row, TEXT_KEYS)
    text = texts[expression] if isinstance(texts, list) and texts else texts
    if isinstance(text, Mapping):  # REFER's own form: {"sent": "the man on the left"}
        text = text.get("sent") or text.get("raw")
    objects, count = _first(row, OBJECT_KEYS), _whole(_first(row, COUNT_KEYS))
    unboxed = count is not None and _first(row, BOX_KEYS) is None
    given = ([] if unboxed else [row]) if objects is None else objects
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise ValueError(f"its objects are {given!r:.60} and not a list of objects with boxes")
    plain |= {"expression": text, "labels": row.get("labels"), "count": count}
    return plain | {"objects": [_object(one, form) for one in given]}


def swift(row: Mapping[str, Any]) -> dict[str, Any]:
    """ms-swift's row for grounding: `messages`, whose places <ref-object> and <bbox> stand for `objects.ref` and `objects.bbox`,
    two corners in pixels. It asks for the names in the user's turns. A box has the name before it, or, in a turn that begins with
    a box, the name behind it."""
    said, objects = row["messages"], row["objects"]
    if not isinstance(said, list) or not all(isinstance(turn, Mapping) for turn in said):
        raise ValueError(f"its messages are {said!r:.60}, not a list of turns")
    if objects.get("bbox_type") not in (None, "real"):
        raise ValueError(f"its bbox_type is {objects['bbox_type']!r:.40}: give boxes in pixels")
    names, boxes = ([*(objects.get(key) or [])] for key in ("ref", "bbox"))
    asked: list[str] = []
    found: list[dict[str, Any]] = []
    name, labelled = "", 0
    for turn in said:
        places = PLACES.findall(str(turn.get("content")))
        behind = NAME in places and places[0] != NAME
        for place in places:
            if not (names if place == NAME else boxes):
                raise ValueError(f"its messages contain {place} more often than its objects have such")
            if place != NAME:
                found.append({"bbox_2d": boxes.pop(0), "label": "" if behind else name, "from": ""})
                continue
            name = str(names.pop(0))
            asked += [name] if turn.get("role") == "user" else []
            for one in found[labelled:] if behind else ():
                one["label"] = name
            labelled = len(found)
    return {"expression": ", ".join(asked) or None, "labels": None, "count": None, "objects": found}


def _object(one: Mapping[str, Any], form: str | None) -> dict[str, Any]:
    key = next((k for k in BOX_KEYS if k in one), None)
    if key is None:
        raise ValueError(f"there is no box under any of {', '.join(BOX_KEYS)}")
    box = one[key]
    label = next((one[k] for k in ("label", "category", "class", "name") if k in one), "")
    found = {"bbox_2d": box, "label": label, "from": one.get("from", "")}
    if (form or ("xyxy" if key in XYXY_KEYS else "xywh")) == "xyxy":
        return found
    found["bbox_2d"] = _corners(box)
    return found if form else found | {"key": key}


def _corners(box: Any) -> Any:
    """x, y, width, height as corners; anything else as it is, for the check to refuse."""
    try:
        x, y, width, height = box
        return [x, y, x + width, y + height]
    except (TypeError, ValueError):
        return box


def _conversation(said: Any) -> dict[str, Any]:
    """VLM-R1's question and solution: a box, a text that holds one, a list of `{"bbox_2d", "label"}`, "None", or a number."""
    if not isinstance(said, list) or len(said) < 2 or not all(isinstance(s, Mapping) and "value" in s for s in said[:2]):
        raise ValueError("conversations must hold a question and its answer, each with a value")
    question, value = str(said[0]["value"]).replace("<image>", "").strip(), said[1]["value"]
    plain = value.replace("<answer>", "").replace("</answer>", "").strip() if isinstance(value, str) else value
    if (count := _whole(plain)) is not None:  # tasks that need a box refuse the row
        return {"question": question, "count": count, "objects": [{"bbox_2d": value, "label": "", "from": ""}]}
    if isinstance(value, str):
        text = value.replace("<answer>", "").replace("</answer>", "").strip()
        value = [] if text.lower() in ("none", "") else only_json(text)
        if value is None:
            four = parse_numbers(text, 5)
            value = four if len(four) == 4 else text
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list) and all(isinstance(v, Mapping) for v in value):
        return {"question": question, "objects": [_object(v, "xyxy") for v in value]}
    return {"question": question, "objects": [{"bbox_2d": value, "label": "", "from": ""}]}


# -- COCO -------------------------------------------------------------------------------------------------------------------


def coco(path: str, found: Mapping[str, Any]) -> DataTable:
    """One row for each picture of COCO's detection JSON, and one for each annotation without a picture. Annotations of crowds are
    left out."""
    images, annotations, categories = found["images"], found["annotations"], found.get("categories", [])
    if not all(isinstance(entries, list) for entries in (images, annotations, categories)):
        raise UserError(f"{path}: images, annotations and categories must be lists")
    labels = {c["id"]: c.get("name") for c in categories if _has_id(c)}
    known: dict[Any, list[Any]] = {i["id"]: [] for i in images if _has_id(i)}
    lost: list[Any] = []
    for number, annotation in enumerate(annotations):
        owner = annotation.get("image_id") if isinstance(annotation, Mapping) else None
        known.get(owner, lost).append((number, annotation)) if _hashable(owner) else lost.append((number, annotation))

    def read(index: int) -> dict[str, Any]:
        if index >= len(images):
            number, annotation = lost[index - len(images)]
            raise UserError(f"{path} {_annotation(number, annotation)} belongs to no picture of the file: correct its image_id")
        image = images[index]
        if not isinstance(image, Mapping) or "id" not in image or not isinstance(image.get("file_name"), str):
            raise UserError(f"{path} image {index} has no id or no file_name: correct or remove it")
        objects = [_annotated(path, number, a, labels) for number, a in known[image["id"]] if not _crowd(a)]
        return {"id": image["id"], "image": image["file_name"], "objects": objects, "labels": None}

    return DataTable(path, len(images) + len(lost), read, "picture")


def _annotated(path: str, number: int, annotation: Any, labels: Mapping[Any, Any]) -> dict[str, Any]:
    name = _annotation(number, annotation)
    category = annotation.get("category_id")
    label = labels.get(category) if _hashable(category) else None
    if not isinstance(label, str) or not label.strip():
        raise UserError(f"{path} {name} has the category {category!r:.40}, which the file doesn't define: correct or remove it")
    if "bbox" not in annotation:
        raise UserError(f"{path} {name} has no bbox: correct or remove it")
    return {"bbox": annotation["bbox"], "label": label, "from": f" in {name}"}


def _annotation(number: int, annotation: Any) -> str:
    return f"annotation {annotation.get('id', f'number {number}') if isinstance(annotation, Mapping) else f'number {number}'}"


def _crowd(annotation: Mapping[str, Any]) -> bool:
    return bool(annotation.get("iscrowd"))


def _whole(value: Any) -> int | None:
    """A number of things, as a number or in digits; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.strip().isdigit() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _has_id(entry: Any) -> bool:
    return isinstance(entry, Mapping) and "id" in entry and _hashable(entry["id"])


def _hashable(value: Any) -> bool:
    return isinstance(value, str | int | float | None)


def _first(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((row[k] for k in keys if row.get(k) is not None), None)
