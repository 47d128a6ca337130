"""Tasks on your own pictures with boxes, with our prompts or those of published systems."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmrl import Prompt, UserError, user_message
from mmrl.api.media.images import load_image
from mmrl.api.tasks.image_sources import chance, hash_order, split_of
from mmrl.api.tasks.option_checks import check_choice, check_integer, check_split, check_type, parse_split_shares
from mmrl.api.tasks.tables import LazyItems
from mmrl_grounding import asking, sources
from mmrl_grounding.task import Grounded


@dataclass(kw_only=True, eq=False)
class Data(Grounded):
    """Base class of the tasks on your own data. A subclass makes a question from a row."""

    path: str
    """The file: .jsonl, .json, .csv, .parquet, or a data set's name; or several, joined by ':'. See the guide for what rows
    may hold."""
    images: str | None = None
    """The folder that picture paths are relative to, by default the file's own; or one for each file, joined by ':'."""
    test_path: str | None = None
    """A separate file for the split `test`, with pictures in the same folders; `path` then only serves the other splits."""
    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.9, "test": 0.1})
    """Split -> share of the pictures, assigned by their names, so that no picture is in two splits."""
    boxes: str | None = None
    """How boxes are written: xyxy, two corners, or xywh, a corner and the size. By default bbox_2d and solution are xyxy, bbox
    and box xywh; those in conversations are xyxy in any case."""
    whole: bool = True
    """Round boxes to whole pixels, because answers are whole numbers and could never match a fraction."""
    seed: int = 0
    """Seed of the splits. The run's seed doesn't change them, so that no test picture is ever trained on."""

    asks: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.boxes is not None:
            check_choice("boxes", self.boxes, ("xyxy", "xywh"))
        check_integer("seed", self.seed, -(2**62), 2**62)
        check_type("whole", self.whole, bool)
        for option in ("path", "images", "test_path"):
            if (value := getattr(self, option)) is not None:
                check_type(option, value, str)
        self._shares = parse_split_shares("shares", self.shares, without="test" if self.test_path else None)
        rows = sources.source(self.path, self.images, self.boxes, lambda key: split_of(key, self.seed, self._shares))
        self._tables = dict.fromkeys(self._shares, rows)
        if self.test_path:
            self._tables["test"] = sources.source(self.test_path, self.images, self.boxes, lambda _: "test")
        chosen = {name: table.splits.get(name, ()) for name, table in self._tables.items()}
        self.splits = tuple(self._tables)  # type: ignore[misc]  # the options decide which there are
        for name, numbers in chosen.items():
            if not numbers:
                raise UserError(f"split {name!r} of {self.path} is empty: add rows, or change shares")
        self._chosen = {name: hash_order(numbers, self.seed, "order", name) for name, numbers in chosen.items()}

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        """In an order in which neighbouring rows of the file are far apart."""
        check_split(split, self.splits)
        return LazyItems(self._tables[split], lambda row, number: self._pose(split, row), self._chosen[split])

    def pose(self, row: dict[str, Any], size: tuple[int, int]) -> tuple[str, Any, Sequence[Mapping[str, Any]], dict[str, Any]]:
        """(the question, the answer, the objects that it is about, further meta). Raises ValueError for an unusable row."""
        raise NotImplementedError(f"{type(self).__name__} must define pose(row, size)")

    def _pose(self, split: str, row: dict[str, Any]) -> Prompt:
        size = load_image(row["image"]).size
        row["objects"] = self.objects(row, size)
        text, answer, about, more = self.pose(row, size)
        meta = self.meta(self.asks, size, [one["bbox_2d"] for one in about], **more)
        return Prompt(id=f"{split}-{row['id']}", messages=[user_message(text, row["image"])], answer=answer, meta=meta)

    def objects(self, row: Mapping[str, Any], size: tuple[int, int]) -> list[dict[str, Any]]:
        """The objects of a row, their boxes checked on a picture of `size`. Raises ValueError for an invalid box."""
        return sources.checked(row["objects"], size, self.whole)

    def _keep(self, wanted: Callable[[list[str] | None], bool], why: str) -> None:
        """Leave out the rows of which `wanted` says no; it gets what `_names` finds."""
        for split, table in self._tables.items():
            kept = array("Q", (number for number in self._chosen[split] if wanted(self._names(table, number))))
            if not kept:
                raise UserError(f"split {split!r} of {self.path} has no picture with objects: see {why}")
            self._chosen[split] = kept

    @staticmethod
    def _names(rows: sources.Chosen, number: int) -> list[str] | None:
        """The labels of a row's objects, one for each; None for a row that can't be read, which raises when it is used."""
        try:
            return [str(one.get("label", "")) for one in rows[number]["objects"]]
        except (UserError, ValueError):
            return None

    def meta(self, asks: str, size: tuple[int, int], boxes: Sequence[Sequence[float]], **more: Any) -> dict[str, Any]:
        meta = super().meta(asks, size, boxes, **more)
        return {**meta, "style": {"vlm-r1": "tags", "vision-r1": "json", "visual-rft": "tags"}.get(self.style, self.style)}


@dataclass(kw_only=True, eq=False)
class ReferData(Data):
    """The box of the object that an expression describes. Each expression of a row is a separate prompt."""

    styles: ClassVar[tuple[str, ...]] = (*asking.STYLES, "vlm-r1")
    asks = "box"

    def pose(self, row: dict[str, Any], size: tuple[int, int]) -> Any:
        words, asked, objects = row.get("expression") or "", row.get("question"), row["objects"]
        if len(objects) != 1:
            raise ValueError(f"it has {len(objects)} boxes, and an expression describes one")
        if not asked and (not isinstance(words, str) or not words.strip()):
            raise ValueError(f"it has no expression under any of {', '.join(sources.TEXT_KEYS)}")
        more = {"expression": words or asked, "thought": "I look for what is described."}
        if self.style == "vlm-r1":
            text = asking.VLM_R1_REC.format(asked or asking.VLM_R1_BOX.format(words.strip().rstrip(".")))
        else:
            text = self.asked(asked or f"Where is {words.strip().rstrip('.')}?", "box", size)
        return text, objects[0]["bbox_2d"], objects, more

    def gold(self, prompt: Prompt) -> str:
        if self.style != "vlm-r1":
            return super().gold(prompt)
        said = json.dumps({"bbox_2d": list(self.truth_as_written(prompt)), "label": "object"})
        return asking.thought(prompt.meta["thought"], said)


@dataclass(kw_only=True, eq=False)
class PointData(ReferData):
    """A point on the object that an expression describes, or on any object of a random label."""

    styles = asking.STYLES
    asks = "point"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(lambda names: names is None or bool(names), "shares")

    def pose(self, row: dict[str, Any], size: tuple[int, int]) -> Any:
        more: dict[str, Any]
        words, asked, objects = row.get("expression") or "", row.get("question"), row["objects"]
        if not objects:
            raise ValueError("it has no object to point at")
        if (asked or words) and len(objects) == 1:
            text, words = _pointed(asked) if asked else _described(words)
            more = {"expression": words, "thought": "I look for what is described."}
            return self.asked(text, "point", size), objects[0]["bbox_2d"], objects, more
        if words:
            raise ValueError(f"it has {len(objects)} boxes, and an expression describes one")
        label, about = _drawn_label(chance(self.seed, "point", str(row["id"])), objects)
        more = {"expression": label, "difficulty": len(objects), "thought": f"I look for any {label}."}
        return self.asked(f"Point at any {label}.", "point", size), about, about, more


def _pointed(asked: str) -> tuple[str, str]:
    """A question of VLM-R1's, which asks for a box, as one for a point; any other as it is. (question, words)"""
    words = asked.partition("describes:")[2].strip().rstrip(".")
    return (f"Point at {words}.", words) if words else (asked, asked)


def _described(words: Any) -> tuple[str, str]:
    if not isinstance(words, str) or not words.strip():
        raise ValueError(f"it has no expression under any of {', '.join(sources.TEXT_KEYS)}")
    return f"Point at {words.strip().rstrip('.')}.", words


def _drawn_label(draw: random.Random, objects: Sequence[Mapping[str, Any]]) -> tuple[str, list[Mapping[str, Any]]]:
    """One of the labels of some objects, and the objects that have it."""
    if any(not one["label"].strip() for one in objects):
        raise ValueError("an object has no label, and there is no expression")
    label = draw.choice(sorted({one["label"] for one in objects}))
    return label, [one for one in objects if one["label"] == label]


@dataclass(kw_only=True, eq=False)
class Labelled(Data):
    """Base class of tasks about all objects of some labels."""

    labels: str | Sequence[str] = "present"
    """The labels in questions: present, those of the picture; all, those of the data, or of a row's own `labels`; or a list.
    Objects of other labels are ignored. A picture without objects is left out unless labels are listed or all."""
    most: int | None = None
    """Maximum of objects: pictures with more are left out. By default there is none."""

    def __post_init__(self) -> None:
        if self.most is not None:
            check_integer("most", self.most, 1, 100_000)
        if isinstance(self.labels, str):
            check_choice("labels", self.labels, ("present", "all"))
        elif not isinstance(self.labels, list | tuple) or not self.labels or not all(isinstance(v, str) for v in self.labels):
            raise UserError(f'labels = {self.labels!r:.60} must be "present", "all" or a list of names, such as ["cat", "dog"]')
        super().__post_init__()
        known: dict[str, None] = {}

        def wanted(names: list[str] | None) -> bool:
            known.update(dict.fromkeys(names or ()))
            count = len(names) if names is not None else 1
            return bool(count or self.labels != "present") and (self.most is None or count <= self.most)

        self._keep(wanted, "labels and most, or shares")
        self._known = sorted(known) if self.labels == "all" else [] if self.labels == "present" else list(self.labels)

    def own_labels(self, row: Mapping[str, Any]) -> list[str]:
        """The row's own labels; none if it has none, or if the option lists others. Raises ValueError for anything but a list."""
        own = row.get("labels") if isinstance(self.labels, str) else None
        if own is not None and not isinstance(own, list):
            raise ValueError(f"its labels are {own!r:.60} and not a list of names")
        return list(map(str, own or ()))


@dataclass(kw_only=True, eq=False)
class CountData(Labelled):
    """The number of objects of a label, or of those that an expression describes if the row has a number."""

    styles = asking.STYLES
    asks = "count"

    def objects(self, row: Mapping[str, Any], size: tuple[int, int]) -> list[dict[str, Any]]:
        return [] if row.get("count") is not None else super().objects(row, size)

    @staticmethod
    def _names(rows: sources.Chosen, number: int) -> list[str] | None:
        try:
            row = rows[number]
        except (UserError, ValueError):
            return None
        return None if row.get("count") is not None else [str(one.get("label", "")) for one in row["objects"]]

    def pose(self, row: dict[str, Any], size: tuple[int, int]) -> Any:
        words, asked, count = row.get("expression"), row.get("question"), row.get("count")
        if count is not None:
            if not asked and (not isinstance(words, str) or not words.strip()):
                raise ValueError(f"it has a number and no expression under any of {', '.join(sources.TEXT_KEYS)}")
            text = asked or f"How many {str(words).strip().rstrip('.')} are there?"
            return self.asked(text, "count", size), count, [], {"expression": words or asked, "thought": "I count them."}
        label, found = self._drawn(row)
        text = f'How many objects of the kind "{label}" are there?'
        more = {"labels": [label], "difficulty": len(row["objects"]), "thought": f"I count each {label}."}
        return self.asked(text, "count", size), len(found), found, more

    def _drawn(self, row: Mapping[str, Any]) -> tuple[str, list[Mapping[str, Any]]]:
        """The label of the question and its objects. The number of objects is drawn first, from the numbers that labels of this
        picture have, so that rare numbers occur as often as possible."""
        objects = row["objects"]
        if any(not one["label"].strip() for one in objects):
            raise ValueError("an object has no label")
        there = list(dict.fromkeys(one["label"] for one in objects))
        own = self.own_labels(row)
        labels = own + there if own else there if self.labels == "present" else self._known
        if not labels:
            raise ValueError("it has no objects, and no labels to ask for")
        by_count: dict[int, list[str]] = {}
        for label in sorted(set(labels)):
            by_count.setdefault(sum(one["label"] == label for one in objects), []).append(label)
        draw = chance(self.seed, "count", str(row["id"]))
        label = draw.choice(by_count[draw.choice(sorted(by_count))])
        return label, [one for one in objects if one["label"] == label]


@dataclass(kw_only=True, eq=False)
class DetectData(Labelled):
    """All objects of some labels, each with its box."""

    refinement: str = "auto"
    """Stage of Vision-R1's progressive rule refinement: none, first, second or auto. Run two entries of the task in two
    stages."""

    styles = (*asking.STYLES, "vlm-r1", "vision-r1", "visual-rft")
    asks = "boxes"

    def __post_init__(self) -> None:
        check_choice("refinement", self.refinement, ("auto", "none", "first", "second"))
        super().__post_init__()

    def pose(self, row: dict[str, Any], size: tuple[int, int]) -> Any:
        objects, asked = row["objects"], row.get("question")
        if any(not one["label"].strip() for one in objects):
            raise ValueError("an object has no label")
        there = list(dict.fromkeys(one["label"] for one in objects))
        wanted = there if self.labels == "present" else self._known
        if own := self.own_labels(row):
            wanted = list(dict.fromkeys([*own, *there]))
        if self.style == "visual-rft" and there:  # it asks for one kind at a time
            wanted = [chance(self.seed, "detect", str(row["id"])).choice(there)]
        if not asked:
            objects = [one for one in objects if one["label"] in wanted]
        more = {
            "labels": wanted,
            "difficulty": len(objects),
            "num_instances": len(objects),
            "thought": "I look for each of them.",
        }
        if self.refinement != "auto":
            more["stage"] = self.refinement
        return self._text(asked, wanted, size), objects, objects, more

    def _text(self, asked: str | None, wanted: Sequence[str], size: tuple[int, int]) -> str:
        listed = ", ".join(wanted)
        if self.style == "vlm-r1":
            corners = ", ".join(self.answer_format.swapped(("x1", "y1", "x2", "y2")))
            named = json.dumps(list(wanted), ensure_ascii=False)
            return asking.VLM_R1_OD.format(asked or asking.VLM_R1_BOXES.format(named, corners))
        if self.style == "vision-r1":
            return asked or asking.VISION_R1_BOXES.format(listed)
        if self.style == "visual-rft":
            return asked or asking.VISUAL_RFT_BOXES.format(
                listed, ", ".join(self.answer_format.swapped(("x1", "y1", "x2", "y2")))
            )
        return self.asked(asked or f"Find every object of these kinds: {listed}.", "boxes", size)

    def gold(self, prompt: Prompt) -> str:
        if self.style not in ("vlm-r1", "vision-r1", "visual-rft"):
            return super().gold(prompt)
        truth = self.truth_as_written(prompt)
        if self.style == "visual-rft":
            return asking.thought(prompt.meta["thought"], asking.certain(truth))
        said = f"```json\n{asking.listed(truth)}\n```"
        return said if self.style == "vision-r1" else asking.thought(prompt.meta["thought"], said if truth else "None")
