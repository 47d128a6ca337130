"""`audio/sounds`: questions about sounds that are made by code, so that every answer is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmrl import Prompt, Task, UserError
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split
from mmrl_audio.asking import STYLES, posed, written
from mmrl_audio.synth import SOUNDS, placed, sound, tone
from mmrl_audio.verifiers import right_option

ASKS = ("what", "first", "count", "pitch", "rhythm")
NUMBERS = ("one", "two", "three", "four", "five", "six")
SHORTEST_S, LONGEST_S = 1.0, 10.0
STEP = 2 ** (1 / 12)
"""A semitone, as a ratio of pitches."""
FEWEST_STEPS, MOST_STEPS = 3, 14
"""Semitones between two tones that are compared."""
BEATS = 8
"""Places of a rhythm at which a drum may be hit."""


class _Heard(NamedTuple):
    """A question, its options and its sound."""

    question: str
    options: list[str]
    right: str
    parts: list[tuple[float, Any]]
    """When each part begins, in seconds, and its samples."""
    hard: int
    """Sounds in it."""


@dataclass(kw_only=True, eq=False)
class Sounds(Task):
    """Questions with options about sounds made by code: which sound it is, which comes first, how many beeps there are, whether
    the second tone is higher or lower, whether two rhythms are the same."""

    asks: Sequence[str] = ASKS
    """Kinds of questions, in turn: what, first, count, pitch, rhythm."""
    seconds: float = 2.0
    """Length of a sound, 1 to 10 seconds."""
    choices: int = 4
    """Options of a question about what is heard and how often, 2 to 6."""
    noise: float = 0.01
    """Amplitude of a hiss over each sound, 0 to 0.5; the sounds themselves have up to 0.5."""
    items: int = 2000
    """Number of items of `train`; `test` and `warm` have a tenth of that, at least 50."""
    style: str = "short"
    """The requested form of the answer: short (an answer tag), plain (without a tag), r1-aqa and r1-aqa-think (R1-AQA's
    prompts)."""

    splits = ("train", "test", "warm")

    def __post_init__(self) -> None:
        if not isinstance(self.asks, list | tuple) or not self.asks:
            raise UserError(f"asks = {self.asks!r:.60} must be a list of some of {', '.join(ASKS)}")
        for one in self.asks:
            check_choice("asks", one, ASKS)
        for option, least, most in (("seconds", SHORTEST_S, LONGEST_S), ("noise", 0.0, 0.5)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise UserError(f"{option} = {value!r:.60} must be a number from {least:g} to {most:g}")
        check_integer("choices", self.choices, 2, len(NUMBERS))
        check_integer("items", self.items, 1, 10**7)
        check_choice("style", self.style, STYLES)

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        count = self.items if split == "train" else max(50, self.items // 10)
        return LazyPrompts(range(count), lambda number: self.make(split, seed, number))

    def make(self, split: str, seed: int, number: int) -> Prompt:
        """An item. Pitches and times are drawn from so many that no two items have the same sound."""
        draw = chance(seed, "sounds", split, str(number))
        kind = self.asks[number % len(self.asks)]
        heard = getattr(self, f"_{kind}")(draw)
        wave = placed(heard.parts, self.seconds, draw, self.noise)
        return posed(
            f"{split}-{seed}-{number}",
            heard.question,
            heard.options,
            heard.right,
            self.style,
            wave,
            kind=kind,
            difficulty=heard.hard,
        )

    def gold(self, prompt: Prompt) -> str:
        return written(right_option(prompt.answer), self.style)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each kind of question, if there are several."""
        kinds = {prompt.meta["kind"]: [s for p, s in results if p.meta["kind"] == prompt.meta["kind"]] for prompt, _ in results}
        return {f"kind_{kind}": sum(found) / len(found) for kind, found in sorted(kinds.items())} if len(kinds) > 1 else {}

    # -- kinds of questions -------------------------------------------------------------------------------------------------

    def _what(self, draw: random.Random) -> _Heard:
        options = draw.sample(SOUNDS, min(self.choices, len(SOUNDS)))
        right, long_s = draw.choice(options), self.seconds * draw.uniform(0.3, 0.6)
        start_s = draw.uniform(0, self.seconds - long_s)
        return _Heard("Which sound is heard?", options, right, [(start_s, sound(right, long_s, draw))], 1)

    def _first(self, draw: random.Random) -> _Heard:
        options = draw.sample(SOUNDS, 2)
        first, last = draw.sample(options, 2)
        room = self.seconds / 2
        long_s = room * draw.uniform(0.5, 0.8)
        parts = [
            (half * room + draw.uniform(0, room - long_s), sound(name, long_s, draw)) for half, name in enumerate((first, last))
        ]
        return _Heard("Which sound comes first?", options, first, parts, 2)

    def _count(self, draw: random.Random) -> _Heard:
        most = len(NUMBERS)
        lowest = draw.randint(0, most - self.choices)
        count = lowest + draw.randint(1, self.choices)  # behind the options, so that each is right as often as the others
        room, pitch = self.seconds / most, draw.uniform(500, 1200)
        long_s = room * draw.uniform(0.35, 0.55)
        parts = [
            (place * room + draw.uniform(0, 0.3 * room), tone(pitch, long_s)) for place in sorted(draw.sample(range(most), count))
        ]
        options = list(NUMBERS[lowest : lowest + self.choices])
        return _Heard("How many beeps are heard?", options, NUMBERS[count - 1], parts, count)

    def _pitch(self, draw: random.Random) -> _Heard:
        right, room = draw.choice(("higher", "lower")), self.seconds / 2
        steps = draw.randint(FEWEST_STEPS, MOST_STEPS) * (1 if right == "higher" else -1)
        first = draw.uniform(450, 900)
        long_s = room * draw.uniform(0.6, 0.8)
        parts = [
            (half * room + draw.uniform(0, room - long_s), tone(first * STEP ** (half * steps), long_s)) for half in range(2)
        ]
        question = "Is the second tone higher or lower than the first?"
        return _Heard(question, ["higher", "lower"], right, parts, MOST_STEPS + 1 - abs(steps))

    def _rhythm(self, draw: random.Random) -> _Heard:
        right = draw.choice(("the same", "different"))
        first = sorted(draw.sample(range(BEATS), 4))
        last = first
        while right == "different" and last == first:
            last = sorted(draw.sample(range(BEATS), 4))
        beat = self.seconds / (2 * BEATS + 1)
        parts = [
            ((half * (BEATS + 1) + place) * beat, sound("a drum", beat, draw))
            for half, rhythm in enumerate((first, last))
            for place in rhythm
        ]
        question = "Two rhythms are played. Are they the same or different?"
        return _Heard(question, ["the same", "different"], right, parts, 8)
