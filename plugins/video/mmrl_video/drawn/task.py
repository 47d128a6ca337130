"""What the tasks on clips that are drawn here share: which clips there are, how they are shown, how an answer is asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmrl import Overlay, Prompt, Task, UserError, user_message
from mmrl.api.tasks.image_sources import chance, hash_rank
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl_video import seen
from mmrl_video.drawn import films
from mmrl_video.drawn.moves import BEAT_S
from mmrl_video.drawn.plots import SIZES, Plot, Stage
from mmrl_video.drawn.shapes import BACKGROUNDS
from mmrl_video.drawn.story import Story

ATTEMPTS = 200
"""Stories that are drawn until one falls to the split and can be asked about; one in three falls to it."""
STYLES = ("short", "tags")
"""short: the answer alone. tags: a thought and the answer, each in its tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A question about a plot."""

    text: str
    """The question."""
    answer: Any
    """What verifiers compare with."""
    said: str
    """The answer as a completion gives it."""
    thought: str
    """What could be thought before it."""
    what: str
    """How the answer is to be given, after `Answer with`: `the letter alone`."""
    kind: str = ""
    """Which of the task's questions it is, for figures by kind."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What verifiers need besides."""


class PosedOfClips(Task):
    """A task whose prompts are made of a `Posed`; their `meta` has its `said`, `thought` and `kind`."""

    style: str

    def gold(self, prompt: Prompt) -> str:
        said = str(prompt.meta["said"])
        return f"<think>{prompt.meta['thought']}</think>\n<answer>{said}</answer>" if self.style == "tags" else said

    def draw_completion(self, prompt: Prompt, completion: str) -> Any:
        """The clip as a strip, with the true boxes in green and those that are said in orange; None where none are said."""
        return seen.shown(prompt, completion)

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The true times, and those that a completion says."""
        return seen.time_overlays(prompt, completion)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean of each kind, where there are several."""
        return means(results, "kind")


@dataclass(kw_only=True, eq=False)
class DrawnClips(PosedOfClips):
    """A question about a clip. A subclass writes a plot and asks about it."""

    size: str | Sequence[int] = "small"
    """small (64 x 64), middle (224 x 224), large (448 x 336), or [width, height] in pixels."""
    rate: int | None = None
    """Frames a second of the files, an even number: by default 2, 4 and 8 for the three sizes, 4 for others."""
    fps: float = 2.0
    """Frames a second that are shown."""
    seconds: Sequence[int] = (8, 16)
    """[shortest, longest] clip in whole seconds."""
    grid: float = 1.0
    """Events start and end at multiples of so many seconds: 0.5, 1, 1.5, ..."""
    objects: int = 3
    """The most things in a clip, 1 to 4."""
    moving: float = 0.5
    """The chance that a thing goes to and fro all the time, where it is free to, 0 to 1."""
    others: float = 0.5
    """The chance that something also happens to each thing that isn't asked about, 0 to 1."""
    backgrounds: Sequence[str] = BACKGROUNDS
    """Of plain, texture and photo."""
    style: str = "short"
    """How the answer is asked for: short, the answer alone; tags, a thought and the answer, each in its tag."""
    prompt: str | None = None
    """What follows the question, in place of the sentence that says how to answer."""
    warm: int = 500
    """Items of the split `warm`, to imitate before training by reward."""
    train: int = 2000
    """Items of the split `train`."""
    test: int = 200
    """Items of the split `test`."""
    seed: int = 0
    """Draws the clips. The run's own seed does not, so that runs are tested on the same ones."""

    splits = ("warm", "train", "test")
    about: ClassVar[str]
    """The task's name, for its generator."""

    def __post_init__(self) -> None:
        width, height, rate = self._measures()
        check_integer("rate", rate, 2, 60)
        if rate % 2:
            raise UserError(f"rate = {rate} must be an even number, so that half seconds fall on frames")
        _number("fps", self.fps, 0.1, rate)
        pair("seconds", self.seconds, 3, 120)
        _number("grid", self.grid, BEAT_S, self.seconds[0] / 4)
        if self.grid % BEAT_S:
            raise UserError(f"grid = {self.grid:g} must be a multiple of {BEAT_S:g} seconds")
        check_integer("objects", self.objects, 1, 4)
        for option in ("moving", "others"):
            _number(option, getattr(self, option), 0, 1)
        some("backgrounds", self.backgrounds, BACKGROUNDS)
        check_choice("style", self.style, STYLES)
        if self.prompt is not None:
            check_type("prompt", self.prompt, str, '"Answer with one word."')
        for split in self.splits:
            check_integer(split, getattr(self, split), 1, 10_000_000)
        check_integer("seed", self.seed, -(2**62), 2**62)
        self.stage = Stage(
            width=width,
            height=height,
            rate=rate,
            shortest_s=self.seconds[0],
            longest_s=self.seconds[1],
            grid_s=float(self.grid),
            objects=self.objects,
            backgrounds=tuple(self.backgrounds),
            moving=float(self.moving),
        )
        self.tell(random.Random(0))  # what doesn't fit is told now

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(getattr(self, split)), lambda number: self._pose(split, number))

    def tell(self, draw: random.Random) -> Plot:
        """A clip in which something happens that can be asked about."""
        raise NotImplementedError(f"{type(self).__name__} must define tell(draw)")

    def ask(self, draw: random.Random, plot: Plot) -> Posed | None:
        """A question about it; None where there is none."""
        raise NotImplementedError(f"{type(self).__name__} must define ask(draw, plot)")

    def story(self, split: str, number: int) -> Story:
        """What is to be seen in an item's clip."""
        return self._drawn(split, number)[0]

    def _drawn(self, split: str, number: int) -> tuple[Story, Posed]:
        """An item. Which split a story belongs to is told by what happens in it, so that no two splits share any."""
        for attempt in range(ATTEMPTS):
            draw = chance(self.seed, "video", self.about, split, str(number), str(attempt))
            plot = self.tell(draw)
            posed = self.ask(draw, plot)
            if (
                posed is not None
                and self.splits[hash_rank(0, "split", (story := plot.story()).plot()) % len(self.splits)] == split
            ):
                return story, posed
        raise UserError(f"none of {ATTEMPTS} clips could be asked about: raise seconds or objects, or lower grid")

    def _pose(self, split: str, number: int) -> Prompt:
        from mmrl.api.media.clips import Clip

        story, posed = self._drawn(split, number)
        clip = Clip(path=films.file_of(story), fps=self.fps)
        meta = {
            "style": self.style,
            "kind": posed.kind,
            "said": posed.said,
            "thought": posed.thought,
            "duration": story.duration_s,
            "difficulty": len(story.actors) + len(story.captions) + len(story.events),
            **posed.meta,
        }
        text = asked(posed.text, posed.what, self.style, self.prompt)
        return Prompt(id=f"{split}-{number}", messages=[user_message(text, clip)], answer=posed.answer, meta=meta)

    def _measures(self) -> tuple[int, int, int]:
        """Width, height and frames a second, of `size` and `rate`."""
        if isinstance(self.size, str):
            check_choice("size", self.size, SIZES)
            width, height, rate = SIZES[self.size]
        else:
            if not isinstance(self.size, list | tuple) or len(self.size) != 2:
                raise UserError(f"size = {self.size!r:.60} must be one of {', '.join(SIZES)}, or [width, height]")
            for value in self.size:
                check_integer("size", value, 48, 1280, of="pixels")
                if value % 2:
                    raise UserError(f"size = {list(self.size)} must be even numbers: videos are kept in blocks of two pixels")
            (width, height), rate = self.size, 4
        return width, height, rate if self.rate is None else self.rate


def asked(text: str, what: str, style: str, instead: str | None) -> str:
    """A question, and how it is to be answered. instead: what a person wants to stand there."""
    how = f"Answer with {what}."
    if instead is not None:
        how = instead
    elif style == "tags":
        how = f"Think in <think> </think> tags, then give {what} in <answer> </answer> tags."
    return f"{text}{chr(10) if chr(10) in text else ' '}{how}".strip()


def means(results: Sequence[tuple[Prompt, float]], key: str) -> dict[str, float]:
    """The mean score of each value of `meta[key]`, where there are several, and not too many to read."""
    groups: dict[str, list[float]] = {}
    for prompt, score in results:
        if name := str(prompt.meta.get(key, "")):
            groups.setdefault(name, []).append(score)
    return {f"{key}_{name}": sum(v) / len(v) for name, v in sorted(groups.items())} if 1 < len(groups) <= 20 else {}


def _number(option: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"{option} = {value!r:.60} must be a number from {least:g} to {most:g}")


def pair(option: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, list | tuple) or len(value) != 2 or value[0] > value[1]:
        raise UserError(f"{option} = {value!r:.60} must be two whole numbers, such as [8, 16], the lesser one first")
    for one in value:
        check_integer(option, one, least, most)


def some(option: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{option} = {value!r:.60} must be a list of some of {', '.join(known)}")
    for one in value:
        check_choice(option, one, known)
    if len(set(value)) < len(value):
        raise UserError(f"{option} = {value!r:.60} names one twice: give each once")
