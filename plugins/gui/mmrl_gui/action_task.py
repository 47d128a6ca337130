"""The next action, and inverse dynamics: AndroidControl, UIShift's pairs, recorded episodes, your own tables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmrl import Prompt, UserError, user_message
from mmrl.api.errors import display_path
from mmrl.api.simulators.gui import ACTION_KINDS, Action, Box
from mmrl.api.tasks.option_checks import check_choice, check_integer, check_type
from mmrl.api.tasks.tables import DataTable
from mmrl_gui import asking, published
from mmrl_gui.actions import FILLS, STYLES, as_data, of_data, write
from mmrl_gui.data_task import means
from mmrl_gui.episode_layouts import PIXELS
from mmrl_gui.geometry import middle
from mmrl_gui.mind2web import mean_of_means, part_figures
from mmrl_gui.names import SELECT
from mmrl_gui.splits import Data, size_of
from mmrl_gui.tables import Table
from mmrl_gui.trajectories import ONLY, PLACES, Steps, checked, in_pixels, steps


@dataclass(kw_only=True, eq=False)
class Acts(Data):
    """Base class of the tasks whose answer is an action."""

    kinds: Sequence[str] = ACTION_KINDS
    """Kinds of action, of `mmrl.api.simulators.gui.ACTION_KINDS` and `select`; steps with other kinds are left out."""
    only: str = "all"
    """Recorded episodes to use: all, or success. Episodes count as successful if a table doesn't say."""

    places: str = PIXELS
    """What the rows' places are in: pixels, thousandths or unit. GUI-Odyssey's are thousandths in any case, AITW's unit."""

    styles: ClassVar[tuple[str, ...]] = STYLES

    def __post_init__(self) -> None:
        check_choice("only", self.only, ONLY)
        check_choice("places", self.places, PLACES)
        if not isinstance(self.kinds, list | tuple) or not self.kinds or not all(isinstance(k, str) for k in self.kinds):
            raise UserError(f'kinds = {self.kinds!r:.60} must be a list of actions, such as ["click", "type"]')
        for kind in self.kinds:
            check_choice("kinds", kind, (*ACTION_KINDS, SELECT))
        super().__post_init__()

    def rows(self, found: list[Table]) -> tuple[DataTable, Sequence[str]]:
        rows = steps(found)
        return rows, rows.keys

    def wanted(self, rows: DataTable) -> Sequence[int]:
        assert isinstance(rows, Steps)
        won = [n for n in range(len(rows)) if self.only == "all" or rows.won[n]]
        every = {*ACTION_KINDS, *((SELECT,) if rows.selects else ())}
        return won if every <= set(self.kinds) else [n for n in won if self._kind(rows, n) in (None, *self.kinds)]

    @staticmethod
    def _kind(rows: Steps, number: int) -> str | None:
        """The kind of a step; None for one that can't be read, which raises when it is used."""
        try:
            return rows[number]["action"].kind
        except UserError:
            return None

    def _places(self, row: dict[str, Any]) -> str:
        return row["places"] or self.places

    def posed(self, row: dict[str, Any], text: str, images: Sequence[Any], size: tuple[int, int], **more: Any) -> Prompt:
        """A prompt about a step, with positions in the first picture."""
        action, found = in_pixels(row["action"], row["box"], self._places(row), size)
        # GUI-Odyssey's boxes are a model's, and need not be around the click
        box = checked(action, found, size, around=row["places"] is None)
        if action.kind not in self.kinds:
            raise ValueError(f"its action is {action.kind}, which isn't in kinds: add it there")
        if action.kind in FILLS and action.at and self.style == "brief":
            raise ValueError("the style brief has no place for what is typed or selected: choose another")
        true: dict[str, Any] = {"action": as_data(action), "box": list(box) if box else None}
        if row["regions"]:
            true["regions"] = [in_pixels(action, region, self._places(row), size)[1] for region in row["regions"]]
        meta = self.meta("action", size, boxes=[box] if box else [], true=true, kind=action.kind, picture=0)
        meta |= {"selects": True} if SELECT in self.kinds else {}
        meta |= more | {"category": row["category"]} if row["category"] else {}
        published_box = box or found if self.style == "uishift" else box  # there a box without an area is hit on its line
        return Prompt(id=row["id"], messages=[user_message(text, *images)], answer=self._answer(action, published_box), meta=meta)

    def gold(self, prompt: Prompt) -> str:
        action, box = of_data(prompt.meta["true"]["action"]), prompt.meta["true"]["box"]
        numbers = self.numbers(prompt.meta["size"])
        at, box = target(action, box)
        if self.style in STYLES:
            return asking.act(self.style, "I look at what is to be done.", at, numbers, box)
        place = numbers.written(at.at, box) if at.at else None
        if place and self.style == "uishift":  # by the names of the axes
            place = numbers.order.swapped(place)
        return published.gold_action(self.style, prompt.answer, place, "I look at what is to be done.")

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each kind of action, if there are several, and for each category, with `macro`, the mean over these:
        GUI-Odyssey's AMS on its random split. `episode-mean` is the mean over episodes of their steps' mean, Mind2Web's macro
        average; `episodes` is the share of episodes whose steps are all right, of those whose steps are all evaluated. There is
        none of fewer than half of the episodes, as short ones are whole more often, and right."""
        figures = means(results, lambda meta: f"kind/{meta['kind']}")
        figures = figures if len(figures) > 1 else {}
        categories = means(results, lambda meta: f"category/{meta['category']}" if "category" in meta else "")
        if len(categories) > 1:
            figures |= categories | {"macro": sum(categories.values()) / len(categories)}
        episodes: dict[str, list[float]] = {}
        for prompt, value in results:
            if "episode" in prompt.meta:
                episodes.setdefault(prompt.meta["episode"], []).append(value)
        whole = {p.meta["episode"] for p, _ in results if len(episodes.get(p.meta.get("episode", ""), ())) == p.meta.get("steps")}
        won = [float(min(episodes[name]) >= 1) for name in whole]
        by_episode = mean_of_means(results, "episode")
        figures |= {} if by_episode is None else {"episode-mean": by_episode}
        return figures | ({"episodes": sum(won) / len(won)} if won and 2 * len(won) >= len(episodes) else {})

    def summarise_parts(self, parts: Mapping[str, list[tuple[Prompt, float]]]) -> dict[str, float]:
        """Those of `mind2web.part_figures`."""
        return part_figures(parts)

    def _answer(self, action: Action, box: Box | None) -> Any:
        forms = {"uishift": published.android, "gui-r1": published.gui_r1, "ui-r1": published.ui_r1}
        if self.style in forms:
            return forms[self.style](action, box)
        return {"action": as_data(action), "box": list(box) if box else None}


def target(action: Action, box: Sequence[float] | None) -> tuple[Action, Box | None]:
    """(the action with its point in the middle of the box, the box); without a box the recorded action."""
    if box is None or action.at is None:
        return action, None
    x1, y1, x2, y2 = box
    moved = action if action.to is not None else _at(action, middle(box))
    return moved, (x1, y1, x2, y2)


def _at(action: Action, place: tuple[float, float]) -> Action:
    return Action(kind=action.kind, at=place, to=action.to, text=action.text, direction=action.direction)


@dataclass(kw_only=True, eq=False)
class NextAction(Acts):
    """The next action on a screen, for a goal or, at the level low, for an instruction of this step."""

    only: str = "success"
    level: str = "high"
    """Instruction in the prompt: high, the goal; low, the instruction of this step."""
    history: int = 4
    """Maximum of earlier actions of the episode in the prompt, as text."""

    styles = (*STYLES, "uishift", "gui-r1", "ui-r1")

    def __post_init__(self) -> None:
        check_choice("level", self.level, ("high", "low"))
        check_integer("history", self.history, 0, 100)
        super().__post_init__()

    def pose(self, row: dict[str, Any], number: int, rows: Any) -> Prompt:
        size = size_of(row["image"])
        said = row["step"] if self.level == "low" else row["goal"]
        if not said:
            raise ValueError("it has no instruction for its step" if self.level == "low" else "it has no goal or instruction")
        before = rows.earlier(number)
        done = [self._done(rows, n, size) for n in before[len(before) - min(len(before), self.history) :]]
        text = self._text(said, done, len(before), size, row["types_at"])
        episode = rows.of[number]
        more = {} if rows.alone[number] else {"episode": str(episode), "steps": len(rows.episodes[episode])}
        return self.posed(row, text, [row["image"]], size, **more)

    def _text(self, said: str, done: Sequence[Action | None], before: int, size: tuple[int, int], types_at: bool) -> str:
        numbers = self.numbers(size)
        if self.style == "uishift":
            form = published.UISHIFT_LOW if self.level == "low" else published.UISHIFT_HIGH
            return form.format(said, *self.image_processing.model_size(size), before + 1)
        if self.style == "ui-r1":
            return published.UI_R1.format(said)
        told = [write(action, "brief", numbers) if action else "?" for action in done]
        if self.style == "gui-r1":
            return published.GUI_R1.format(said, "; ".join(told) or "None")
        first = before - len(told) + 1
        listed = "".join(f"{number}. {line}\n" for number, line in enumerate(told, first))
        so_far = f"Done so far:\n{listed}" if told else ""
        forms = asking.language(self.style, self.kinds, numbers, types_at=types_at)
        return f"To do: {said}\n{so_far}What is the next action on this screen? {forms}"

    def _done(self, rows: Steps, number: int, size: tuple[int, int]) -> Action | None:
        """An earlier action on a picture of `size`; None for one that can't be read, which raises when its own step is used."""
        try:
            row = rows[number]
        except UserError:
            return None
        return in_pixels(row["action"], None, self._places(row), size)[0]


@dataclass(kw_only=True, eq=False)
class Inverse(Acts):
    """The action that led from one screen to another: the first of k between them. No instructions are needed."""

    k: int = 1
    """Steps between the two screens."""
    kinds: Sequence[str] = tuple(kind for kind in ACTION_KINDS if kind != "wait")
    changed: bool = True
    """Leave out pairs of equal pictures, from which no action can be inferred."""

    styles = (*STYLES, "uishift")

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1, 20)
        check_type("changed", self.changed, bool)
        super().__post_init__()

    def wanted(self, rows: DataTable) -> Sequence[int]:
        assert isinstance(rows, Steps)
        pairs = [n for n in super().wanted(rows) if self._pairs(rows, n)]
        changed = [n for n in pairs if not (self.changed and self._equal(rows, n))]
        if left := len(pairs) - len(changed):
            warnings.warn(
                f"{display_path(rows.name)}: {left} of {len(pairs)} pairs of screens are equal, and left out", stacklevel=2
            )
        return changed

    def _pairs(self, rows: Steps, number: int) -> bool:
        """Whether there is a screen k steps later; a step that can't be read raises when it is used."""
        try:
            return rows.later(number, self.k) is not None
        except UserError:
            return True

    def _equal(self, rows: Steps, number: int) -> bool:
        """Whether the files of both screens are equal, as in a recording without changes. Equal pictures in different files raise
        when they are used."""
        try:
            before, after = (Path(image) for image in (rows[number]["image"], rows.later(number, self.k)))
            return before.stat().st_size == after.stat().st_size and before.read_bytes() == after.read_bytes()
        except (UserError, OSError, TypeError, ValueError):  # unusable, or not a file
            return False

    def pose(self, row: dict[str, Any], number: int, rows: Any) -> Prompt:
        from mmrl.api.media.images import load_image

        after = rows.later(number, self.k)
        if after is None:
            raise ValueError(f"there is no screen {self.k} steps later")
        size = size_of(row["image"])
        second = load_image(after)
        if self.changed and second.size == size and second.tobytes() == load_image(row["image"]).tobytes():
            raise ValueError("the two screens are equal: leave the step out, or set changed = false")
        return self.posed(row, self._text(size), [row["image"], after], size)

    def _text(self, size: tuple[int, int]) -> str:
        if self.style == "uishift":
            form = published.UISHIFT if self.k == 1 else published.UISHIFT_LATER
            return form.format(*self.image_processing.model_size(size), self.k + 1, self.k)
        question = "Which action led from the first screen to the second?"
        if self.k > 1:
            question = f"{self.k} actions led from the first screen to the second. Which was the first of them?"
        return f"{question} {asking.language(self.style, self.kinds, self.numbers(size))}"
