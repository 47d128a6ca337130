"""`video/temporal-contrast`: a bonus if the order of frames matters (Feng et al., Video-R1, T-GRPO, section 3.2)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from mmrl import SamplingRule, Score, UserError
from mmrl.api.sampling import Group, StepLoad, StepSampler
from mmrl.api.tasks.perturb import shuffled
from mmrl.api.types import verifier_value

NOTE = "video/temporal-contrast"
"""Key of a group's note: scores of its answers, those to shuffled frames, and whether an answer got the bonus."""


class TemporalContrast(SamplingRule):
    """Adds a bonus to right answers to videos that are answered better than with shuffled frames.

    bonus: Added to the reward of each right answer to a video whose order matters.
    ratio: The order matters if the group's mean is at least this many times the mean with shuffled frames.
    share: Completions with shuffled frames, which are not trained on, as a share of the group's size.
    above: An answer is right if its verifier gives more than this.
    verifier: The verifier that decides what is right, or a list with that of each task. It must be named if there are several,
        since Video-R1 compares the accuracy and not the form.
    """

    def __init__(
        self, bonus: float = 0.3, ratio: float = 0.8, share: float = 0.5, above: float = 0.1, verifier: str | Sequence[str] = ""
    ) -> None:
        if not bonus >= 0:
            raise UserError(f"bonus = {bonus} must be 0 or more")
        if not ratio > 0:
            raise UserError(f"ratio = {ratio} must be above 0")
        if not 0 < share <= 1:
            raise UserError(f"share = {share} must be above 0 and at most 1")
        self.bonus, self.ratio, self.share, self.above = bonus, ratio, share, above
        self.verifiers = [verifier] if isinstance(verifier, str) else list(verifier) or [""]

    def check(self, verifiers: Collection[str]) -> None:
        if not verifiers:
            raise UserError("it needs verifiers, and this stage is scored by labels alone: leave one of them out")
        known = list(dict.fromkeys(verifiers))
        if not any(self.verifiers) and len(known) > 1:
            raise UserError(f"options.verifier must name the one that says what is right, and not the form: {', '.join(known)}")
        if odd := [name for name in self.verifiers if name not in {"", *known}]:
            raise UserError(f"options.verifier names {odd[0]!r}, which rewards nothing here: {', '.join(known)}")

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        clips, seed = [g for g in groups if g.prompt.videos], sample.seed
        others = sample.complete(clips, [shuffled(g.prompt, seed) for g in clips], self.share)
        sample.score(others)
        for group, other in zip(clips, others, strict=True):
            ordered, mixed = self.known(group.scores), self.known(other.scores)
            matters = self.matters(ordered, mixed)
            bonuses = [self.paid(s, matters) for s in group.scores]
            group.others.append(other)
            group.notes[NOTE] = (ordered, mixed, any(bonuses))
            group.pay("temporal", bonuses)
        return groups

    def adds(self, load: StepLoad) -> StepLoad:
        return load.completing(self.share)

    def known(self, scores: Sequence[Score]) -> list[float]:
        """The scores of the answers that didn't fail."""
        return [value for s in scores if (value := self.value(s)) is not None]

    def value(self, score: Score) -> float | None:
        """What the answer's verifier gave; None if it failed, or the answer's task has none of those that are named."""
        return verifier_value(score, next((name for name in self.verifiers if name in score.parts), self.verifiers[0]))

    def matters(self, ordered: Sequence[float], mixed: Sequence[float]) -> bool:
        """Whether the order of frames matters; False without scores."""
        return bool(ordered and mixed) and statistics.fmean(ordered) >= self.ratio * statistics.fmean(mixed)

    def paid(self, score: Score, matters: bool) -> float:
        """The bonus of an answer."""
        return self.bonus if matters and (self.value(score) or 0.0) > self.above else 0.0

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Mean scores with ordered and with shuffled frames, and the share of groups with a bonus."""
        noted = [g.notes[NOTE] for g in groups if NOTE in g.notes]
        ordered, mixed = [v for note in noted for v in note[0]], [v for note in noted for v in note[1]]
        if not ordered or not mixed:
            return {}
        return {
            "temporal/ordered": statistics.fmean(ordered),
            "temporal/shuffled": statistics.fmean(mixed),
            "temporal/paid_share": statistics.fmean(paid for _, _, paid in noted),
        }
