"""The nouns that flow through a run: Prompt -> Turn -> Rollout -> Case -> Score -> Batch.

Shape legend, used in every file: P prompts, G group, N = P * G rollouts, T turns, B packed rows,
S tokens in a row, L trained tokens, K action chunk, A action dims, V vocabulary, H hidden.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from mmrl.api.coordinates import CoordinateFormat

if TYPE_CHECKING:  # torch and pillow would make `import mmrl` slow
    import torch
    from PIL.Image import Image

    from mmrl.api.simulators.layout import Credited, Ratio
    from mmrl.api.simulators.types import TrajectoryData

Message = Mapping[str, Any]
"""One chat message: `{"role": ..., "content": [part, ...]}`; a part is `{"type": "text", "text": ...}` or
`{"type": "image", "image": PIL image or path}`, `{"type": "video", "video": mmrl.api.media.clips.Clip or Footage}`."""


def user_message(text: str, *media: Any) -> Message:
    """A user message: the pictures (PIL images or paths) and videos (`mmrl.api.media.clips.Clip` or `VideoFrames`), then the
    text."""
    from mmrl.api.media.clips import Clip, VideoFrames

    kinds = ["video" if isinstance(m, Clip | VideoFrames) else "image" for m in media]
    return {
        "role": "user",
        "content": [*({"type": k, k: m} for k, m in zip(kinds, media, strict=True)), {"type": "text", "text": text}],
    }


class Status(enum.StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    TRUNCATED_LENGTH = "truncated-length"
    TRUNCATED_TURNS = "truncated-turns"
    TRUNCATED_TIME = "truncated-time"
    ENVIRONMENT_ERROR = "environment-error"

    @property
    def is_truncated(self) -> bool:
        return self.value.startswith("truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem, as a task poses it."""

    messages: Sequence[Message]
    """What the policy is shown."""
    answer: Any = None
    """The truth. Verifiers see it, the policy never does."""
    id: str = ""
    """Unique and stable within the task; the same item has the same id on every machine."""
    task: str = ""
    """The task's id; the engine fills it in."""
    seed: int = 0
    """Fixes whatever the item's world draws at random."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Anything verifiers or people need besides; plain data that pickles."""

    @property
    def images(self) -> tuple[Any, ...]:
        """The images of all messages in order, as the task gave them (PIL images or paths)."""
        return self._shown("image")

    @property
    def videos(self) -> tuple[Any, ...]:
        """The videos of all messages in order, as the task gave them (`mmrl.api.media.clips.Clip` or `VideoFrames`)."""
        return self._shown("video")

    def without_media(self) -> Prompt:
        """The prompt without its pictures and videos."""
        kept = [
            m if isinstance(m["content"], str) else {**m, "content": [p for p in m["content"] if p["type"] == "text"]}
            for m in self.messages
        ]
        return replace(self, messages=kept)

    def _shown(self, kind: str) -> tuple[Any, ...]:
        return tuple(
            p[kind] for m in self.messages if not isinstance(m["content"], str) for p in m["content"] if p["type"] == kind
        )

    @property
    def text(self) -> str:
        """The text of all messages, for people and for checks."""
        return "\n".join(
            m["content"] if isinstance(m["content"], str) else "\n".join(p["text"] for p in m["content"] if p["type"] == "text")
            for m in self.messages
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: what was observed, what the policy sampled.

    An episode that its world cuts off ends with a turn that observes and samples nothing: by that observation a critic values the
    state in which it was left.
    """

    observed_ids: tuple[int, ...]
    """Token ids that the policy read before this turn; for turn 0 the whole encoded prompt."""
    token_ids: Sequence[int]
    """Token ids that the policy sampled, the end token included. Trained on as they are, never re-tokenised."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each sampled id (temperature applied); NaN where it wasn't sampled, as in a gold completion."""
    text: str
    """The sampled ids decoded, without special tokens: what a verifier reads."""
    reward: float = 0.0
    """Reward that the world gave during this turn; 0 for single-answer tasks."""
    action_rewards: tuple[float, ...] = ()
    """That of each action, where the turn is a chunk of several; its ids divide evenly among them. They add up to `reward`."""
    terminated: bool = True
    """The episode ended by itself."""
    truncated: bool = False
    """The episode was cut off by a limit."""
    policy_version: int = 0
    """The number of training steps that the sampling weights had seen."""
    messages: tuple[Message, ...] = ()
    """What the world said before this turn, for verifiers and people; `observed_ids` is how the policy read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a world says to a turn."""

    messages: Sequence[Message] = ()
    """What the policy is shown before its next turn, text and pictures; at the end nothing has to be said."""
    reward: float = 0.0
    """For this turn; the judge's score of the whole episode comes on top."""
    terminated: bool = False
    """The episode is over."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """What came of the episode so far, such as `{"success": 1.0}`; that of the last reply is what verifiers see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(abc.ABC):
    """One episode, and all that the engine asks of any kind of it: the episode protocol. `mmrl.api.episodes` has the two kinds,
    `Conversation` and `Trajectory`.

    A target is what credit is given to and what has a log-probability: a token or, in a simulator, a token, an action or a chunk,
    as the stage key `ratio` says. L targets of an episode, T calls of the policy (of a conversation its turns).
    """

    prompt: Prompt
    group: int
    """Rollouts with equal numbers answer the same prompt and are compared with each other."""
    status: Status
    is_stub: bool = False
    """A stub of an episode that another rank holds and trains on: it is counted here, see `to_stub`."""
    off_policy: bool = False
    """It was sampled from another prompt than it is trained on (one with a hint): the loss compares with the sampler's
    probabilities, and the gap between sampler and learner leaves it out."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """What came of an episode in a simulator: `success` (at any time), `success_at_end`, `return`, `steps`, and each of the
    simulator's parts at its best. In a conversation what its world says."""

    # -- what happened ----------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """Trained tokens: what the policy sampled, over all turns; in a simulator the choices that were carried out."""

    @property
    @abc.abstractmethod
    def num_calls(self) -> int:
        """T, 0 for an episode that was lost before anything happened in it. A verifier gives so many `Score.steps`."""

    @property
    @abc.abstractmethod
    def environment_reward(self) -> float:
        """The sum of what the world or the simulator paid."""

    @property
    @abc.abstractmethod
    def is_demonstration(self) -> bool:
        """It is a gold completion or an expert's episode and was not sampled."""

    @property
    @abc.abstractmethod
    def completion(self) -> str:
        """The text of the last turn in which something was sampled; empty in a simulator."""

    @property
    @abc.abstractmethod
    def turn_versions(self) -> Sequence[tuple[int, int]]:
        """(version of the sampling weights, number of sampled tokens) of each turn; empty in a simulator."""

    @property
    @abc.abstractmethod
    def bootstrap(self) -> float:
        """The value that the collector's critic gave to the state in which the episode was left; 0 where it gave none."""

    # -- credit -----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def num_targets(self, ratio: Ratio) -> int:
        """L."""

    @abc.abstractmethod
    def rewards(self, ratio: Ratio) -> torch.Tensor:
        """float64 [L], on the CPU: what the world or the simulator paid, each reward at the last target that it is for."""

    @abc.abstractmethod
    def ends(self, ratio: Ratio) -> Sequence[int]:
        """The last target of each call, T numbers."""

    @abc.abstractmethod
    def units(self, ratio: Ratio, credit: Credited) -> torch.Tensor:
        """int64 [L]: the number, from 0, of the unit of credit that each target belongs to."""

    @abc.abstractmethod
    def values(self, ratio: Ratio) -> torch.Tensor | None:
        """float32 [L], on the CPU: the values that the collector's critic gave while the episode went on; None without one."""

    # -- other forms of it ------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def to_stub(self, prompt: Prompt | None = None) -> Self:
        """A stub for other ranks, without pictures and without what only the model reads. prompt: its own without media, where
        that is at hand."""

    @abc.abstractmethod
    def portable(self) -> Self:
        """For verifiers in other processes: without what only the model reads, and with tensors of its own in main memory."""

    @abc.abstractmethod
    def answering(self, prompt: Prompt, inputs: Any) -> Self:
        """The same episode as one of another prompt than it was sampled from, to be trained on so. inputs: that prompt as the
        policy reads it."""

    def as_case(self) -> Case:
        """What verifiers see of it."""
        prompt = self.prompt
        return Case(
            completion=self.completion,
            answer=prompt.answer,
            meta=prompt.meta,
            status=self.status,
            media=prompt.images,
            outcome=self.outcome,
            rollout=self,
        )

    # -- for people -------------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def messages(self) -> Sequence[Message]:
        """All messages before the last thing that the policy said, and what followed it; in a simulator the instruction."""

    @property
    @abc.abstractmethod
    def summary(self) -> str:
        """The completion or, in a simulator, what came of the episode, in words."""

    @property
    @abc.abstractmethod
    def filmed(self) -> TrajectoryData | None:
        """What was seen in a simulator, for videos; None where there is nothing to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a verifier sees. It pickles: verifiers run in other processes."""

    completion: str
    """What the policy wrote: the text of its last turn, without special tokens."""
    answer: Any = None
    """The prompt's."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The prompt's."""
    status: Status = Status.FINISHED
    """`TRUNCATED_LENGTH` when the completion was cut off."""
    image_sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each original image, in pixels."""
    model_sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each image as the model saw it, in pixels."""
    coordinate_format: CoordinateFormat = CoordinateFormat.PIXELS
    """The frame in which this model writes coordinates."""
    media: tuple[Any, ...] = ()
    """The images as the task gave them; filled only for verifiers whose spec says `images=True`."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """`Rollout.outcome`."""
    rollout: Rollout | None = None
    """The whole episode; filled only for verifiers whose spec says `rollout=True`."""

    @property
    def images(self) -> list[Image]:
        """The original images, decoded now."""
        from mmrl.api.media.images import load_image

        return [load_image(m) for m in self.media]


@dataclass(frozen=True, slots=True)
class Score:
    """A verifier's verdict, or the judge's sum of several."""

    value: float | None
    """The reward; None when the verifier failed (raised, timed out, returned no finite number)."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named contributions, unweighted; the judge adds one per verifier id."""
    detail: str = ""
    """One line for people: why this value, or what failed."""
    steps: tuple[float, ...] = ()
    """How much of `value` each call of the policy earned (in a conversation each turn), one number for each: it is paid where
    that call ends. What is left of `value` is paid at the end; without `steps` that is all of it."""
    lost: bool = False
    """The episode's world or simulator broke, so that there is nothing to score: a failure that no verifier is to blame for."""

    def __post_init__(self) -> None:
        if self.lost and self.value is not None:
            raise ValueError(f"the score of a lost episode has no value, not {self.value!r}")

    @property
    def failed(self) -> bool:
        return self.value is None

    @property
    def status(self) -> Literal["ok", "failed", "lost"]:
        """`failed` for an answer that could not be scored, `lost` for an episode whose world broke."""
        return "lost" if self.lost else "failed" if self.failed else "ok"

    def as_json(self) -> dict[str, Any]:
        """`{"value", "parts", "status", "detail"}`, the format of `mmrl score` and of the run folder; `steps` too where there are
        some."""
        return {
            "value": self.value,
            "parts": dict(self.parts),
            "status": self.status,
            "detail": self.detail,
            **({"steps": list(self.steps)} if self.steps else {}),
        }


def verifier_value(score: Score, verifier: str = "") -> float | None:
    """How right an answer is: what a verifier gave it, None where it gave nothing; without one its whole reward, None where that
    failed."""
    return score.parts.get(verifier) if verifier and not score.failed else score.value


def add_part(score: Score, part: str, amount: float) -> Score:
    """The score with an amount added, under its own name; a failed one stays failed."""
    if score.value is None:
        return score
    return replace(score, value=score.value + amount, parts={**score.parts, part: amount})
