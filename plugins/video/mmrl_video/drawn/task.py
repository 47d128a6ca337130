"""Common parts of the tasks on generated clips: settings of clips, prompts and answers."""

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
"""Maximum of stories that are generated until one is in the split and allows a question; one in three is in the split."""
STYLES = ("short", "tags")
"""short: the answer alone. tags: a thought and the answer, each in its tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A question about a plot."""

    text: str
    """The question."""
    answer: Any
    """The ground truth for verifiers."""
    said: str
    """The answer as in a completion."""
    thought: str
    """A thought before the answer."""
    what: str
    """The form of the answer, after `Answer with`: `the letter alone`."""
    kind: str = ""
    """Kind of the question, for metrics by kind."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Further data for verifiers."""


class PosedOfClips(Task):
    """Base class of tasks whose prompts are made from a `Posed`; their `meta` has its `said`, `thought` and `kind`."""

    style: str

    def gold(self, prompt: Prompt) -> str:
        said = str(prompt.meta["said"])
        return f"<think>{prompt.meta['thought']}</think>\n<answer>{said}</answer>" if self.style == "tags" else said

    def draw_completion(self, prompt: Prompt, completion: str) -> Any:
        """The clip as a strip, with the true boxes in green and the completion's in orange; None without boxes in the
        completion."""
        return seen.shown(prompt, completion)

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The true times, and the completion's."""
        return seen.time_overlays(prompt, completion)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each kind, if there are several."""
        return means(results, "kind")


@dataclass(kw_only=True, eq=False)
class DrawnClips(PosedOfClips):
    """Base class of questions about generated clips. A subclass makes a plot and a question."""

    size: str | Sequence[int] = "small"
    """Size of frames: small (64 x 64), middle (224 x 224), large (448 x 336), or [width, height] in pixels."""
    rate: int | None = None
    """Frames per second of the files, an even number: by default 2, 4 and 8 for the three sizes, 4 for others."""
    fps: float = 2.0
    """Frames per second in the prompt."""
    seconds: Sequence[int] = (8, 16)
    """[minimum, maximum] length of a clip in whole seconds."""
    grid: float = 1.0
    """Events start and end at multiples of this many seconds: 0.5, 1, 1.5, ..."""
    objects: int = 3
    """Maximum of objects in a clip, 1 to 4."""
    moving: float = 0.5
    """Probability that an object moves to and fro all the time, if its event allows it, 0 to 1."""
    others: float = 0.5
    """Probability of an event for each object that isn't in the question, 0 to 1."""
    backgrounds: Sequence[str] = BACKGROUNDS
    """Kinds of backgrounds: plain, texture and photo."""
    style: str = "short"
    """The requested form of the answer: short, the answer alone; tags, a thought and the answer, each in its tag."""
    prompt: str | None = None
    """Text after the question, instead of the instructions for the answer."""
    warm: int = 500
    """Items of the split `warm`, for imitation before reinforcement learning."""
    train: int = 2000
    """Items of the split `train`."""
    test: int = 200
    """Items of the split `test`."""
    seed: int = 0
    """Seed of the clips. The run's seed doesn't change them, so that all runs are tested on the same ones."""

    splits = ("warm", "train", "test")
    about: ClassVar[str]
    """The task's name, for its random generator."""

    def __post_init__(self) -> None:
        width, height, rate = self._measures()
        check_integer("rate", rate, 2, 60)
        if rate % 2:
            raise UserError(f"rate = {rate} must be an even number: half seconds must be frames")
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
        self.tell(random.Random(0))  # raise now if something doesn't fit

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(getattr(self, split)), lambda number: self._pose(split, number))

    def tell(self, draw: random.Random) -> Plot:
        """A plot with an event for a question."""
        raise NotImplementedError(f"{type(self).__name__} must define tell(draw)")

    def ask(self, draw: random.Random, plot: Plot) -> Posed | None:
        """A question about the plot; None if it allows none."""
        raise NotImplementedError(f"{type(self).__name__} must define ask(draw, plot)")

    def story(self, split: str, number: int) -> Story:
        """The story of an item's clip."""
        return self._drawn(split, number)[0]

    def _drawn(self, split: str, number: int) -> tuple[Story, Posed]:
        """An item. The events of a story decide its split, so that splits share no story."""
        for attempt in range(ATTEMPTS):
            draw = chance(self.seed, "video", self.about, split, str(number), str(attempt))
            plot = self.tell(draw)
            posed = self.ask(draw, plot)
            if (
                posed is not None
                and self.splits[hash_rank(0, "split", (story := plot.story()).plot()) % len(self.splits)] == split
            ):
                return story, posed
        raise UserError(f"none of {ATTEMPTS} clips allows a question: raise seconds or objects, or lower grid")

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
        """Width, height and frames per second, from `size` and `rate`."""
        if isinstance(self.size, str):
            check_choice("size", self.size, SIZES)
            width, height, rate = SIZES[self.size]
        else:
            if not isinstance(self.size, list | tuple) or len(self.size) != 2:
                raise UserError(f"size = {self.size!r:.60} must be one of {', '.join(SIZES)}, or [width, height]")
            for value in self.size:
                check_integer("size", value, 48, 1280, of="pixels")
                if value % 2:
                    raise UserError(f"size = {list(self.size)} must be even numbers: videos are encoded in blocks of two pixels")
            (width, height), rate = self.size, 4
        return width, height, rate if self.rate is None else self.rate


def asked(text: str, what: str, style: str, instead: str | None) -> str:
    """A question with instructions for the answer. instead: the user's own instructions."""
    how = f"Answer with {what}."
    if instead is not None:
        how = instead
    elif style == "tags":
        how = f"Think in <think> </think> tags, then give {what} in <answer> </answer> tags."
    return f"{text}{chr(10) if chr(10) in text else ' '}{how}".strip()


def means(results: Sequence[tuple[Prompt, float]], key: str) -> dict[str, float]:
    """The mean score for each value of `meta[key]`, if there are several, but not too many."""
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
        raise UserError(f"{option} = {value!r:.60} must be two whole numbers, the smaller one first, such as [8, 16]")
    for one in value:
        check_integer(option, one, least, most)


def some(option: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{option} = {value!r:.60} must be a list of some of {', '.join(known)}")
    for one in value:
        check_choice(option, one, known)
    if len(set(value)) < len(value):
        raise UserError(f"{option} = {value!r:.60} has a repeated value: give each once")
