"""`gui/grounding`: where to click for an instruction, on generated pages in a browser."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from mmrl import Prompt, UserError, user_message
from mmrl.api.tasks.image_sources import chance, hash_rank
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split
from mmrl_gui import asking, pages
from mmrl_gui.data_task import means
from mmrl_gui.geometry import middle
from mmrl_gui.phrases import Wish, wishes
from mmrl_gui.rendered import Rendered, Renderer
from mmrl_gui.screened import Screened

ATTEMPTS = 40
"""Maximum of pages that are generated until one has a suitable element; nearly all have."""
BROWSER = "browser/html"


@dataclass(kw_only=True, eq=False)
class DrawnPages(Screened):
    """Base class of the tasks on generated pages: their kinds, and the browser that shows them."""

    size: str | Sequence[int] = "mobile"
    """Size of the screen: small (168 x 224), mobile (360 x 640), desktop (1280 x 800), or [width, height] in pixels."""
    level: str = "mixed"
    """easy, middle, hard, or mixed, which alternates: number and size of elements, and wording of instructions."""
    kinds: Sequence[str] = pages.KINDS
    """Kinds of pages, of `pages.KINDS`."""
    themes: Sequence[str] = pages.THEMES
    """Themes: light, dark."""
    languages: Sequence[str] = ("en",)
    """Languages of the pages, of `words.LANGUAGES`; instructions are in English."""
    screens: str = BROWSER
    """Id of the screens that show the pages, which must take HTML."""
    warm: int = 200
    """Items of the split `warm`, for imitation before reinforcement learning."""
    train: int = 2000
    """Items of the split `train`."""
    test: int = 200
    """Items of the split `test`."""
    seed: int = 0
    """Seed of the pages. The run's seed doesn't change them, so that all runs are tested on the same ones."""

    splits = ("warm", "train", "test")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.size, str):
            check_choice("size", self.size, pages.SIZES)
            self.screen: tuple[int, int] = pages.SIZES[self.size]
        else:
            if not isinstance(self.size, list | tuple) or len(self.size) != 2:
                raise UserError(f"size = {self.size!r:.60} must be one of {', '.join(pages.SIZES)}, or [width, height]")
            for value in self.size:
                check_integer("size", value, 120, 4096, of="pixels")
            self.screen = (self.size[0], self.size[1])
        check_choice("level", self.level, (*pages.LEVELS, "mixed"))
        for option, known in (("kinds", pages.KINDS), ("themes", pages.THEMES), ("languages", pages.LANGUAGES)):
            value = getattr(self, option)
            if not isinstance(value, list | tuple) or not value:
                raise UserError(f"{option} = {value!r:.60} must be a list of some of {', '.join(known)}")
            for one in value:
                check_choice(option, one, known)
        for split in self.splits:
            check_integer(split, getattr(self, split), 1, 10_000_000)
        check_integer("seed", self.seed, -(2**62), 2**62)
        self._renderer = Renderer(self.screens, self.screen)

    def level_of(self, number: int) -> str:
        return pages.LEVELS[number % len(pages.LEVELS)] if self.level == "mixed" else self.level

    def page(self, split: str, number: int, attempt: int, level: str) -> pages.Page:
        """A page of a split. Its content decides its split, so that splits share no page."""
        for again in range(10 * ATTEMPTS):
            draw = chance(self.seed, "gui", split, str(number), str(attempt), str(again))
            drawn = pages.draw_page(draw, draw.choice(tuple(self.kinds)), self.screen, level, self.themes, self.languages)
            if self.splits[hash_rank(0, "split", drawn.html) % len(self.splits)] == split:
                return drawn
        raise UserError(f"found no page for split {split!r}: give more kinds, themes or languages")


@dataclass(kw_only=True, eq=False)
class Grounding(DrawnPages):
    """Where to click for an instruction."""

    style: str = "short"
    form: str = "point"
    """Answer: point or box."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("form", self.form, ("point", "box"))
        if self.style in ("brief", "ui-tars"):
            check_choice("form", self.form, ("point",))
        if self.form == "box" and self.grid:
            raise UserError("grid can't describe boxes: leave it out, or set form = 'point'")

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(getattr(self, split)), lambda number: self._pose(split, number))

    def gold(self, prompt: Prompt) -> str:
        numbers, box = self.numbers(self.screen), prompt.meta["boxes"][0]
        values = numbers.written_box(box) if self.form == "box" else numbers.written(middle(box), box)
        return asking.answer(self.style, self.form, values, numbers, f"I am to do this: {prompt.meta['instruction']}")

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Means for texts and icons, for each way of description and for each level."""
        return {name: value for key in ("type", "way", "level") for name, value in means(results, itemgetter(key)).items()}

    def _pose(self, split: str, number: int) -> Prompt:
        level = self.level_of(number)
        for attempt in range(ATTEMPTS):
            page = self.page(split, number, attempt, level)
            rendered = self._renderer.show(page)
            assert rendered is not None
            draw = chance(self.seed, "gui", "wish", split, str(number), str(attempt))
            if wish := _chosen(page, rendered, draw, level):
                return self._prompt(f"{split}-{number}", page, rendered, wish, level)
        raise UserError(f"found no suitable element on {ATTEMPTS} pages of {self.screen} pixels: use a larger screen")

    def _prompt(self, id: str, page: pages.Page, rendered: Rendered, wish: Wish, level: str) -> Prompt:
        box = rendered.boxes[wish.thing.number]
        meta = self.meta(
            self.form,
            self.screen,
            boxes=[box],
            instruction=wish.text,
            type="text" if wish.thing.text else "icon",
            platform=pages.platform(page),
            page=page.kind,
            theme=page.look.theme,
            language=page.language,
            way=wish.way,
            level=level,
            difficulty=pages.LEVELS.index(level) + len(page.things) / 100,
        )
        text = asking.ask(
            f"Where on this screen do you click to do this: {wish.text}", self.style, self.form, self.numbers(self.screen)
        )
        return Prompt(id=id, messages=[user_message(text, *rendered.pictures)], answer=list(box), meta=meta)


def _chosen(page: pages.Page, rendered: Rendered, draw: random.Random, level: str) -> Wish | None:
    """The instruction for a page: icons and texts equally often, if it has both."""
    there = [thing for thing in page.things if thing.number in rendered.boxes]
    draw.shuffle(there)
    icon = draw.random() < 0.5
    for thing in sorted(there, key=lambda t: t.text == icon):
        if found := wishes(page, thing, draw, level):
            return draw.choice(found)
    return None
