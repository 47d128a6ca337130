"""Statistics of a sample of a task's prompts: difficulty, lengths, sizes, answers, and scores of gold, empty and wrong
completions by the task's verifiers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.episodes import Conversation
from mmrl.api.errors import EnvironmentFailed, NoGold, PluginError, UserError, is_finite, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.media.content import canonical_form
from mmrl.api.media.decoding import recent_frames
from mmrl.api.media.images import load_image
from mmrl.api.specs import TaskSpec, VerifierSpec
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.tasks.overlays import Overlay, overlay_error
from mmrl.api.types import Case, Prompt, Rollout, Score, Status, Turn
from mmrl.data.prompts import gold_completion
from mmrl.judge import Judge, build_cases, local_judge
from mmrl.registry import plugins
from mmrl.testing.acting import OutcomeSubject
from mmrl.testing.gold import TURNS, play_gold
from mmrl.testing.sample import evenly
from mmrl.train.checks.gold_rewards import describe_gold_loss, is_below_high, slack

SOURCES = ("gold", "empty", "wrong")
"""Kinds of completions that are scored: the gold one, an empty one, and the gold one of another prompt."""
LETTERS = 2000
"""Answers are compared by their first LETTERS characters."""
DIGITS, LARGEST = 40, 1e300
"""Maximal length of a text that is parsed as a number, and the largest number."""
OTHERS = 256
"""Gold completions kept as candidates for wrong completions of other prompts."""
GRADED = 2000
"""Prompts whose difficulty is read, if the task can tell it without making the prompts."""
PLAYED = 8
"""Prompts with a world that are scored; each completion of theirs is an episode."""
REWARD = "the reward"
"""Name of the weighted sum of all verifiers, in warnings."""
TENTH = 10
"""One in TENTH wrong completions may score like a gold one, by chance, a tolerance or a synonym."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedView:
    """Image sizes and token counts of a prompt as a policy encodes it."""

    image_sizes: tuple[tuple[int, int], ...]
    """(width, height) in pixels of each image as the task gives it."""
    model_sizes: tuple[tuple[int, int], ...]
    """(width, height) of each image as the model sees it."""
    frame: CoordinateFormat
    tokens: int = 0
    """Tokens of the whole prompt; 0 without a policy."""
    pictured: int = 0
    """Tokens of images and videos."""


@dataclass(slots=True, kw_only=True)
class ScoredCompletion:
    """A scored completion of a prompt."""

    source: str
    """One of `SOURCES`, or "answer": a policy's."""
    completion: str
    score: Score | None = None
    """The task's reward, with each verifier's value in its parts; None if it was not scored."""


@dataclass(slots=True, kw_only=True)
class SampledPrompt:
    """A surveyed prompt and its scored completions."""

    prompt: Prompt
    seen: EncodedView
    gold: str | None
    """The gold completion; None if the task has none or acts."""
    tried: list[ScoredCompletion] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class TaskStatistics:
    """Statistics of the prompts surveyed so far."""

    looked: int = 0
    """Number of prompts."""
    difficulties: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    """Answer -> number of prompts; of acting tasks the instructions are counted."""
    answered: str = "Answers"
    """Title of `answers`."""
    numbers: list[float] = field(default_factory=list)
    """The answers that are numbers."""
    areas: list[float] = field(default_factory=list)
    """Areas of gold boxes, as shares of their image."""
    lengths: list[float] = field(default_factory=list)
    """Lengths of gold intervals, as shares of their video."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) of images as the task gives them -> number of images."""
    pictures: list[int] = field(default_factory=list)
    """Number of images of each prompt."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each video."""
    characters: list[int] = field(default_factory=list)
    """Number of characters of each prompt's text."""
    tokens: list[int] = field(default_factory=list)
    """`EncodedView.tokens` of each prompt that a policy encoded."""
    pictured: list[int] = field(default_factory=list)
    """`EncodedView.pictured` of each prompt that a policy encoded."""
    paid: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Verifier -> source of a completion -> its values."""
    odd: list[str] = field(default_factory=list)
    """Warnings about the task or a verifier, one sentence each."""


class TaskStatisticsCollector:
    """Surveys prompts of one task in batches, so that their media need not be kept. Close it after use."""

    def __init__(self, task: Task, spec: TaskSpec, read: Callable[[Prompt], EncodedView] | None = None, longest: int = 0) -> None:
        """read: encodes a prompt as a policy does; by default only image sizes are read, as `task.image_processing` gives them.
        longest: the policy's context length in tokens, 0 if unknown."""
        self.task, self.spec, self.read, self.longest = task, spec, read, longest
        self.survey = TaskStatistics(answered="Instructions") if task.simulation else TaskStatistics()
        self.verifiers: dict[str, VerifierSpec] = {}
        for name in dict.fromkeys([*spec.verifiers, *([spec.metric] if spec.metric else [])]):
            try:
                verifier = plugins.registry().get("verifiers", name)
            except UserError as error:
                self.survey.odd.append(str(error))
                continue
            if verifier.model:
                self.survey.odd.append(f"{name} is a model and was not run")
            else:
                self.verifiers[name] = verifier
        self.judge = local_judge({name: {} for name in self.verifiers}) if self.verifiers else None
        self._golds: dict[str, tuple[Any, str]] = {}
        """Gold completion -> (answer of its prompt, `_form` of the completion)."""
        self._graded = False
        """Whether `grade` has read the difficulties."""
        self._played = 0
        self._low: dict[str, list[tuple[float, str, str]]] = {}
        """Verifier -> (value, completion, the score's detail) of each gold completion that scored less than the maximum."""
        self._as_gold: Counter[tuple[str, str]] = Counter()
        """(verifier or `REWARD`, source) -> number of completions that scored at least as much as the gold completion."""
        self._rated: Counter[str] = Counter()
        """Verifier or `REWARD` -> number of wrong completions that were compared with a gold one."""
        self._failed: dict[str, tuple[int, str]] = {}
        """Verifier -> (number of failures, detail of the first)."""

    def close(self) -> None:
        """Stop the verifiers' processes."""
        if self.judge:
            self.judge.close()

    def grade(self, rows: Any) -> None:
        """Read the difficulties of up to `GRADED` prompts of a split, if its task tells them without making the prompts."""
        if isinstance(rows, LazyPrompts) and rows.difficulty and len(rows):
            with plugin_errors(f"task {self.spec.id!r}: difficulty of its prompts"):
                difficulties = [rows.difficulty(rows.items[i]) for i in evenly(len(rows), GRADED)]
            self.survey.difficulties = [float(value) for value in difficulties if is_finite(value)]
            self._graded = True

    def look(self, prompts: Sequence[Prompt], broken: list[str]) -> list[SampledPrompt]:
        """Add prompts to the survey and score their completions; returns the usable ones. broken: receives the errors of the
        others."""
        looked = []
        for prompt in prompts:
            try:
                looked.append(self._looked(prompt))
            except PluginError:
                raise
            except UserError as error:
                broken.append(str(error))
        self._try(looked)
        return looked

    def add_answers(self, prompts: Sequence[SampledPrompt], answers: Sequence[Rollout]) -> None:
        """Add a policy's answer to each of these prompts, with its score, to their completions."""
        tried = [ScoredCompletion(source="answer", completion=answer.completion) for answer in answers]
        for looked, one in zip(prompts, tried, strict=True):
            looked.tried.append(one)
        if self.judge:
            self._score(self.judge, list(zip(tried, answers, strict=True)))
        for one in tried:
            for name, value in one.score.parts.items() if one.score else ():
                self.survey.paid.setdefault(name, {}).setdefault("answer", []).append(value)

    def marks(self, prompt: Prompt, completion: str) -> Sequence[Overlay]:
        """Marks of the gold answer and of a completion; those with invalid coordinates are left out."""
        with plugin_errors(f"task {self.spec.id!r}: overlays()"):
            return [mark for mark in self.task.overlays(prompt, completion) if not overlay_error(mark)]

    # -- one prompt -----------------------------------------------------------------------------------------------------

    def _looked(self, prompt: Prompt) -> SampledPrompt:
        seconds = [recent_frames(video).duration_s for video in prompt.videos]
        seen = self.read(prompt) if self.read else self._sizes(prompt)
        try:
            gold = None if self.task.simulation else gold_completion(self.task, prompt)
        except NoGold:
            gold = None
        true = [mark for mark in self.marks(prompt, gold or "") if mark.source == "true"]
        survey = self.survey  # nothing raises from here on: a broken prompt adds nothing
        survey.looked += 1
        survey.seconds += seconds
        survey.sizes.update(seen.image_sizes)
        survey.pictures.append(len(seen.image_sizes))
        survey.characters.append(len(prompt.text))
        if seen.tokens:
            survey.tokens.append(seen.tokens)
            survey.pictured.append(seen.pictured)
        if not self._graded and is_finite(difficulty := prompt.meta.get("difficulty")):
            survey.difficulties.append(float(difficulty))
        survey.areas += [
            (m.coordinates[2] - m.coordinates[0]) * (m.coordinates[3] - m.coordinates[1]) for m in true if m.kind == "box"
        ]
        survey.lengths += [(m.coordinates[1] - m.coordinates[0]) / m.coordinates[2] for m in true if m.kind == "interval"]
        self._answered(prompt.text if self.task.simulation else gold if prompt.answer is None else prompt.answer)
        return SampledPrompt(prompt=prompt, seen=seen, gold=gold)

    def _sizes(self, prompt: Prompt) -> EncodedView:
        sizes = tuple(load_image(image).size for image in prompt.images)
        seen = self.task.image_processing
        return EncodedView(image_sizes=sizes, model_sizes=tuple(map(seen.model_size, sizes)), frame=seen.coordinate_format)

    def _answered(self, answer: Any) -> None:
        if answer is None:
            return
        self.survey.answers[" ".join(str(answer)[:LETTERS].split())] += 1
        value = _number(answer)
        if value is not None:
            self.survey.numbers.append(value)

    # -- scores of completions ------------------------------------------------------------------------------------------

    def _try(self, prompts: Sequence[SampledPrompt]) -> None:
        """Score gold, empty and wrong completions; for an acting task a successful and a failed episode."""
        if self.judge is None:
            return
        try:
            if self.task.simulation is not None:
                self._try_outcomes(self.judge)
            else:
                self._try_completions(prompts, self.judge)
        except UserError as error:  # a verifier fails to load: the survey goes on without scores
            self.survey.odd.append(str(error))
            self.close()
            self.judge = None

    def _try_completions(self, prompts: Sequence[SampledPrompt], judge: Judge) -> None:
        for looked in prompts:
            if looked.gold is not None and len(self._golds) < OTHERS:
                self._golds.setdefault(looked.gold, (_truth(looked), _form(looked.gold)))
        if type(self.task).environment is not Task.environment:
            prompts = prompts[: PLAYED - self._played]
            self._played += len(prompts)
        for looked in prompts:
            texts = zip(SOURCES, (looked.gold, "", self._wrong(looked)), strict=True)
            looked.tried = [ScoredCompletion(source=source, completion=text) for source, text in texts if text is not None]
        episodes = [(tried, self._episode(looked, tried)) for looked in prompts for tried in looked.tried]
        self._score(judge, episodes)
        for looked in prompts:
            self._compare(looked)

    def _score(self, judge: Judge, episodes: Sequence[tuple[ScoredCompletion, Rollout]]) -> None:
        weights = {name: self.spec.verifiers.get(name, 0.0) for name in self.verifiers}
        scores = judge.score(build_cases([rollout for _, rollout in episodes]), [weights] * len(episodes))
        for (tried, _), score in zip(episodes, scores, strict=True):
            tried.score = score

    def _wrong(self, looked: SampledPrompt) -> str | None:
        """The gold completion of another prompt with another answer, preferably of the same `_form`; None without one. The search
        starts after the prompt's own gold completion, so that prompts get different wrong ones."""
        if looked.gold is None:
            return None
        answer, form, golds = _truth(looked), _form(looked.gold), list(self._golds)
        start = golds.index(looked.gold) if looked.gold in self._golds else 0
        others = [text for text in golds[start:] + golds[:start] if text != looked.gold and self._golds[text][0] != answer]
        return min(others, key=lambda text: self._golds[text][1] != form, default=None)

    def _episode(self, looked: SampledPrompt, tried: ScoredCompletion) -> Conversation:
        """A finished conversation of a completion. A gold completion plays its world's further turns, any other has one turn."""
        text, status = tried.completion, Status.FINISHED
        outcome: Mapping[str, float] = {}
        try:
            with plugin_errors(f"task {self.spec.id!r}: its world"):
                text, outcome = play_gold(self.task, looked.prompt, tried.completion, TURNS if tried.source == "gold" else 1)
        except EnvironmentFailed:
            status = Status.ENVIRONMENT_ERROR
        turn = Turn(observed_ids=(), token_ids=(0,), logprobs=(0.0,), text=text)
        return Conversation(prompt=looked.prompt, group=0, turns=(turn,), status=status, inputs=looked.seen, outcome=outcome)

    def _compare(self, looked: SampledPrompt) -> None:
        """Record the scores of a prompt's completions."""
        scores = {tried.source: tried.score for tried in looked.tried if tried.score is not None and not tried.score.lost}
        for name, spec in self.verifiers.items():
            given = {source: score.parts[name] for source, score in scores.items() if name in score.parts}
            for source, value in given.items():
                self.survey.paid.setdefault(name, {tried: [] for tried in SOURCES})[source].append(value)
            if "gold" in given and is_below_high(spec, given["gold"]):
                self._low.setdefault(name, []).append((given["gold"], looked.gold or "", scores["gold"].detail))
            self._rate(name, given, slack(spec))
            for source in scores.keys() - given.keys():
                count, first = self._failed.get(name, (0, scores[source].detail))
                self._failed[name] = (count + 1, first)
        weighted = {name for name, weight in self.spec.verifiers.items() if weight}
        if weighted <= self.verifiers.keys() and not weighted <= {self.spec.metric}:  # complete, and more than the metric
            self._rate(REWARD, {source: s.value for source, s in scores.items() if s.value is not None}, 1e-6)

    def _rate(self, name: str, values: Mapping[str, float], slack: float) -> None:
        """Count the completions that score as much as the gold one. values: source -> score."""
        if "gold" in values:
            self._as_gold.update((name, source) for source, value in values.items() if value >= values["gold"] - slack)
            self._rated[name] += "wrong" in values

    def _try_outcomes(self, judge: Judge) -> None:
        for name, spec in self.verifiers.items():
            if name not in self.survey.paid:
                subject = OutcomeSubject(spec, lambda case: 0.0, [(self.task, Prompt(messages=[]))])
                cases = [Case(completion="", outcome=subject.outcome(*of)) for of in ((1.0, 0.0), (0.0, 100.0))]
                scores = zip(("success", "failure"), judge.run(name, cases), strict=True)
                self.survey.paid[name] = {source: [s.value] for source, s in scores if s.value is not None}

    def result(self) -> TaskStatistics:
        """The statistics with all warnings; call it once, after the last `look`."""
        survey = self.survey
        for name, spec in self.verifiers.items():
            counts = {source: len(values) for source, values in survey.paid.get(name, {}).items()}
            if name in self._low:
                survey.odd.append(describe_gold_loss(spec, self.spec.id, self._low[name], counts["gold"]))
            if count := self._as_gold[name, "empty"]:
                survey.odd.append(f"{name} scores empty completions as high as gold ones, {count} of {counts['empty']} times")
            if name in self._failed:
                count, first = self._failed[name]
                survey.odd.append(f"{name} failed on {count} of {count + sum(counts.values())} completions, first with: {first}")
        for name in (REWARD, self.spec.metric):  # not each verifier: one for the format scores all completions alike
            count, total = self._as_gold[name, "wrong"], self._rated[name]
            if count * TENTH > total:
                survey.odd.append(f"{name} scores wrong answers as high as right ones, {count} of {total} times")
        if self.longest and (count := sum(length > self.longest for length in survey.tokens)):
            survey.odd.append(f"{count} of {len(survey.tokens)} prompts exceed the model's context of {self.longest:,} tokens")
        return survey


def _truth(looked: SampledPrompt) -> Any:
    """The answer in a form in which equal answers compare equal."""
    return canonical_form(looked.gold if looked.prompt.answer is None else looked.prompt.answer)


def _form(text: str) -> str:
    """The text with every number, word and single letter replaced by a placeholder."""
    words = re.sub(r"[^\W\d_]+", lambda match: "word" if len(match[0]) > 1 else "a", text[:LETTERS])
    return re.sub(r"\d+", "0", words)


def _number(answer: Any) -> float | None:
    """The answer as a number; None if it is neither a number nor the text of one, or too large to subtract another."""
    if isinstance(answer, str) and len(answer) < DIGITS:
        try:
            answer = float(answer)
        except ValueError:
            return None
    return float(answer) if is_finite(answer) and abs(answer) <= LARGEST else None
