"""Reward and curiosity of Pixel Reasoner.

Su et al. 2025, "Pixel Reasoner: Incentivizing Pixel-Space Reasoning with Curiosity-Driven Reinforcement Learning", arXiv
2505.15966, section 4.2: to the reward r(x, y) of a completion y are added

    alpha * max(H - RaPR(x), 0) * 1[y uses a tool]  +  beta * min(N - n(y), 0)

where RaPR(x) is the share of the group that uses a tool and n(y) the number of y's calls. The released code (github.com/
TIGER-AI-Lab/Pixel-Reasoner, commit a3a6c3a, `experience_maker.py`) divides the first term by RaPR(x) too and takes a quarter of
it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from mmrl import Case, SamplingRule, Score, UserError
from mmrl.api.errors import is_finite
from mmrl.api.sampling import Group, StepSampler
from mmrl_tools.verifiers import answer

QUARTER = 0.25
"""The further factor of the released code."""
FORMS = ("paper", "released")


def reward(case: Case) -> Score:
    """1 for the right answer (`verifiers.answer`), and 0 if the last call before it failed: what the policy couldn't look at it
    can't have seen. Known exploits: those of `verifiers.answer`."""
    score = answer(case)
    if score.value and case.outcome.get("last_failed"):
        return Score(0.0, detail="right, but the last call failed")
    return score


def bonuses(
    calls: Sequence[float], threshold: float = 0.3, most: float = 1, alpha: float = 0.5, beta: float = 0.05, form: str = "paper"
) -> tuple[list[float], list[float]]:
    """(curiosity, penalty) of each completion of a group, as they are added. calls: number of calls of each."""
    share = sum(n > 0 for n in calls) / len(calls) if calls else 0.0
    curious = alpha * max(threshold - share, 0.0)
    if form == "released" and share:
        curious *= QUARTER / share
    return [curious if n > 0 else 0.0 for n in calls], [beta * min(most - n, 0.0) for n in calls]


class Curiosity(SamplingRule):
    """Pays completions that call a tool where few of their group do, and takes a little for each call beyond `most`."""

    def __init__(
        self, threshold: float = 0.3, most: float = 1, alpha: float = 0.5, beta: float = 0.05, form: str = "paper"
    ) -> None:
        """threshold: H, the share of a group with calls below which curiosity is paid. most: N, calls that cost nothing. alpha,
        beta: weights of both terms. form: `paper`, or `released`, as the code has it."""
        for name, value in (("threshold", threshold), ("most", most), ("alpha", alpha), ("beta", beta)):
            if not is_finite(value) or isinstance(value, bool) or value < 0:
                raise UserError(f"{name} = {value!r:.60} must be a number from 0")
        if form not in FORMS:
            raise UserError(f"form = {form!r:.60} is unknown: choose paper or released")
        self.settings = {"threshold": threshold, "most": most, "alpha": alpha, "beta": beta, "form": form}

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        for group in groups:
            curious, penalties = bonuses(called(group), **self.settings)  # type: ignore[arg-type]
            group.pay("curiosity", curious)
            group.pay("calls", penalties)
        return groups

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        calls = [n for group in groups for n in called(group)]
        return {"sampling/tool_use": sum(n > 0 for n in calls) / len(calls)} if calls else {}


class Refill(SamplingRule):
    """Leaves out groups whose rewards are all the same, and repeats the others until there are as many again: all of them in a
    new order in each pass, and in the last pass as many as are missing. Without any that differ it changes nothing.

    It is the filter of the released code (`replay_buffer.py`, `--filter True`, as its README trains). There single completions
    are repeated; here groups are, so that each advantage stays that of a whole group.
    """

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        kept = [group for group in groups if group.spread]
        chance, filled = random.Random(sample.seed), list[Group]()
        while kept and len(filled) < len(groups):
            filled += chance.sample(kept, min(len(kept), len(groups) - len(filled)))
        return [replace(group) for group in filled] or groups

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return {"sampling/uniform_share": sum(not g.spread for g in groups) / len(groups)} if groups else {}


def called(group: Group) -> list[float]:
    """The number of calls of each rollout, failed ones included."""
    return [float(rollout.outcome.get("calls", 0.0)) for rollout in group.rollouts]
