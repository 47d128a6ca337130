"""Progress between two moments of an expert's episode: training data of a progress critic."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Prompt, Task, UserError
from mmrl.api.errors import is_finite
from mmrl.api.tasks.option_checks import LazyPrompts, check_integer, check_split
from mmrl_robotics.looking import PAIR
from mmrl_robotics.references import FRAMES, Episode, Expert, about_progress, check_frames

SOURCES = {"train": "demo", "test": "test"}
"""Split -> split of the episodes' task from which it is played."""


class ProgressPairs(Task):
    """Two moments in random order. The answer is the difference between the shares of actions that the expert had executed, in
    percent, so the answers of consecutive moments add up (time as a measure of progress: Zhai et al., A
    Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement Learning).

    Counter-examples have the answer 0: two moments with the instruction of an episode with another goal, and one moment twice.
    Before some pairs stand pictures of another episode with the same goal.

    The expert plays on first use of the prompts; episodes in which it failed are left out.
    """

    def __init__(
        self,
        *,
        task: str = "robotics/pick",
        episodes: int = 200,
        held_out: int = 50,
        pairs: int = 16,
        mismatched: float = 0.0,
        still: float = 0.0,
        referenced: float = 0.0,
        frames: int = FRAMES,
        goal_pattern: str = "",
        camera: str = "",
        **options: Any,
    ) -> None:
        """task: id of the task whose episodes are used. episodes, held_out: number of episodes for train and test. pairs: number
        for each episode. mismatched: share of them with the instruction of an episode with another goal. still: share that show
        one moment twice. referenced: share that come with a reference, an episode with the same goal, where there is one.
        frames: pictures of a reference. goal_pattern: a regular expression that finds what an instruction asks for, by which
        goals are told apart; the whole instruction when empty. camera: its name; the first when empty. options: those of that
        task."""
        for name, value in (("episodes", episodes), ("held_out", held_out), ("pairs", pairs)):
            check_integer(name, value, 1, 100_000)
        check_frames("frames", frames)
        for name, share in (("mismatched", mismatched), ("still", still), ("referenced", referenced)):
            if not is_finite(share) or not 0 <= share <= 1:
                raise UserError(f"{name} = {share!r:.60} must be a number from 0 to 1")
        if mismatched + still > 1:
            raise UserError(f"mismatched + still = {mismatched + still} is more than all pairs: let them sum to at most 1")
        self.expert = Expert(task, options, camera, goal_pattern)
        self.pairs, self.frames = pairs, frames
        self.mismatched, self.still, self.referenced = mismatched, still, referenced
        self.counts = {"train": episodes, "test": held_out}
        self._episodes: dict[str, list[Episode]] = {}

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        episodes = self._played(check_split(split, self.splits))
        goals: dict[str, list[int]] = {}
        if self.mismatched or self.referenced:
            for number, episode in enumerate(episodes):
                goals.setdefault(self.expert.goal(episode.instruction), []).append(number)
        if self.mismatched and len(goals) == 1:
            (goal,) = goals
            raise UserError(
                f"mismatched = {self.mismatched} needs two goals, and all {len(episodes)} episodes have {goal!r:.100}: play "
                "more, or set mismatched = 0"
            )
        return LazyPrompts(range(len(episodes) * self.pairs), lambda number: self._prompt(split, episodes, goals, number))

    def _prompt(self, split: str, episodes: list[Episode], goals: Mapping[str, Sequence[int]], number: int) -> Prompt:
        from PIL import Image

        which, pair = divmod(number, self.pairs)
        episode = episodes[which]
        moments, draw = len(episode.images), random.Random(f"{split} {which} {pair}")
        first, second = draw.sample(range(moments), 2)
        kind, has_reference = draw.random(), draw.random() < self.referenced
        told = episode
        if kind < self.still:
            second = first
        elif kind < self.still + self.mismatched:
            own = self.expert.goal(episode.instruction)
            told = draw.choice([other for other in episodes if self.expert.goal(other.instruction) != own])
        alike = [n for n in goals[self.expert.goal(told.instruction)] if n != which] if has_reference else []
        shown = [Image.fromarray(episode.images[moment]) for moment in (0, first, second)]
        reference = episodes[draw.choice(alike)] if alike else None
        question = PAIR.format(instruction=told.instruction)
        return Prompt(
            id=f"{split}-{which}-{pair}",
            messages=[about_progress(question, reference, self.frames, shown[0], shown[1:])],
            answer=round(100 * (second - first) / (moments - 1)) if told is episode else 0,
        )

    def _played(self, split: str) -> list[Episode]:
        if split not in self._episodes:
            self._episodes[split] = self.expert.episodes(self.counts[split], SOURCES[split])
        return self._episodes[split]
