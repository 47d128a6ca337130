"""What a task's prompts are like, over more of them than anybody reads: how hard, how long, what is answered, and what the task's
verifiers give to right answers, to none and to wrong ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl.api.episodes import Conversation
from mmrl.api.errors import NoGold, PluginError, UserError, WorldLost, calling, is_finite
from mmrl.api.frames import Frame
from mmrl.api.interfaces import Task
from mmrl.api.media.decoding import glimpse
from mmrl.api.media.images import load_image
from mmrl.api.specs import TaskSpec, VerifierSpec
from mmrl.api.tasks.marks import Mark, wrong
from mmrl.api.tasks.options import Prompts
from mmrl.api.types import Case, Prompt, Score, Status, Turn
from mmrl.data.prompts import gold_of
from mmrl.judge import Judge, cases_of
from mmrl.registry import plugins
from mmrl.testing.acting import OutcomeSubject
from mmrl.testing.gold import TURNS, finished
from mmrl.testing.sample import canonical, evenly
from mmrl.train.checks.gold import misread, short, slack

SOURCES = ("gold", "empty", "wrong")
"""Completions that are tried: right, nothing at all, and right for another prompt."""
LETTERS = 2000
"""Characters by which answers are told apart."""
DIGITS = 40
"""Of the text of a number, at most."""
OTHERS = 256
"""Gold completions that are kept, to be the wrong ones of other prompts."""
GRADED = 2000
"""Prompts whose difficulty is asked for, where they needn't be made for that."""
PLAYED = 8
"""Prompts with worlds that are scored: each completion is an episode."""
REWARD = "the reward"
"""All verifiers together, by their weights."""
TENTH = 10
"""One in so many wrong answers may be right by chance, by a tolerance or a synonym."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A prompt as a policy reads it."""

    image_sizes: tuple[tuple[int, int], ...]
    model_sizes: tuple[tuple[int, int], ...]
    frame: Frame
    tokens: int = 0
    """Of all of it; 0 where no policy counts them."""
    pictured: int = 0
    """Those that stand for pictures and videos."""


@dataclass(slots=True, kw_only=True)
class Tried:
    """A completion of a prompt."""

    source: str
    """One of `SOURCES`."""
    completion: str
    score: Score | None = None
    """The task's reward for it, with each verifier's value in its parts; None where nobody scored it."""


@dataclass(slots=True, kw_only=True)
class Looked:
    """A prompt, and what was tried on it."""

    prompt: Prompt
    seen: Seen
    gold: str | None
    """None where nobody knows what is right, or where the task acts."""
    tried: list[Tried] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Survey:
    """What was found so far."""

    looked: int = 0
    """Prompts."""
    difficulties: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    answered: str = "Answers"
    """What these are, for people: in tasks that act instructions."""
    numbers: list[float] = field(default_factory=list)
    """The answers, where they are numbers."""
    areas: list[float] = field(default_factory=list)
    """Of true boxes, in parts of their picture's."""
    lengths: list[float] = field(default_factory=list)
    """Of true intervals, in parts of their video's."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) of pictures, as the task gives them."""
    pictures: list[int] = field(default_factory=list)
    """How many a prompt shows."""
    seconds: list[float] = field(default_factory=list)
    """Of videos."""
    characters: list[int] = field(default_factory=list)
    """Of a prompt's text."""
    tokens: list[int] = field(default_factory=list)
    pictured: list[int] = field(default_factory=list)
    """As of `Seen`, where a policy counts them."""
    paid: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Verifier -> source of a completion -> values."""
    odd: list[str] = field(default_factory=list)
    """What speaks against the task or a verifier, a sentence each."""


class Surveyor:
    """Looks at prompts of one task, some at a time, so that their pictures needn't be kept."""

    def __init__(self, task: Task, spec: TaskSpec, read: Callable[[Prompt], Seen] | None = None, longest: int = 0) -> None:
        """read: how a policy reads a prompt; by default pictures in the sizes that `task.eyes` tells. longest: tokens that this
        policy can read, 0 where nobody knows."""
        self.task, self.spec, self.read, self.longest = task, spec, read, longest
        self.found = Survey(answered="Instructions") if task.simulation else Survey()
        self.verifiers: dict[str, VerifierSpec] = {}
        for name in dict.fromkeys([*spec.verifiers, *([spec.metric] if spec.metric else [])]):
            try:
                one = plugins.registry().get("verifiers", name)
            except UserError as error:
                self.found.odd.append(str(error))
                continue
            if one.model:
                self.found.odd.append(f"{name} is a model, and was not asked")
            else:
                self.verifiers[name] = one
        self.judge = Judge({name: {} for name in self.verifiers}) if self.verifiers else None
        self._golds: dict[str, tuple[Any, str]] = {}
        """Gold completions -> (the answer of their prompt, `_form`)."""
        self._graded = False
        """The difficulties are known."""
        self._played = 0
        self._low: dict[str, list[tuple[float, str, Mapping[str, Any]]]] = {}
        """Verifier -> (value, completion, the prompt's meta) of each gold completion that got less than the best."""
        self._as_gold: Counter[tuple[str, str]] = Counter()
        """(verifier or `REWARD`, source) -> how often it got as much as the gold completion."""
        self._rated: Counter[str] = Counter()
        """The same -> how often a wrong completion was compared with a gold one."""
        self._failed: dict[str, tuple[int, str]] = {}
        """Verifier -> (how often it failed, with what first)."""

    def close(self) -> None:
        """Let go of the verifiers."""
        if self.judge:
            self.judge.close()

    def grade(self, rows: Any) -> None:
        """Take the difficulties of a split where they can be had of many prompts that needn't be made."""
        if isinstance(rows, Prompts) and rows.difficulty and len(rows):
            with calling(f"task {self.spec.id!r}: difficulty of its prompts"):
                told = [rows.difficulty(rows.items[i]) for i in evenly(len(rows), GRADED)]
            self.found.difficulties = [float(value) for value in told if is_finite(value)]
            self._graded = True

    def look(self, prompts: Sequence[Prompt], broken: list[str]) -> list[Looked]:
        """What is seen of prompts, of those that can be used. broken: gets why the others can't."""
        known = []
        for prompt in prompts:
            try:
                known.append(self._looked(prompt))
            except PluginError:
                raise
            except UserError as error:
                broken.append(str(error))
        self._try(known)
        return known

    def marks(self, prompt: Prompt, completion: str) -> Sequence[Mark]:
        """Those that can be drawn: of what is true, and of what a completion says."""
        with calling(f"task {self.spec.id!r}: marks()"):
            return [mark for mark in self.task.marks(prompt, completion) if not wrong(mark)]

    # -- one prompt -----------------------------------------------------------------------------------------------------

    def _looked(self, prompt: Prompt) -> Looked:
        seconds = [glimpse(video).duration_s for video in prompt.videos]
        seen = self.read(prompt) if self.read else self._sizes(prompt)
        try:
            gold = None if self.task.simulation else gold_of(self.task, prompt)
        except NoGold:
            gold = None
        true = [mark for mark in self.marks(prompt, gold or "") if mark.of == "true"]
        found = self.found  # nothing raises from here on
        found.looked += 1
        found.seconds += seconds
        found.sizes.update(seen.image_sizes)
        found.pictures.append(len(seen.image_sizes))
        found.characters.append(len(prompt.text))
        if seen.tokens:
            found.tokens.append(seen.tokens)
            found.pictured.append(seen.pictured)
        if not self._graded and is_finite(difficulty := prompt.meta.get("difficulty")):
            found.difficulties.append(float(difficulty))
        found.areas += [(m.at[2] - m.at[0]) * (m.at[3] - m.at[1]) for m in true if m.kind == "box"]
        found.lengths += [(m.at[1] - m.at[0]) / m.at[2] for m in true if m.kind == "interval"]
        self._answered(prompt.text if self.task.simulation else gold if prompt.answer is None else prompt.answer)
        return Looked(prompt=prompt, seen=seen, gold=gold)

    def _sizes(self, prompt: Prompt) -> Seen:
        sizes = tuple(load_image(image).size for image in prompt.images)
        eyes = self.task.eyes
        return Seen(image_sizes=sizes, model_sizes=tuple(map(eyes.size, sizes)), frame=eyes.frame)

    def _answered(self, answer: Any) -> None:
        if answer is None:
            return
        self.found.answers[" ".join(str(answer)[:LETTERS].split())] += 1
        value = _number(answer)
        if value is not None:
            self.found.numbers.append(value)

    # -- what is paid ---------------------------------------------------------------------------------------------------

    def _try(self, known: Sequence[Looked]) -> None:
        """Have gold, empty and wrong completions scored; in a task that acts a success and a failure."""
        if self.judge is None:
            return
        try:
            if self.task.simulation is not None:
                self._try_outcomes(self.judge)
            else:
                self._try_completions(known, self.judge)
        except UserError as error:  # a verifier that can't be loaded: all else can be seen
            self.found.odd.append(str(error))
            self.close()
            self.judge = None

    def _try_completions(self, known: Sequence[Looked], judge: Judge) -> None:
        for one in known:
            if one.gold is not None and len(self._golds) < OTHERS:
                self._golds.setdefault(one.gold, (_truth(one), _form(one.gold)))
        if type(self.task).world is not Task.world:
            known = known[: PLAYED - self._played]
            self._played += len(known)
        for one in known:
            texts = zip(SOURCES, (one.gold, "", self._wrong(one)), strict=True)
            one.tried = [Tried(source=source, completion=text) for source, text in texts if text is not None]
        episodes = [(tried, self._episode(one, tried)) for one in known for tried in one.tried]
        weights = {name: self.spec.verifiers.get(name, 0.0) for name in self.verifiers}
        scores = judge.score(cases_of([rollout for _, rollout in episodes]), [weights] * len(episodes))
        for (tried, _), score in zip(episodes, scores, strict=True):
            tried.score = score
        for one in known:
            self._compare(one)

    def _wrong(self, one: Looked) -> str | None:
        """The gold completion of a prompt that has another answer: in the same form if there is one, and the next after its own,
        so that not all prompts get the same."""
        if one.gold is None:
            return None
        answer, form, others = _truth(one), _form(one.gold), list(self._golds)
        own = others.index(one.gold) if one.gold in self._golds else 0
        other = [text for text in others[own:] + others[:own] if text != one.gold and self._golds[text][0] != answer]
        return min(other, key=lambda text: self._golds[text][1] != form, default=None)

    def _episode(self, one: Looked, tried: Tried) -> Conversation:
        """It as an episode that is over: gold completions go on as their world says, others are all that is said."""
        said, status = tried.completion, Status.FINISHED
        outcome: Mapping[str, float] = {}
        try:
            with calling(f"task {self.spec.id!r}: its world"):
                said, outcome = finished(self.task, one.prompt, tried.completion, TURNS if tried.source == "gold" else 1)
        except WorldLost:
            status = Status.WORLD_ERROR
        turn = Turn(observed_ids=(), token_ids=(0,), logprobs=(0.0,), text=said)
        return Conversation(prompt=one.prompt, group=0, turns=(turn,), status=status, inputs=one.seen, outcome=outcome)

    def _compare(self, one: Looked) -> None:
        """Take down what was given to the completions of a prompt."""
        scores = {tried.source: tried.score for tried in one.tried if tried.score is not None and not tried.score.lost}
        for name, spec in self.verifiers.items():
            given = {source: score.parts[name] for source, score in scores.items() if name in score.parts}
            for source, value in given.items():
                self.found.paid.setdefault(name, {tried: [] for tried in SOURCES})[source].append(value)
            if "gold" in given and short(spec, given["gold"]):
                self._low.setdefault(name, []).append((given["gold"], one.gold or "", one.prompt.meta))
            self._rate(name, given, slack(spec))
            for source in scores.keys() - given.keys():
                count, first = self._failed.get(name, (0, scores[source].detail))
                self._failed[name] = (count + 1, first)
        paid = {name for name, weight in self.spec.verifiers.items() if weight}
        if paid <= self.verifiers.keys() and not paid <= {self.spec.metric}:  # it is all there, and not rated as the metric
            self._rate(REWARD, {source: s.value for source, s in scores.items() if s.value is not None}, 1e-6)

    def _rate(self, name: str, given: Mapping[str, float], slack: float) -> None:
        """Compare what was given with what the gold completion got."""
        if "gold" in given:
            self._as_gold.update((name, source) for source, value in given.items() if value >= given["gold"] - slack)
            self._rated[name] += "wrong" in given

    def _try_outcomes(self, judge: Judge) -> None:
        for name, spec in self.verifiers.items():
            if name not in self.found.paid:
                told = OutcomeSubject(spec, lambda case: 0.0, [(self.task, Prompt(messages=[]))])
                cases = [Case(completion="", outcome=told.outcome(*of)) for of in ((1.0, 0.0), (0.0, 100.0))]
                scores = zip(("success", "failure"), judge.run(name, cases), strict=True)
                self.found.paid[name] = {source: [s.value] for source, s in scores if s.value is not None}

    def result(self) -> Survey:
        """All that was found, with what is odd about it."""
        found = self.found
        for name, spec in self.verifiers.items():
            paid = {source: len(values) for source, values in found.paid.get(name, {}).items()}
            if name in self._low:
                found.odd.append(misread(spec, self.spec.id, self._low[name], paid["gold"]))
            if count := self._as_gold[name, "empty"]:
                found.odd.append(f"{name} gives empty completions as much as gold ones, {count} of {paid['empty']} times")
            if name in self._failed:
                count, first = self._failed[name]
                found.odd.append(f"{name} failed on {count} of {count + sum(paid.values())} completions, first with: {first}")
        for name in (REWARD, self.spec.metric):  # not each verifier: one of the form alone pays all alike
            count, of = self._as_gold[name, "wrong"], self._rated[name]
            if count * TENTH > of:
                found.odd.append(f"{name} gives wrong answers as much as right ones, {count} of {of} times")
        if self.longest and (count := sum(length > self.longest for length in found.tokens)):
            found.odd.append(f"{count} of {len(found.tokens)} prompts are longer than the model reads: {self.longest:,} tokens")
        return found


def _truth(one: Looked) -> Any:
    """By what prompts are told to have the same answer."""
    return canonical(one.gold if one.prompt.answer is None else one.prompt.answer)


def _form(text: str) -> str:
    """What is left of a completion where all numbers are alike, all words, and all letters that stand alone."""
    words = re.sub(r"[^\W\d_]+", lambda found: "word" if len(found[0]) > 1 else "a", text[:LETTERS])
    return re.sub(r"\d+", "0", words)


def _number(answer: Any) -> float | None:
    """The answer as a number, if it is one or the text of one."""
    if isinstance(answer, str) and len(answer) < DIGITS:
        try:
            answer = float(answer)
        except ValueError:
            return None
    return float(answer) if is_finite(answer) else None
