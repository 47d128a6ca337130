"""Verifiers that look at an episode: a vision-language model that says whether it is done, or from moment to moment how it goes.

T calls of the policy; an episode has T + 1 moments, before each call and at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from mmrl import Case, Score, Trajectory, UserError, user_message
from mmrl.api.services import check_vision_language, vision_language
from mmrl.api.tasks.option_checks import check_integer

DONE = (
    "This is how a robot left its task. Its instruction was: {instruction}. Has the robot done what the instruction says? "
    "Answer with yes or no."
)
WATCHED = (
    "These pictures show a robot at work, the oldest first. Its instruction is: {instruction}. At the last picture, has the "
    "robot done what the instruction says? Answer with yes or no."
)
PAIR = (  # also what robotics/progress-pairs asks
    "The first picture and the second picture are two moments of a robot at work. Its instruction is: {instruction}. By how many "
    "percent of the whole task is the second moment ahead of the first? A number below 0 says that it is behind. Answer with a "
    "number from -100 to 100."
)
WORDS = (
    "The first picture and the second picture are two moments of a robot at work. Its instruction is: {instruction}. Is the "
    "second moment closer to its end than the first? Answer with yes or no."
)


class Judge:
    """How likely a vision-language model is to say that the instruction was carried out: the chance of yes among yes and no."""

    def __init__(
        self,
        *,
        model: str,
        question: str = "",
        frames: int = 1,
        camera: str = "",
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        batch_size: int = 16,
        max_pixels: int | None = None,
    ) -> None:
        """model: a folder, a hub name, or tiny. question: with {instruction} in it, to be answered by yes or no; mmrl's own when
        empty. frames: how many moments are shown, spread over the episode; 1 shows how it was left. camera: whose pictures; the
        first when empty. device: auto, cpu, cuda. dtype: auto, float32 or bfloat16. batch_size: questions answered at once.
        max_pixels: larger pictures are shrunk."""
        self.check({}, model=model, question=question, frames=frames, camera=camera, device=device, batch_size=batch_size)
        self.question, self.frames, self.camera = question or (DONE if frames == 1 else WATCHED), frames, camera
        self.model = vision_language(model, device=device, dtype=dtype, batch_size=batch_size, max_pixels=max_pixels)

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        question: str = "",
        frames: int = 1,
        camera: str = "",
        device: str = "auto",
        batch_size: int = 16,
        **others: Any,
    ) -> None:
        check_vision_language(model, device=device, batch_size=batch_size)
        check_question(cameras, question, camera)
        check_integer("frames", frames, 1, 64)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        shown = [pictures(case, self.camera) for case in cases]
        questions = [
            [
                user_message(
                    self.question.format(instruction=instruction(case)), *(seen[i] for i in spread(len(seen), self.frames))
                )
            ]
            for case, seen in zip(cases, shown, strict=True)
        ]
        return [Score(chance) for chance in self.model.answer_probabilities(questions, ("yes", "no"))[:, 0].tolist()]


class Progress:
    """What a vision-language model says of the progress between moments, -1 to 1 each; the rewards are these differences, and the
    value is their sum (Zhai et al., A Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement Learning)."""

    def __init__(
        self,
        *,
        model: str,
        every: int = 1,
        says: Literal["number", "word"] = "number",
        question: str = "",
        camera: str = "",
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        batch_size: int = 16,
        max_pixels: int | None = None,
    ) -> None:
        """model: a folder, a hub name, or tiny. every: calls between the two moments of a pair. says: number, a percentage of the
        task, of which more than 100 counts as 100; word, where the progress is the chance of yes among yes and no, times 2,
        less 1. question: with {instruction} in it, asked of two pictures; mmrl's own when empty. camera: whose pictures; the
        first when empty. device: auto, cpu, cuda. dtype: auto, float32 or bfloat16. batch_size: questions answered at once.
        max_pixels: larger pictures are shrunk."""
        self.check(
            {}, model=model, every=every, says=says, question=question, camera=camera, device=device, batch_size=batch_size
        )
        self.question, self.says = question or (PAIR if says == "number" else WORDS), says
        self.every, self.camera = every, camera
        self.model = vision_language(model, device=device, dtype=dtype, batch_size=batch_size, max_pixels=max_pixels)

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        every: int = 1,
        says: str = "number",
        question: str = "",
        camera: str = "",
        device: str = "auto",
        batch_size: int = 16,
        **others: Any,
    ) -> None:
        check_vision_language(model, device=device, batch_size=batch_size)
        check_question(cameras, question, camera)
        check_integer("every", every, 1, 1_000_000)
        if says not in ("number", "word"):
            raise UserError(f"says = {says!r} is unknown: choose number or word")

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        questions, places = [], []
        for case in cases:
            seen = pictures(case, self.camera)
            moments = moments_of(len(seen) - 1, self.every)
            text = self.question.format(instruction=instruction(case))
            places.append((len(seen) - 1, moments))
            questions += [[user_message(text, seen[a], seen[b])] for a, b in pairwise(moments)]
        said = iter(self.deltas(questions))
        scores = []
        for calls, moments in places:
            steps = [0.0] * calls
            for moment in moments[1:]:  # it was reached by the call before it
                steps[moment - 1] = next(said)
            scores.append(Score(sum(steps), steps=tuple(steps)))
        return scores

    def deltas(self, questions: Sequence[Any]) -> list[float]:
        """The progress between the two pictures of each question, -1 to 1."""
        if self.says == "word":
            return [2 * chance - 1 for chance in self.model.answer_probabilities(questions, ("yes", "no"))[:, 0].tolist()]
        return [max(-1.0, min(1.0, number / 100)) for number in self.model.numbers(questions)]


def moments_of(calls: int, every: int) -> list[int]:
    """0, every, 2 every, ... and the end."""
    return [*range(0, calls, every), calls]


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of `count` moments at equal distances, the last one always and with more than one the first too; all of them where
    there are fewer."""
    if wanted >= count:
        return list(range(count))
    return [count - 1] if wanted == 1 else [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]


def pictures(case: Case, camera: str = "") -> list[Any]:
    """The T + 1 pictures of an episode, as PIL images. Raises UserError where it has none of this camera."""
    from PIL import Image

    data = case.rollout.data if isinstance(case.rollout, Trajectory) else None
    if data is None or not data.images:
        raise UserError("the episode has no pictures: it needs a simulator that renders, and not states alone")
    camera = camera or next(iter(data.images))
    if camera not in data.images:
        raise UserError(f"camera {camera!r} is none of the episode's: {', '.join(data.images)}")
    return [Image.fromarray(frame) for frame in data.images[camera].numpy()]


def instruction(case: Case) -> str:
    """What was to be done, without the full stop, which the question has."""
    assert isinstance(case.rollout, Trajectory) and case.rollout.data is not None
    return case.rollout.data.instruction.rstrip(". ")


def check_question(cameras: Mapping[str, Sequence[str]], question: str, camera: str) -> None:
    """Refuse what no verifier here can ask. cameras: label of a task -> the names of its simulator's cameras."""
    check_cameras(cameras, camera)
    if question and "{instruction}" not in question:
        raise UserError("question must hold {instruction}, where what was to be done goes")
    formatted("question", question)


def check_cameras(cameras: Mapping[str, Sequence[str]], camera: str) -> None:
    for label, known in cameras.items():
        if not known:
            raise UserError(f"the simulator of task {label!r} has no cameras, so there is nothing to look at")
        if camera and camera not in known:
            raise UserError(f"camera = {camera!r} is none of the simulator's of task {label!r}: {', '.join(known)}")


def formatted(name: str, text: str, instruction: str = "") -> str:
    """The text with the instruction in its place; UserError for braces that mean nothing."""
    try:
        return text.format(instruction=instruction)
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(f"{name} = {text[:60]!r}: in braces only {{instruction}} may stand ({error})") from None
