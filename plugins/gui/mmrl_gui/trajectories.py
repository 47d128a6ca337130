"""Episodes of screens and actions: recordings, AndroidControl's, and pairs as in UIShift.

The keys of a row decide its form: one of `episode_layouts`; a whole episode (`steps`, or lists of `screenshots` and `actions`),
one step (`action`, with `episode_id` and `index` if steps belong together), or a pair of two pictures with the action between
them. All are read as steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mmrl import UserError
from mmrl.api.simulators.gui import Action, Box
from mmrl.api.tasks.tables import DataTable, resolve_image
from mmrl_gui.actions import of_data
from mmrl_gui.episode_layouts import PIXELS, THOUSANDTHS, UNIT, common
from mmrl_gui.geometry import inside, is_number
from mmrl_gui.tables import Table, first, parsed, picture_key, text_of

IMAGE_KEYS = ("picture", "screenshot", "image", "img_filename", "image_path")
GOAL_KEYS = ("instruction", "goal", "task_instruction", "task")
STEP_KEYS = ("step_instruction", "low_level_instruction", "low_instruction")
ACTION_KEYS = ("action", "action_groundtruth", "ground_truth", "gt")
BOX_KEYS = ("box", "bbox", "matched_bbox")
BOXES_KEYS = ("boxes", "a11y", "elements", "nodes")
_EPISODE_KEYS = ("episode_id", "episode")
_INDEX_KEYS = ("index", "step", "step_id")
PLACES = (PIXELS, THOUSANDTHS, UNIT)
"""What the places of rows are in; `unit` is parts of the picture's width and height."""
ONLY = ("success", "all")
"""Which recorded episodes are used: those that succeeded, or all."""
Place = tuple[int, int, int]
"""(table, row, step): step is -1 if a row is one step and not an episode."""


@dataclass(frozen=True)
class Steps(DataTable):
    """The steps of all episodes, in order."""

    tables: tuple[Table, ...] = ()
    places: tuple[Place, ...] = ()
    episodes: tuple[tuple[int, ...], ...] = ()
    """The numbers of the steps of each episode, in order."""
    of: tuple[int, ...] = ()
    """Step -> its episode."""
    keys: tuple[str, ...] = ()
    """Step -> key that decides its split: its episode, or without one its picture, so that none is in two splits."""
    won: tuple[bool, ...] = ()
    """Step -> whether its episode succeeded; True if the row doesn't say."""
    alone: tuple[bool, ...] = ()
    """Step -> whether nothing tells its episode: no other step has the same, and its row isn't one."""
    orders: tuple[float, ...] = ()
    """Step -> its number in its episode, which the row says."""
    stride: float = 1.0
    """Smallest distance of the numbers of two steps."""
    selects: bool = False
    """Whether options of lists are chosen in a table by its form, which is Mind2Web's."""

    def location(self, index: int) -> str:
        table, row, step = self.places[index]
        return self.tables[table].rows.location(row) + (f" step {step}" if step >= 0 else "")

    def earlier(self, index: int) -> tuple[int, ...]:
        """The numbers of the steps before a step of the same episode, in order."""
        own = self.episodes[self.of[index]]
        return own[: own.index(index)]

    def later(self, index: int, k: int) -> Any:
        """The picture k steps after a step; None if the episode ends before, or the table leaves that step out."""
        own = self.episodes[self.of[index]]
        wanted = self.orders[index] + k * self.stride
        for number in own:
            if math.isclose(self.orders[number], wanted):
                return self[number]["image"]
        return self[own[-1]]["final"] if math.isclose(self.orders[own[-1]] + self.stride, wanted) else None


def steps(tables: list[Table]) -> Steps:
    """The steps of some tables: rows `{"id", "image", "final", "goal", "step", "action", "box", "places", "category",
    "types_at", "regions"}`; the action is a `mmrl.api.simulators.gui.Action`, see `in_pixels`. An unreadable row counts as an
    episode of one step, and raises when it is used."""
    found: dict[str, list[tuple[float, Place]]] = {}
    known: dict[str, tuple[str, bool, bool]] = {}
    selects = False
    for t, table in enumerate(tables):
        for row in range(len(table.rows)):
            for one in _outlined(table, t, row):
                found.setdefault(one.episode, []).append((one.order, one.place))
                known[one.episode] = (one.key, one.won, one.episodic)
                selects |= one.selects
    places: list[Place] = []
    orders: list[float] = []
    episodes: list[tuple[int, ...]] = []
    strides: set[float] = set()
    for own in found.values():
        episodes.append(tuple(range(len(places), len(places) + len(own))))
        own.sort()
        places += [place for _, place in own]
        orders += [order for order, _ in own]
        strides.update(b - a for (a, _), (b, _) in pairwise(own) if a < b)
    of = [number for number, own in enumerate(episodes) for _ in own]
    about = [known[name] for name in found]

    @lru_cache(maxsize=16)  # episodes are read step by step
    def read_row(t: int, row: int) -> Mapping[str, Any]:
        return common(tables[t].rows[row])

    def read(index: int) -> dict[str, Any]:
        t, row, step = places[index]
        plain = _plain(tables[t], read_row(t, row), step)
        return {"id": f"{t}-{row}-{max(step, 0)}", **plain}

    name = ":".join(table.path for table in tables)
    return Steps(
        name,
        len(places),
        read,
        tables=tuple(tables),
        places=tuple(places),
        episodes=tuple(episodes),
        of=tuple(of),
        keys=tuple(about[e][0] for e in of),
        won=tuple(about[e][1] for e in of),
        alone=tuple(len(episodes[e]) == 1 and not about[e][2] for e in of),
        orders=tuple(orders),
        stride=min(strides, default=1.0),
        selects=selects,
    )


class _Outline(NamedTuple):
    """A step, before it is read."""

    episode: str
    key: str
    order: float
    place: Place
    won: bool
    episodic: bool = False
    """Its row is an episode, or of a published file of episodes: the step may be the only one."""
    selects: bool = False


def _outlined(table: Table, t: int, row: int) -> Iterator[_Outline]:
    """The steps of a row."""
    alone = f"{t} {row}"
    try:
        found = common(raw := table.rows[row])
        count = _count(found)
    except (UserError, ValueError):
        yield _Outline(alone, f"{Path(table.path).name} {row}", 0.0, (t, row, -1), True)
        return
    named, index = first(found, _EPISODE_KEYS), _order(first(found, _INDEX_KEYS))
    key = (
        f"{found['page']} {found.get('seed')}"
        if "page" in found
        else str(named if named is not None else picture_key(first(found, IMAGE_KEYS)) or f"{Path(table.path).name} {row}")
    )
    good, selects = found.get("success") is not False, bool(found.get("types_at"))
    if count is not None:
        for step in range(count):
            yield _Outline(alone, key, float(step), (t, row, step), good, True)
    elif named is None or index is None:
        yield _Outline(alone, key, 0.0, (t, row, -1), good, False, selects)
    else:
        yield _Outline(f"{t} of {named}", key, index, (t, row, -1), good, found is not raw, selects)


def _count(row: Mapping[str, Any]) -> int | None:
    """Number of steps of a row that is a whole episode; None for a row that is a step."""
    for key in ("steps", "actions"):
        if isinstance(listed := parsed(row.get(key)), list):
            return len(listed)
    return None


def _order(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_number(value) else None


# -- one step -----------------------------------------------------------------------------------------------------------------


def _plain(table: Table, row: Mapping[str, Any], step: int) -> dict[str, Any]:
    """A step in the common form, with its picture unopened and its box unchecked."""
    own, final = _own(row, step)
    image, after = _images(own, final)
    if image is None:
        image = _android_name(row, first(row, _INDEX_KEYS) if _count(row) is None else step)
    raw = parsed(first(own, ACTION_KEYS))
    if raw is None:
        raise ValueError(f"it has no action under any of {', '.join(ACTION_KEYS)}")
    action = of_data(raw)
    box = parsed(first(own, BOX_KEYS)) or (raw.get("bbox") if isinstance(raw, dict) else None)
    if box is None and action.at is not None:
        around = parsed(first(own, BOXES_KEYS))
        box = smallest(_clicked(around, action.at) or around, action.at)
    return {
        "image": _beside(table, image),
        "final": None if after is None else _beside(table, after),
        "goal": text_of(row, GOAL_KEYS) or text_of(own, GOAL_KEYS),
        "step": text_of(own, STEP_KEYS),
        "action": action,
        "box": box,
        "places": row.get("places"),
        "category": str(row.get("category") or ""),
        "types_at": bool(row.get("types_at")),
        "regions": row.get("regions") or [],
    }


def _own(row: Mapping[str, Any], step: int) -> tuple[Mapping[str, Any], Any]:
    """(the step of a row, the picture after the last step)."""
    if isinstance(listed := parsed(row.get("steps")), list):
        own = listed[step]
        if not isinstance(own, dict):
            raise ValueError(f"step {step} is {own!r:.60} and not an object")
        return own, row.get("final")
    if isinstance(said := parsed(row.get("conversations")), list):
        if len(said) < 2 or not all(isinstance(one, dict) and "value" in one for one in said[:2]):
            raise ValueError("conversations must hold a question and its action, each with a value")
        return {**row, "action": said[1]["value"]}, None
    if not isinstance(actions := parsed(row.get("actions")), list):
        return row, None
    own = {"action": actions[step]}
    for key, name in (("screenshots", "image"), ("step_instructions", "step_instruction"), ("boxes", "box")):
        values = parsed(row.get(key))
        if isinstance(values, list) and step < len(values):
            own[name] = values[step]
    shown = parsed(row.get("screenshots"))
    return own, shown[len(actions)] if isinstance(shown, list) and len(shown) > len(actions) else None


def _images(own: Mapping[str, Any], final: Any) -> tuple[Any, Any]:
    """(the picture before, the one after): a pair lists both."""
    image = parsed(first(own, IMAGE_KEYS))
    if not isinstance(image, list):
        return image, final
    if len(image) != 2:
        raise ValueError(f"it has {len(image)} pictures, and a pair has two")
    return image[0], image[1]


def _android_name(row: Mapping[str, Any], index: Any) -> str:
    """The name of AndroidControl's screen in UIShift's scripts."""
    episode = first(row, _EPISODE_KEYS)
    if episode is None or index is None:
        raise ValueError(f"it has no picture under any of {', '.join(IMAGE_KEYS)}")
    return f"epi_{episode}_ss_{index}.jpg"


def _beside(table: Table, image: Any) -> Any:
    """The path of a row's picture; AndroidControl's may be in a folder for each episode."""
    found = resolve_image(table.path, image, table.folder)
    if isinstance(image, str) and image.startswith("epi_") and not Path(found).exists():
        nested = Path(table.folder).expanduser() / f"episode_{image.split('_')[1]}" / image
        return str(nested) if nested.exists() else found
    return found


def smallest(boxes: Any, point: Sequence[float]) -> Box | None:
    """The smallest of some boxes around a point, by which UIShift finds a click's element; None without one. A box is four
    numbers, or an object that has them as `box` or `bbox`, or as AndroidControl's `boundsInScreen`."""
    around = [box for one in boxes if (box := _bounds(one)) and inside(point, box)] if isinstance(boxes, list) else []
    return min(around, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]), default=None)


def _clicked(elements: Any, point: Sequence[float]) -> list[Any]:
    """The recorded elements whose click point is this point."""
    known = [one for one in elements if isinstance(one, dict)] if isinstance(elements, list) else []
    return [one for one in known if one.get("click_point", one.get("spot")) in (list(point), tuple(point))]  # spot: mmrl 0.1


def _bounds(one: Any) -> Box | None:
    if isinstance(one, dict) and isinstance(bounds := one.get("boundsInScreen"), dict):
        one = [bounds.get(k, 0) for k in ("left", "top", "right", "bottom")]
    elif isinstance(one, dict):
        one = first(one, ("box", "bbox"))
    if not isinstance(one, list | tuple) or len(one) != 4 or not all(map(is_number, one)):
        return None
    x1, y1, x2, y2 = one
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def in_pixels(action: Action, box: Any, places: str, size: tuple[int, int]) -> tuple[Action, Any]:
    """(a row's action, its box) with places in pixels of a picture of `size`. places: what they are in, of `PLACES`."""
    if places == PIXELS:
        return action, box
    scale = [side / (1000 if places == THOUSANDTHS else 1) for side in size]
    at, to = (None if p is None else (p[0] * scale[0], p[1] * scale[1]) for p in (action.at, action.to))
    if isinstance(box, list) and len(box) == 4 and all(map(is_number, box)):
        box = [v * scale[n % 2] for n, v in enumerate(box)]
    return replace(action, at=at, to=to), box


def checked(action: Action, box: Any, size: tuple[int, int], around: bool = True) -> Box | None:
    """The box of an action on a picture of `size`, clipped to its edges; None without one, or for one without an area, as 7 of
    the 3,870 rows of UIShift's test file have: `smallest` would not have taken it.

    around: the box must hold the action's place. Raises ValueError if a position is outside the picture, or the box is invalid or
    doesn't contain the position.
    """
    width, height = size
    for place in (action.at, action.to):
        if place and not (-1 <= place[0] <= width + 1 and -1 <= place[1] <= height + 1):
            raise ValueError(f"the place of its {action.kind}, {list(place)}, is outside its picture of {width} x {height}")
    if box is None or action.at is None:
        return None
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(map(is_number, box)):
        raise ValueError(f"the box is {box!r:.60} and not four finite numbers")
    x1, y1, x2, y2 = box
    if x1 > x2 or y1 > y2:
        raise ValueError(f"the box, {list(box)}, is reversed")
    if around and not inside(action.at, (x1 - 1, y1 - 1, x2 + 1, y2 + 1)):
        raise ValueError(f"the box, {list(box)}, does not hold the place of its {action.kind}, {list(action.at)}")
    if x1 == x2 or y1 == y2:
        return None
    cut = (max(x1, 0), max(y1, 0), min(x2, width), min(y2, height))
    if cut[0] >= cut[2] or cut[1] >= cut[3]:
        raise ValueError(f"the box, {list(box)}, is outside its picture of {width} x {height}")
    return cut
