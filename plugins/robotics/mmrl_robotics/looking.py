"""Verifiers with a vision-language model that judges success of an episode, or progress from step to step.

T calls of the policy; an episode has T + 1 moments, before each call and at the end.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from mmrl import Case, Message, Score, Trajectory, UserError, user_message
from mmrl.api.services import Dtype, check_vision_language, vision_language
from mmrl.api.tasks.option_checks import check_integer
from mmrl_robotics.references import FRAMES, References, about_progress

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
    """The probability of yes, among yes and no, with which a vision-language model says that the instruction was carried out.

    Where the instruction changes within an episode, each part is judged under its own, and the value is the mean over the parts;
    the last call of a part is paid its share."""

    def __init__(
        self,
        *,
        model: str,
        question: str = "",
        frames: int = 1,
        camera: str = "",
        device: str = "auto",
        dtype: Dtype = "auto",
        batch_size: int = 16,
        max_pixels: int | None = None,
    ) -> None:
        """model: a folder, a hub name, or tiny. question: a yes/no question with {instruction} in it; mmrl's own when empty.
        frames: number of pictures, evenly spread over the episode, or over the part with one instruction; 1 is the final one.
        camera: its name; the first when empty. device: auto, cpu, cuda. dtype: auto, float32, bfloat16 or float16. batch_size:
        questions answered at once. max_pixels: larger pictures are shrunk."""
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
        questions: list[list[Message]] = []
        for case in cases:
            seen = pictures(case, self.camera)
            for text, begin, end in asked(case):
                moments = (begin + i for i in spread(end - begin + 1, self.frames))
                questions.append([user_message(self.question.format(instruction=text), *(seen[i] for i in moments))])
        chances = iter(self.model.answer_probabilities(questions, ("yes", "no"))[:, 0].tolist())
        return [self._score([(end, next(chances)) for *_, end in asked(case)]) for case in cases]

    def _score(self, parts: Sequence[tuple[int, float]]) -> Score:
        """parts: of each instruction the call after its last, and the probability of yes."""
        value = statistics.fmean(chance for _, chance in parts)
        if len(parts) == 1:
            return Score(value)
        steps = [0.0] * parts[-1][0]
        for end, chance in parts:
            steps[end - 1] = chance / len(parts)
        return Score(value, detail=", ".join(f"{chance:.2f}" for _, chance in parts), steps=tuple(steps))


class Progress:
    """The progress between moments by a vision-language model, -1 to 1 each; these are the rewards of the calls, and the value is
    their sum (Zhai et al., A Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement Learning).

    Where the instruction changes within an episode, each part has moments, an instruction and a reference of its own: a pair of
    moments never has a change between them."""

    def __init__(
        self,
        *,
        model: str,
        every: int = 1,
        says: Literal["number", "word"] = "number",
        question: str = "",
        reference: Mapping[str, Any] | None = None,
        camera: str = "",
        device: str = "auto",
        dtype: Dtype = "auto",
        batch_size: int = 16,
        max_pixels: int | None = None,
    ) -> None:
        """model: a folder, a hub name, or tiny. every: calls between the two moments of a pair. says: form of the model's answer:
        number, a percentage of the task, at most 100; word, yes or no, of which the progress is the probability of yes times 2,
        minus 1. question: about two pictures, with {instruction} in it; mmrl's own when empty. reference: a table with the id of
        a task, whose expert's episode with the same goal is shown before the pair; optionally with the number of episodes that
        are played, of frames that are shown, camera, goal_pattern (see robotics/progress-pairs) and that task's options. camera:
        its name; the first when empty. device: auto, cpu, cuda. dtype: auto, float32, bfloat16 or float16. batch_size: questions
        answered at once. max_pixels: larger pictures are shrunk."""
        asked: dict[str, Any] = {"every": every, "says": says, "question": question, "reference": reference, "camera": camera}
        self.check({}, model=model, **asked, device=device, batch_size=batch_size)
        self.references = None if reference is None else References(reference)
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
        reference: Mapping[str, Any] | None = None,
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
        if reference is not None:
            References(reference)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        questions: list[list[Message]] = []
        places: list[tuple[int, list[int], str]] = []
        for case in cases:
            seen = pictures(case, self.camera)
            ends: list[int] = []
            lacks = ""
            for text, begin, end in asked(case):
                moments = [begin + moment for moment in moments_of(end - begin, self.every)]
                question = self.question.format(instruction=text)
                shown = self.references.of(text) if self.references else None
                frames = self.references.frames if self.references else FRAMES
                if self.references and shown is None:
                    lacks = f"the expert has no episode with this goal: {text}"
                pairs = [(seen[a], seen[b]) for a, b in pairwise(moments)]
                questions += [[about_progress(question, shown, frames, seen[begin], pair)] for pair in pairs]
                ends += moments[1:]
            places.append((len(seen) - 1, ends, lacks))
        said = iter(self.deltas(questions))
        scores = []
        for calls, ends, lacks in places:
            steps = [0.0] * calls
            for moment in ends:  # the call before it led there
                steps[moment - 1] = next(said)
            scores.append(Score(sum(steps), detail=lacks, steps=tuple(steps)))
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
    """`wanted` of `count` moments at equal distances, always with the last, and with the first if there are several; all of them
    if there are fewer."""
    if wanted >= count:
        return list(range(count))
    return [count - 1] if wanted == 1 else [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]


def pictures(case: Case, camera: str = "") -> list[Any]:
    """The T + 1 pictures of an episode, as PIL images. Raises UserError if it has none of this camera."""
    from PIL import Image

    data = case.rollout.data if isinstance(case.rollout, Trajectory) else None
    if data is None or not data.images:
        raise UserError("the episode has no pictures: it needs a simulator that renders, not only states")
    camera = camera or next(iter(data.images))
    if camera not in data.images:
        raise UserError(f"camera {camera!r} is not in the episode: choose one of {', '.join(data.images)}")
    return [Image.fromarray(frame) for frame in data.images[camera].numpy()]


def asked(case: Case) -> list[tuple[str, int, int]]:
    """`TrajectoryData.stretches`, of which the instructions have no full stop, as the questions have it."""
    assert isinstance(case.rollout, Trajectory) and case.rollout.data is not None
    return [(text.rstrip(". "), begin, end) for text, begin, end in case.rollout.data.stretches]


def check_question(cameras: Mapping[str, Sequence[str]], question: str, camera: str) -> None:
    """Raise UserError for an invalid question or camera. cameras: label of a task -> names of its simulator's cameras."""
    check_cameras(cameras, camera)
    if question and "{instruction}" not in question:
        raise UserError("question must contain {instruction}, which the instruction replaces")
    formatted("question", question)


def check_cameras(cameras: Mapping[str, Sequence[str]], camera: str) -> None:
    for label, known in cameras.items():
        if not known:
            raise UserError(f"the simulator of task {label!r} has no cameras: this verifier needs pictures")
        if camera and camera not in known:
            raise UserError(f"camera = {camera!r} is not a camera of task {label!r}: choose one of {', '.join(known)}")


def formatted(name: str, text: str, instruction: str = "") -> str:
    """The text with the instruction in its place. Raises UserError for unknown braces."""
    try:
        return text.format(instruction=instruction)
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(f"{name} = {text[:60]!r}: only {{instruction}} is allowed in braces ({error})") from None
