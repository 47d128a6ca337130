"""Forced rethinking, as VL-Rethinker's released trainer does it (github.com/TIGER-AI-Lab/VL-Rethinker, commit dd2c17d:
`_generate_vllm` in `openrlhf/trainer/ppo_utils/experience_maker.py`).

Wang et al., "VL-Rethinker: Incentivizing Self-Reflection of Vision-Language Models with Reinforcement Learning", arXiv
2504.08837.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from mmrl import Rollout, SamplingRule, Score, Status, UserError
from mmrl.api.errors import is_finite
from mmrl.api.sampling import COLDEST, HOTTEST, MOST_TOKENS, Continued, Group, StepLoad, StepSampler, is_temperature
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import check_integer, check_type
from mmrl_vqa.vl_rethinker import RETHOUGHT, reconsiderations

TRIGGERS = ("\n\nWait", "\n\nWait, is that so?", "\n\nWait, let me check this again", "\n\nWait, something may be wrong here")
"""For a fifth of the answers, for three tenths, for the other half where they are right, and where they are wrong. All but the
first are other words than the released ones."""
CUT = 0.5
"""Share of the answers of which the end is cut off first."""
MOSTLY_RIGHT = 0.7
"""In a group with a larger share of right answers the wrong ones are left alone."""
MOST_WAITS = 4
"""Reconsiderations at most in an answer's second part, the forced one among them."""
NOTE = "rethinking"
"""Of a group: (answers that went on, those of them that are right, answers that were replaced, wrong ones among these)."""


class ForcedRethinking(SamplingRule):
    """Finished answers go on behind a few words of doubt. Where one ends with a right answer again, or for the first time, the
    whole of it takes the place of the first answer and is trained on, the given words too (VL-Rethinker)."""

    phase: ClassVar[Literal["score", "select"]] = "score"

    def __init__(
        self,
        verifier: str = "vqa/reward@vl-rethinker",
        chance: float = 0.65,
        per_question: int = 2,
        longest: int = 1024,
        fewest: int = 31,
        most: int = 1023,
        temperature: float = 0.9,
        triggers: Sequence[str] = TRIGGERS,
    ) -> None:
        """verifier: the one that says whether an answer is right, by its part `accuracy` or else its value. chance: of each
        answer to go on. per_question: answers of a question that are replaced at most. longest: tokens at most of an answer that
        goes on. fewest: tokens at least that are sampled behind the words of doubt, the end token among them. most: tokens at
        most of these. temperature: at which they are sampled. triggers: four texts of doubt: for a fifth of the answers, for
        three tenths, for the other half where they are right, and where they are wrong."""
        check_type("verifier", verifier, str)
        if not is_finite(chance) or not 0 < chance <= 1:
            raise UserError(f"chance = {chance!r:.60} must be a share above 0, at most 1")
        for name, number, least in (("per_question", per_question, 1), ("longest", longest, 1)):
            check_integer(name, number, least)
        check_integer("fewest", fewest, 0, MOST_TOKENS)
        check_integer("most", most, max(fewest, 1), MOST_TOKENS)
        if not is_temperature(temperature):
            raise UserError(f"temperature = {temperature!r:.60} must be 0, or from {COLDEST:g} to {HOTTEST:g}")
        texts = list(triggers) if isinstance(triggers, list | tuple) else []
        if len(texts) != len(TRIGGERS) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(f"triggers = {triggers!r:.60} must be {len(TRIGGERS)} texts that aren't blank")
        self.verifier, self.chance, self.per_question, self.longest = verifier, chance, per_question, longest
        self.fewest, self.most, self.temperature, self.triggers = fewest, most, temperature, tuple(texts)
        self.longest_continued = longest + most  # and the words of doubt, whose number a tokenizer knows

    def check(self, verifiers: Collection[str]) -> None:
        if self.verifier not in verifiers:
            known = ", ".join(sorted(verifiers)) or "none"
            raise UserError(f"verifier = {self.verifier!r:.60} rewards nothing in this stage: choose one of {known}")

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        asked: list[tuple[Group, list[int]]] = []
        rollouts: list[Rollout] = []
        begun: list[str] = []
        for group in groups:
            draw = random.Random(derive(sample.seed, "rethinking", group.number))
            places = self._chosen(group, draw)
            asked.append((group, places))
            rollouts += [_rethought(group.rollouts[place]) for place in places]
            begun += [self._begun(group.rollouts[place], self._right(group.scores[place]), draw) for place in places]
        answers = sample.go_on(rollouts, begun, temperature=self.temperature, most=self.most)
        found = iter(answers)
        own = [[next(found) for _ in places] for _, places in asked]
        others = [
            replace(group, rollouts=[one.rollout for one in continued], scores=[], others=[], notes={})
            for (group, _), continued in zip(asked, own, strict=True)
        ]
        sample.score(others)
        for (group, places), continued, other in zip(asked, own, others, strict=True):
            if places:
                group.others.append(other)
            self._replace(group, places, continued, other.scores)
        return groups

    def adds(self, load: StepLoad) -> StepLoad:
        """Every answer may go on; it stays one answer."""
        return load.completing(1.0)

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        noted = [group.notes[NOTE] for group in groups if NOTE in group.notes]
        total = sum(len(group.rollouts) for group in groups if NOTE in group.notes)
        names = ("asked_share", "right_share", "kept_share", "mended_share")
        return (
            {f"rethinking/{name}": sum(of) / total for name, of in zip(names, zip(*noted, strict=True), strict=True)}
            if noted
            else {}
        )

    def _right(self, score: Score) -> bool | None:
        """Whether an answer is right; None if nobody knows."""
        accuracy = score.parts.get(f"{self.verifier}/accuracy", score.parts.get(self.verifier))
        return None if score.failed or accuracy is None else accuracy > 0.5

    def _chosen(self, group: Group, draw: random.Random) -> list[int]:
        """The places of the answers that go on."""
        right = [self._right(score) for score in group.scores]
        mostly = sum(map(bool, right)) > MOSTLY_RIGHT * len(right)
        return [
            place
            for place, (rollout, is_right) in enumerate(zip(group.rollouts, right, strict=True))
            if rollout.status is Status.FINISHED
            and rollout.length <= self.longest
            and is_right is not None
            and (is_right or not mostly)
            and draw.random() < self.chance
        ]

    def _begun(self, rollout: Rollout, right: bool | None, draw: random.Random) -> str:
        """The text from which an answer goes on."""
        text = cut(rollout.completion) if draw.random() < CUT else rollout.completion
        (number,) = draw.choices(range(3), weights=(0.2, 0.3, 0.5))
        return text + self.triggers[number if number < 2 or right else 3]

    def _replace(self, group: Group, places: Sequence[int], found: Sequence[Continued], scores: Sequence[Score]) -> None:
        """Put right answers in the places of those that went on."""
        rollouts, before = [*group.rollouts], [*group.scores]
        right = [bool(self._right(score)) for score in scores]
        fit = [
            n
            for n, one in enumerate(found)
            if right[n] and one.rollout.status is Status.FINISHED and self.fewest <= one.tokens <= self.most
        ]
        kept = [n for n in fit[: self.per_question] if 1 + reconsiderations(found[n].text) <= MOST_WAITS]
        for n in kept:
            rollouts[places[n]], group.scores[places[n]] = found[n].rollout, scores[n]
        group.rollouts = rollouts
        mended = sum(not self._right(before[places[n]]) for n in kept)
        group.notes[NOTE] = (len(places), sum(right), len(kept), mended)


def cut(text: str) -> str:
    """An answer without its end: what stands before its last "Wait", then before the last box of that, then before the first
    "answer" of that, in large or small letters, and then before the last blank line of that."""
    for end in (lambda t: t.rfind("Wait"), lambda t: t.rfind("\\boxed"), lambda t: t.lower().find("answer")):
        text = text[: end(text)] if end(text) >= 0 else text
    end_of_paragraph = text.rfind("\n\n")
    return text if end_of_paragraph < 0 else text[:end_of_paragraph].rstrip()


def _rethought(rollout: Rollout) -> Rollout:
    """The rollout with the mark by which verifiers know that its second part was forced."""
    return replace(rollout, prompt=replace(rollout.prompt, meta={**rollout.prompt.meta, RETHOUGHT: True}))
