"""The game of 24 in several turns: the policy gets the verdict and may answer again."""

from __future__ import annotations

from collections.abc import Callable

from mmrl import Case, Prompt, Reply, Score, user_message
from mmrl_vqa import generalpoints, points24


class Revisions:
    """An episode of one hand: after each wrong answer the verdict and another try, as in the sequential revision of GeneralPoints
    (Chu et al. 2025, section 4)."""

    def __init__(self, prompt: Prompt, turns: int, published: bool) -> None:
        """turns: maximum of answers. published: each wrong answer earns GeneralPoints' reward, the last one 1 less (the released
        code asks for one more answer, which it doesn't judge, and pays -1 for that); the verdict is told in its words. Otherwise
        only the judge's score of the last answer counts."""
        self.prompt, self.left, self.published = prompt, turns, published
        self.judge: Callable[[Case], Score] = generalpoints.reward if published else points24.points24

    def step(self, completion: str) -> Reply:
        self.left -= 1
        score = self.judge(Case(completion=completion, answer=self.prompt.answer, meta=self.prompt.meta))
        worth = score.value or 0.0
        if worth == (generalpoints.RIGHT if self.published else 1.0):
            return Reply(terminated=True)
        if not self.left:
            return Reply(terminated=True, reward=generalpoints.USED_UP if self.published else 0.0)
        if self.published:
            return Reply(messages=[user_message(f"You failed this trial because {score.detail}")], reward=worth)
        said = score.detail.strip(". ") or "no formula was found"
        return Reply(messages=[user_message(f"Not yet: {said}. Try again.")])

    def close(self) -> None:
        pass
