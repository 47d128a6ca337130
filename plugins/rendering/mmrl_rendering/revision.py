"""Several tries: the policy sees the rendering of its code, or is told how it differs, and may write it again."""

from __future__ import annotations

from typing import Any

from PIL import Image

from mmrl import Case, Reply, Score, user_message
from mmrl.api.verifiers.parse import MAX_LENGTH, last_tag, thinks_and_answers_once, without_thinking
from mmrl_rendering import compare
from mmrl_rendering.code import Refused, render
from mmrl_rendering.teacher import Teacher

CALLS = (
    "Try your code as often as you like, at most {tries} times: write it in <tool_call> </tool_call> and you {seen}. "
    "Then answer with the final code in <answer> </answer>."
)


PAID_CALLS = 2
"""So many calls that draw a picture earn all that calls earn."""


class Redraw:
    """An episode about one picture. After each answer but the last the environment shows its rendering, or the error; with a
    teacher it tells the differences in words instead. With `calls`, tries are calls of a tool, and an answer ends the episode."""

    def __init__(
        self, code: str, turns: int, target: Image.Image, *, calls: bool = False, teacher: Teacher | None = None
    ) -> None:
        """code: the language. turns: maximum of answers. target: the picture. calls: code in a tool_call tag is tried, and an
        answer tag ends the episode. teacher: tells the differences."""
        self.code, self.left, self.target, self.calls, self.teacher = code, turns, target.convert("RGB"), calls, teacher
        self.waits = teacher is not None
        self.tried = self.drawn = 0

    def step(self, completion: str) -> Reply:
        self.left -= 1
        tried: str | None = completion
        if self.calls:
            tried = last_tag(said := without_thinking(completion[:MAX_LENGTH]), "tool_call")
            if "<answer>" in said:
                return Reply(terminated=True, outcome=self._outcome())
            self.tried += tried is not None
        if not self.left:
            return Reply(terminated=True, outcome=self._outcome())
        if tried is None:
            said = "Write code to try in <tool_call> </tool_call>, or the final code in <answer> </answer>."
            return Reply(messages=[user_message(said)], outcome=self._outcome())
        try:
            shown = render(tried, self.code, compare.rendered(self.target.size))
        except Refused as error:
            return Reply(messages=[user_message(f"That draws nothing: {error}. Write the code again.")], outcome=self._outcome())
        self.drawn += self.calls
        return Reply(messages=[self._feedback(shown)], outcome=self._outcome())

    def _feedback(self, shown: Image.Image) -> dict[str, object]:
        if self.teacher is None:
            return dict(user_message("This is what your code draws. Write it again, closer to the picture.", shown))
        same = shown if shown.size == self.target.size else shown.resize(self.target.size, Image.Resampling.BOX)
        words = self.teacher.differences(self.target, same)
        return dict(user_message(f"Your code draws a picture. How it differs from the one you were shown:\n{words}"))

    def _outcome(self) -> dict[str, float]:
        return {"calls": float(self.tried), "drawn": float(self.drawn)} if self.calls else {}

    def close(self) -> None:
        pass


class GoldCalls(Redraw):
    """With `calls`, an episode that also knows its right turns: two calls that draw, if there are turns for them, and the
    answer."""

    def __init__(self, *args: Any, call: str, answer: str, **options: Any) -> None:
        """call, answer: the gold completions."""
        super().__init__(*args, calls=True, **options)
        self.call, self.answer = call, answer

    def gold_turn(self) -> str:
        return self.call if self.left > 1 and self.drawn < PAID_CALLS else self.answer


def successful_calls(case: Case, most: int = PAID_CALLS) -> Score:
    """The share of `most` calls whose code drew a picture: RRVF's reward for the use of its tool, to which the paper's repository
    gives no formula. 0 without calls.

    Known exploits: drawing anything, twice; combine it with a reward for the result.
    """
    drawn = case.outcome.get("drawn", 0.0)
    return Score(min(drawn, most) / most, {}, f"{drawn:.0f} of {case.outcome.get('calls', 0.0):.0f} calls drew a picture")


def thinks_answers_and_draws(case: Case) -> Score:
    """1 for a thought and then one answer whose code draws a picture: RRVF's reward for the format, which an answer that can't be
    run loses. Known exploits: any picture earns it; combine it with a reward for its content."""
    if not thinks_and_answers_once(case.completion):
        return Score(0.0, {}, "not one thought and one answer in their tags")
    size = case.image_sizes[0] if case.image_sizes else (112, 112)
    try:
        render(case.completion, str(case.meta.get("code", "svg")), compare.reduced(size))
    except Refused as error:
        return Score(0.0, {}, str(error))
    return Score(1.0)
