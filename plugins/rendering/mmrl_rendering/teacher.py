"""A model behind an endpoint that looks at two pictures: the teacher, which tells the policy how its rendering differs, and what
it shares with the judge of the result.

Chen et al. 2025, "Learning Only with Images: Visual Reinforcement Learning with Reasoning, Rendering, and Visual Feedback"
(RRVF), arXiv 2507.20766. Its code and prompts are not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmrl import EnvironmentFailed
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.endpoints.client import Question
from mmrl.api.endpoints.judges import judge_endpoint
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.endpoints.options import AnswerOptions, Count
from mmrl_rendering import compare

Pair = tuple[Image.Image, Image.Image]
"""The target and a rendering, of the same size."""
DIFFERENCES = """The first picture is the target. The second is what somebody's code drew to reproduce it. Say how the second
differs from the first: kind of picture, layout, positions and shapes, colours, texts, numbers, what is missing and what is too
much. Name the most important difference first, in at most eight short sentences. Write no code. If nothing differs, say so."""
LONGEST = 4000
"""Characters of a teacher's words that the policy reads."""


@dataclass(kw_only=True)
class OnlookerOptions(AnswerOptions):
    max_pixels: Count | None = None
    """Size to which larger pictures are shrunk. Unset: no limit."""


class Onlooker:
    """A vision-language model behind an endpoint that is shown a target and a rendering."""

    instruction: str
    """What it is asked."""

    options_class = OnlookerOptions

    def __init__(self, **options: Any) -> None:
        """options: see `OnlookerOptions`. Raises UserError for ones that can't work."""
        own = OnlookerOptions(**options)
        self.encoder, self.max_tokens = ChatEncoder(max_pixels=own.max_pixels), own.max_tokens
        self.temperature, self.endpoint = own.temperature, judge_endpoint(own)

    def ask(self, pairs: Sequence[Pair]) -> list[Answer | NoAnswer]:
        """What the endpoint says of each pair. Not for a smoke run, which has no endpoint."""
        assert self.endpoint is not None
        return self.endpoint.ask([self._question(pair) for pair in pairs])

    def _question(self, pair: Pair) -> Question:
        parts = [*({"type": "image", "image": picture} for picture in pair), {"type": "text", "text": self.instruction}]
        messages, _ = self.encoder([{"role": "user", "content": parts}])
        return Question(messages=messages, max_tokens=self.max_tokens, temperature=self.temperature)


class Teacher(Onlooker):
    """Tells how a rendering differs from the target."""

    instruction = DIFFERENCES

    def differences(self, target: Image.Image, shown: Image.Image) -> str:
        """The teacher's words; in a smoke run the likeness of the pixels. Raises EnvironmentFailed where it has no answer."""
        if self.endpoint is None:
            return f"Of the target's pixels {compare.pixel(compare.pixels(target), compare.pixels(shown)):.0%} are reached."
        (answer,) = self.ask([(target, shown)])
        if isinstance(answer, NoAnswer):
            raise EnvironmentFailed(f"the teacher: {answer}")
        if not answer.text.strip():
            raise EnvironmentFailed("the teacher said nothing")
        return answer.text.strip()[:LONGEST]
