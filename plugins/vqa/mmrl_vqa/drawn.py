"""Tasks whose pictures are drawn by code: questions on scenes of shapes, on several such scenes, the game of 24."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.tasks.image_sources import chance, hash_rank, split_of
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split
from mmrl_vqa import cards, generalpoints, points24
from mmrl_vqa.asking import STYLES, ask, some_of, written
from mmrl_vqa.questions import Question, choose, compare
from mmrl_vqa.rephrasing import otherwise, with_question
from mmrl_vqa.revision import Revisions
from mmrl_vqa.scenes import COLOURS, MOST, SHAPES, Thing, picture, scatter

LEVELS = {"easy": (4, 10**6), "medium": (2, 3), "hard": (1, 1), "any": (1, 10**6)}
"""Difficulty of a hand -> minimum and maximum of ways to make 24."""
OTHER = {"10": "11-13", "11-13": "10", "black": "red", "red": "black"}


@dataclass(kw_only=True, eq=False)
class Drawn(Task):
    """Base class of tasks with drawn pictures; a subclass makes an item from its number."""

    size: int = 112
    """Side of a picture in pixels, from 56 to 1024."""
    items: int = 2000
    """Number of items of `train`; the other splits have a tenth of that, at least 50."""
    style: str = "short"
    """The requested form of the answer: short (an answer tag), think (a think tag, then an answer tag), plain (without tags),
    vlm-r1 (as think, with VLM-R1's prompt)."""
    styles: ClassVar[tuple[str, ...]] = STYLES

    def __post_init__(self) -> None:
        check_integer("size", self.size, 56, 1024)
        check_integer("items", self.items, 1, 10**7)
        check_choice("style", self.style, self.styles)

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        count = self.items if split == "train" else max(50, self.items // 10)
        return LazyPrompts(range(count), lambda number: self.make(split, seed, number))

    def gold(self, prompt: Prompt) -> str:
        return written(str(prompt.answer), self.style)

    def rephrase(self, prompt: Prompt) -> Prompt | None:
        """The same question in other words; None for the game of 24, which has one form."""
        first = prompt.text.partition("\n")[0]
        other = otherwise(first)
        return None if other is None else with_question(prompt, first, other)

    def make(self, split: str, seed: int, number: int) -> Prompt:
        raise NotImplementedError(f"{type(self).__name__} must define make(split, seed, number)")


@dataclass(kw_only=True, eq=False)
class Shapes(Drawn):
    """Questions on the number, colour, position and presence of shapes in one picture."""

    kinds: Sequence[str] = ("choice", "number", "yes-no", "text")
    """Kinds of questions, in turn."""
    fewest: int = 1
    """Minimum of shapes in a picture."""
    most: int = 5
    """Maximum of shapes in a picture, up to 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds = some_of("kinds", self.kinds, ("choice", "number", "yes-no", "text"))
        _range_of_shapes(self.fewest, self.most)

    def make(self, split: str, seed: int, number: int) -> Prompt:
        draw = chance(seed, "shapes", split, str(number))
        kind = self.kinds[number % len(self.kinds)]
        question = None
        while question is None:
            things = scatter(draw, _kinds_of(draw, draw.randint(self.fewest, self.most)))
            question = choose(kind, things, draw)
        shown = [picture(split, draw, things, self.size)]
        return _posed(f"{split}-{seed}-{number}", question, shown, self.style, len(things), self.size)


@dataclass(kw_only=True, eq=False)
class Compare(Drawn):
    """Questions on two or three pictures: which has more, how many more, do they show the same."""

    kinds: Sequence[str] = ("choice", "number", "yes-no")
    """Kinds of questions, in turn: which has more, how many more or all together, do they show the same."""
    pictures: int = 2
    """Number of pictures in a prompt, 2 or 3."""
    fewest: int = 1
    """Minimum of shapes in a picture."""
    most: int = 4
    """Maximum of shapes in a picture, up to 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds = some_of("kinds", self.kinds, ("choice", "number", "yes-no"))
        check_integer("pictures", self.pictures, 2, 3)
        _range_of_shapes(self.fewest, self.most)

    def make(self, split: str, seed: int, number: int) -> Prompt:
        draw = chance(seed, "compare", split, str(number))
        kind = self.kinds[number % len(self.kinds)]
        question = None
        while question is None:
            if kind == "yes-no":
                scenes, question = self._alike(draw)
            else:
                scenes = [scatter(draw, _kinds_of(draw, draw.randint(self.fewest, self.most))) for _ in range(self.pictures)]
                question = compare(kind, scenes, draw)
        shown = [picture(split, draw, things, self.size) for things in scenes]
        return _posed(f"{split}-{seed}-{number}", question, shown, self.style, max(map(len, scenes)), self.size)

    def _alike(self, draw: random.Random) -> tuple[list[list[Thing]], Question]:
        """Scenes of the same shapes at other positions, or with one shape changed in one of them."""
        kinds = _kinds_of(draw, draw.randint(self.fewest, self.most))
        alike = draw.random() < 0.5
        all_kinds = [list(kinds) for _ in range(self.pictures)]
        if not alike:
            changed, place = draw.randrange(1, self.pictures), draw.randrange(len(kinds))
            others = [
                (s, c) for s in SHAPES for c in COLOURS if (s, c) not in kinds and (s == kinds[place][0] or c == kinds[place][1])
            ]
            all_kinds[changed][place] = draw.choice(others or [k for k in itertools.product(SHAPES, COLOURS) if k not in kinds])
        text = f"Do the {'two' if self.pictures == 2 else 'three'} pictures show the same shapes in the same colours?"
        return [scatter(draw, one) for one in all_kinds], Question("yes-no", text, "yes" if alike else "no", steps=2)


@dataclass(kw_only=True, eq=False)
class Points24(Drawn):
    """The card game: make 24 from the four cards in the picture. Every hand can be solved.

    Splits share no hand, by the cards' numbers, and no hand repeats before all of its split were used. Those of `ood` have the
    other rule for faces, with a face card in each, or the other colour.
    """

    faces: str = "10"
    """Value of jack, queen and king: 10, or 11-13 for 11, 12 and 13. The split `ood` has the other."""
    suits: str = "all"
    """Suits of the cards: all, black or red. For black or red, the split `ood` has the other colour and the same rule for
    faces."""
    level: str = "any"
    """Difficulty: easy (4 ways to make 24 or more), medium (2 or 3), hard (1), any."""
    row: bool = False
    """Cards in one row instead of two rows of two."""
    turns: int = 1
    """Maximum of answers: after a wrong one the policy gets the reason and tries again."""
    splits: ClassVar[tuple[str, ...]] = ("train", "test", "ood")
    styles: ClassVar[tuple[str, ...]] = ("short", "think", "plain", "json", "generalpoints")
    style: str = "short"
    """The requested form of the answer: short (the formula in a tag), think (a thought, then the formula, in tags), plain
    (without tags), json (in a tag: the cards, their numbers, the formula), generalpoints (that paper's prompt, for its own
    verifier)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("faces", self.faces, points24.FACES)
        check_choice("suits", self.suits, tuple(cards.SUITS))
        check_choice("level", self.level, tuple(LEVELS))
        check_integer("turns", self.turns, 1, 100)
        if not isinstance(self.row, bool):
            raise UserError(f"row = {self.row!r} must be true or false")

    def make(self, split: str, seed: int, number: int) -> Prompt:
        draw = chance(seed, "points24", split, str(number))
        faces, suits, faced = self.faces, self.suits, False
        if split == "ood":
            if suits == "all":
                faces, faced = OTHER[faces], True
            else:
                suits = OTHER[suits]
        ranks, found = self._hand(draw, split, faces, faced, (seed, number))
        shown = [(rank, draw.choice(cards.SUITS[suits])) for rank in ranks]
        meta = {
            "cards": ranks,
            "suits": tuple(s for _, s in shown),
            "faces": faces,
            "target": points24.TARGET,
            "ways": len(found),
        }
        return Prompt(
            id=f"{split}-{seed}-{number}",
            messages=[user_message(self._asked(faces), cards.hand(shown, self.size, self.row))],
            answer=found[0],
            meta={**meta, "ways": len(found), "difficulty": round(1 / len(found), 4), "style": self.style},
        )

    def gold(self, prompt: Prompt) -> str:
        ranks, faces, formula = prompt.meta["cards"], prompt.meta["faces"], str(prompt.answer)
        if self.style == "generalpoints":
            return generalpoints.gold(ranks, faces, formula)
        if self.style == "json":
            return written(points24.said_as_json(ranks, faces, formula), "short")
        return written(formula, self.style, f"The cards are {' '.join(ranks)}.")

    def environment(self, prompt: Prompt) -> Revisions | None:
        return Revisions(prompt, self.turns, self.style == "generalpoints") if self.turns > 1 else None

    def _asked(self, faces: str) -> str:
        if self.style == "generalpoints":
            return generalpoints.prompt(faces)
        count = "10" if faces == "10" else "11, 12 and 13"
        rules = (
            f"Make {points24.TARGET} of the four cards: use the number of each card once, with + - * / and brackets. "
            f"An ace counts 1; jack, queen and king count {count}."
        )
        if self.style == "json":
            return f'{rules}\nAnswer in <answer> </answer> tags with JSON: {{"cards": [...], "number": [...], "formula": "..."}}'
        return ask(rules, "formula", self.style)

    def _hand(
        self, draw: random.Random, split: str, faces: str, faced: bool, place: tuple[int, int]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(ranks, ways to make 24) of a hand of the split with the required difficulty. place: the run's seed, the item's
        number."""
        fewest, most = LEVELS[self.level]
        if self.style != "generalpoints":
            found = _hands(split, faces, faced, fewest, most, place[0])
            if found:
                ranks = found[place[1] % len(found)]
                return tuple(draw.sample(ranks, 4)), _ways(ranks, faces)
        for _ in range(100_000 if self.style == "generalpoints" else 0):  # as published, hands are drawn independently
            ranks = tuple(draw.choice(points24.RANKS) for _ in range(4))
            if _belongs(ranks, split, faced) and fewest <= len(ways := _ways(ranks, faces)) <= most:
                return ranks, ways
        raise UserError(f"found no hand for faces = {faces!r} and level = {self.level!r}: choose another level")


@functools.lru_cache(maxsize=64)
def _hands(split: str, faces: str, faced: bool, fewest: int, most: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """All hands of a split, each once: first one for each four numbers, then another of those with face cards as tens."""
    rounds: dict[tuple[int, ...], int] = {}
    order = []
    hands = [h for h in itertools.combinations_with_replacement(points24.RANKS, 4) if _belongs(h, split, faced)]
    for hand in sorted(hands, key=lambda hand: hash_rank(seed, "hand", *hand)):
        if fewest <= len(_ways(hand, faces)) <= most:
            numbers = tuple(sorted(points24.points(card, faces) for card in hand))
            rounds[numbers] = rounds.get(numbers, 0) + 1
            order.append((rounds[numbers], hand))
    return tuple(hand for _, hand in sorted(order, key=lambda pair: pair[0]))


def _ways(ranks: Sequence[str], faces: str) -> tuple[str, ...]:
    return points24.solutions(tuple(sorted(points24.points(rank, faces) for rank in ranks)))


def _belongs(ranks: Sequence[str], split: str, faced: bool) -> bool:
    return split == _split_of(ranks) and (not faced or bool({"J", "Q", "K"} & set(ranks)))


def _split_of(ranks: Sequence[str]) -> str:
    """Split by the numbers with faces as 10, so that hands that differ in a jack for a ten are in the same split."""
    numbers = sorted(points24.points(rank, "10") for rank in ranks)
    return split_of(" ".join(map(str, numbers)), 0, {"train": 0.8, "test": 0.1, "ood": 0.1})


def _range_of_shapes(fewest: Any, most: Any) -> None:
    check_integer("most", most, 1, MOST)
    check_integer("fewest", fewest, 1, most)


def _kinds_of(draw: random.Random, count: int) -> list[tuple[str, str]]:
    """(shape, colour) of some things; a few repeat, for questions on counts."""
    found: list[tuple[str, str]] = []
    for _ in range(count):
        shape, colour = (
            draw.choice(found) if found and draw.random() < 0.25 else (draw.choice(SHAPES), draw.choice(list(COLOURS)))
        )
        found.append((shape, colour))
    return found


def _posed(id: str, question: Question, shown: Sequence[Any], style: str, things: int, size: int) -> Prompt:
    meta: dict[str, Any] = {"kind": question.kind, "style": style, "difficulty": things + question.steps}
    if question.options:
        meta["options"] = question.options
    if question.concerned:
        meta["boxes"] = tuple(thing.box(size) for thing in question.concerned)
    text = ask(question.text, question.kind, style, question.options)
    return Prompt(id=id, messages=[user_message(text, *shown)], answer=question.answer, meta=meta)
