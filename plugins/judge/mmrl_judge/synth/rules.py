"""SynthRL's rules: what is read in a model's reply, and which rewritten question is accepted.

Wu et al. 2025, SynthRL: Scaling Visual Reasoning with Verifiable Data Synthesis, arXiv 2506.02096, section 3; its code,
github.com/NUS-TRAIL/SynthRL, commit b4a6aab (`synthrl_framework/verify_utils.py`, `evolve_instruction_verifiable.py`). The
functions give what its code gives, faults included (`plugins/judge/tests/test_synth.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MARKERS = ("New Question:", "new question:", "New question:", "NEW QUESTION:")
"""What stands before the rewritten question; the first of these that the reply contains is taken."""
EXPLANATION = re.compile(r"EXPLANATION:\s*(.*?)(?=SCORE:|$)", re.DOTALL)
SCORE = re.compile(r"SCORE:\s*(?:\[)?(\d+(?:\.\d+)?)(?:\])?")
BOX = "\\boxed{"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a rewritten question is accepted: the values of the published script (`run_evolve_verifiable.sh`)."""

    rollouts: int = 16
    """Answers of the solver to each question."""
    least: int = 4
    """At least so many answers to the rewritten question must be right, so that it can be solved."""
    harder_by: int = 2
    """At least so many fewer answers must be right than of the original question."""
    seed: int = 12
    """Only questions are rewritten of which at least so many answers are right."""
    quality: int = 8
    """The lowest accepted score of the rewriting, of 10."""
    attempts: int = 8
    """Rewritings of each question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One rewritten question."""

    number: int
    """From 1."""
    question: str
    quality: int
    passes: int | None = None
    """Right answers of the solver; None if its quality was too low to ask."""
    verdict: str = ""
    """harder, too-hard, not-harder or low-quality."""


@dataclass(slots=True)
class Evolution:
    """The rewriting of one question, attempt by attempt. After each accepted attempt the next one starts from it; the question
    that is kept is the accepted one with the fewest right answers."""

    question: str
    """The question to rewrite next."""
    passes: int
    """Right answers of the solver to the original question."""
    limits: Limits
    attempts: list[Attempt] = field(default_factory=list)
    best: Attempt | None = None

    @property
    def is_seed(self) -> bool:
        """Whether the original question is easy enough to be rewritten."""
        return self.passes >= self.limits.seed

    def take(self, number: int, question: str, quality: int, passes: int | None) -> Attempt:
        """Judge an attempt and remember it. passes: None where its quality is below the limit."""
        attempt = Attempt(
            number=number, question=question, quality=quality, passes=passes, verdict=self._verdict(quality, passes)
        )
        self.attempts.append(attempt)
        if attempt.verdict == "harder":
            assert passes is not None
            self.question = question
            if self.best is None or self.best.passes is None or passes < self.best.passes:
                self.best = attempt
        return attempt

    def _verdict(self, quality: int, passes: int | None) -> str:
        if quality < self.limits.quality or passes is None:
            return "low-quality"
        if passes < self.limits.least:
            return "too-hard"
        return "harder" if passes <= self.passes - self.limits.harder_by else "not-harder"


def new_question(reply: str) -> str | None:
    """The rewritten question in a reply: what follows the marker, up to an empty line, without asterisks; None without a
    marker."""
    text = reply.replace("*", "").replace("\r\n", "\n")
    marker = next((m for m in MARKERS if m in text), None)
    if marker is None:
        return None
    return text.split(marker, 1)[1].strip().split("\n\n", 1)[0].strip()


def quality(reply: str) -> int:
    """The score of a rewriting, 0 to 10, cut to a whole number; 0 if there is none."""
    match = SCORE.search(reply)
    return max(0, min(10, int(float(match[1])))) if match else 0


def explanation(reply: str) -> str:
    """Why a rewriting has its score; empty if nothing is said."""
    match = EXPLANATION.search(reply)
    return match[1].strip() if match else ""


def final_answer(reply: str) -> str | None:
    """The answer in a solver's reply: the content of its first box, or else its last line that isn't blank; None if there is
    none."""
    start = reply.find(BOX)
    if start >= 0:
        depth, begin = 1, start + len(BOX)
        for end in range(begin, len(reply)):
            depth += {"{": 1, "}": -1}.get(reply[end], 0)
            if not depth:
                return reply[begin:end].strip()
    lines = [line.strip() for line in reply.split("\n") if line.strip()]
    return lines[-1] if lines else None


def agrees(reply: str) -> bool:
    """Whether the model that compares two answers ends with TRUE: the last word of its reply that is TRUE or FALSE."""
    verdicts = [word for word in reply.strip().upper().split() if word in ("TRUE", "FALSE")]
    return bool(verdicts) and verdicts[-1] == "TRUE"
