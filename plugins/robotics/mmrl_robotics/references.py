"""Episodes of an expert that a progress critic learns from, or is shown as a reference.

VLAC (Zhai et al., A Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement Learning, arXiv 2509.15937) shows
its critic pictures of another episode of the task, each with its share of the way. Which pictures, and in which order, is as in
its code (InternRobotics/VLAC @71acb22: `trojectory_example_prompt`, `GAC_model.get_score_prompt`, `get_trajectory_critic`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mmrl import Message, UserError, user_message
from mmrl.api.services import expert_episodes, task_of
from mmrl.api.tasks.option_checks import check_integer, check_type

FRAMES = 6
"""Pictures of a reference (VLAC's README)."""
BEFORE = "In an earlier episode a robot did this: {instruction}. These are moments of it, with the share of the way."
BEGAN = "The other episode began here:"


class Episode(NamedTuple):
    """Data of a successful episode, or of its part with one instruction."""

    instruction: str
    """Without a full stop."""
    images: Any
    """uint8 NumPy [T + 1, H, W, 3]: before each of its T actions, and at the end."""


class Expert:
    """Plays the successful episodes of a task."""

    def __init__(self, task: str, options: Mapping[str, Any], camera: str = "", goal_pattern: str = "") -> None:
        """task, options: those of the task. camera: its name; the first when empty. goal_pattern: a regular expression that finds
        what an instruction asks for, by which goals are told apart; the whole instruction when empty. Raises UserError for
        what can't work."""
        for name, text in (("task", task), ("camera", camera), ("goal_pattern", goal_pattern)):
            check_type(name, text, str)
        try:
            self.pattern = re.compile(goal_pattern) if goal_pattern else None
        except re.error as error:
            raise UserError(f"goal_pattern = {goal_pattern!r:.100} is no regular expression: {error}") from None
        self.task, self.options, self.camera = task, dict(options), camera

    def episodes(self, count: int, split: str) -> list[Episode]:
        """Those of the first `count` episodes of a split in which the expert succeeded, each part with an instruction of its own
        as an episode. Raises UserError if there is none."""
        played = expert_episodes(self.task, self.options, count, split=split)
        try:
            found = [part for data, outcome in played.trajectories() if outcome["success"] for part in self._kept(data)]
        finally:
            played.close()
        if not found:
            raise UserError(f"the expert solved none of {count} episodes of {self.task!r}: play more, or another task")
        return found

    def goal(self, instruction: str) -> str:
        """What an instruction asks for. Raises UserError if `goal_pattern` doesn't find it."""
        if self.pattern is None:
            return instruction
        if (match := self.pattern.search(instruction)) is None:
            raise UserError(
                f"goal_pattern = {self.pattern.pattern!r:.100} finds nothing in {instruction!r:.100}, an instruction of task "
                f"{self.task!r}: give one that finds what each of them asks for, or leave it out"
            )
        return match[0]

    def _kept(self, data: Any) -> list[Episode]:
        if not data.images:
            raise UserError(f"episodes of task {self.task!r} have no pictures: choose one whose simulator renders")
        camera = self.camera or next(iter(data.images))
        if camera not in data.images:
            raise UserError(f"camera = {camera!r} is not a camera of the simulator: choose one of {', '.join(data.images)}")
        shown = data.images[camera].cpu().numpy()
        return [Episode(text.rstrip(". "), shown[begin : end + 1]) for text, begin, end in data.stretches]


class References:
    """Of each goal an episode of the expert, played on first use: the option `reference` of `robotics/progress`."""

    def __init__(self, option: Mapping[str, Any]) -> None:
        """option: a table with the id of the `task`, and optionally the number of `episodes` that are played for it (50), of
        `frames` that are shown of one (6), `camera`, `goal_pattern`, and that task's options. Raises UserError for others."""
        check_type("reference", option, Mapping, '{ task = "robotics/pick" }')
        left = dict(option)
        if "task" not in left:
            raise UserError('reference needs a task whose expert is shown, such as { task = "robotics/pick" }')
        self.count, self.frames = left.pop("episodes", 50), left.pop("frames", FRAMES)
        check_integer("reference.episodes", self.count, 1, 100_000)
        check_frames("reference.frames", self.frames)
        named = {name: left.pop(name, "") for name in ("task", "camera", "goal_pattern")}
        self.expert = Expert(named["task"], left, named["camera"], named["goal_pattern"])
        task_of(self.expert.task, left)
        self._of: dict[str, Episode] | None = None

    def of(self, instruction: str) -> Episode | None:
        """The first episode with the same goal; None without one."""
        if self._of is None:
            self._of = {}
            for episode in self.expert.episodes(self.count, "demo"):
                self._of.setdefault(self.expert.goal(episode.instruction), episode)
        return self._of.get(self.expert.goal(instruction))


def check_frames(name: str, value: int) -> None:
    """Raise UserError unless so many pictures can be shown of a reference."""
    check_integer(name, value, 2, 64)


def moments_shown(count: int, frames: int) -> list[int]:
    """Which `frames` of `count` moments are shown of a reference: from the first to the last at about equal distances."""
    distance = (count - 1) / (frames - 1)
    return [0, *(int(n * distance) for n in range(1, frames))]


def about_progress(question: str, reference: Episode | None, frames: int, began: Any, pair: Sequence[Any]) -> Message:
    """The message that asks for the progress between two moments. question: with its instruction. reference: an episode, of
    which `frames` pictures come first; without one, the message is the pair and the question. began: the picture at the beginning
    of the pair's episode, which is shown with a reference. pair: both pictures, in the order that is asked about."""
    if reference is None:
        return user_message(question, *pair)
    from PIL import Image

    moments = moments_shown(len(reference.images), frames)
    shares = [f"{int(n / (frames - 1) * 100)}%" for n in range(frames)]
    shown: list[tuple[str, Any]] = [(BEFORE.format(instruction=reference.instruction), None)]
    shown += [(f"{share}:", Image.fromarray(reference.images[m])) for share, m in zip(shares, moments, strict=True)]
    shown += [(BEGAN, began), ("The first picture:", pair[0]), ("The second picture:", pair[1]), (question, None)]
    content: list[dict[str, Any]] = []
    for text, picture in shown:
        content += [{"type": "text", "text": text}] + ([] if picture is None else [{"type": "image", "image": picture}])
    return {"role": "user", "content": content}
