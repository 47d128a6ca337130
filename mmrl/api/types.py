"""The data types of a run, in the order of its data flow: Prompt -> Turn -> Rollout -> Case -> Score -> Batch.

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
from mmrl.api.errors import is_finite

if TYPE_CHECKING:  # torch and pillow would make `import mmrl` slow
    import torch
    from PIL.Image import Image

    from mmrl.api.media.content import State
    from mmrl.api.simulators.layout import Credited, Ratio
    from mmrl.api.simulators.types import TrajectoryData

Message = Mapping[str, Any]
"""One chat message: `{"role": ..., "content": [part, ...]}`; a part is `{"type": "text", "text": ...}` or
`{"type": "image", "image": PIL image or path}`, `{"type": "video", "video": mmrl.api.media.clips.Clip or VideoFrames}`,
`{"type": "audio", "audio": mmrl.api.media.sounds.SoundClip, Waveform or path}`."""


def user_message(text: str, *media: Any) -> Message:
    """Make a user message: the images (PIL images or paths), videos (`mmrl.api.media.clips.Clip` or `VideoFrames`) and sounds
    (`mmrl.api.media.sounds.SoundClip` or `Waveform`), then the text."""
    from mmrl.api.media.clips import Clip, VideoFrames
    from mmrl.api.media.sounds import SoundClip, Waveform

    def kind(of: Any) -> str:
        return "video" if isinstance(of, Clip | VideoFrames) else "audio" if isinstance(of, SoundClip | Waveform) else "image"

    kinds = [kind(m) for m in media]
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

    @property
    def is_cut_off(self) -> bool:
        """A limit of turns or time ended the episode, and more would have come; an answer that is too long is scored as it is."""
        return self in (Status.TRUNCATED_TURNS, Status.TRUNCATED_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a task, with its answer."""

    messages: Sequence[Message]
    """The messages that the policy reads."""
    answer: Any = None
    """The ground truth. Verifiers see it, the policy never does."""
    id: str = ""
    """Unique and stable within the task; the same item has the same id on every machine."""
    task: str = ""
    """The task's id, filled in by mmrl."""
    seed: int = 0
    """Seed of the prompt's environment or simulator episode."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Further data for verifiers or people; plain data that pickles."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of functions that the policy may call, `{"type": "function", "function": {"name", "description", "parameters"}}`
    each: the model's chat template shows them."""

    @property
    def images(self) -> tuple[Any, ...]:
        """The images of all messages in order, as the task gave them (PIL images or paths)."""
        return self._shown("image")

    @property
    def videos(self) -> tuple[Any, ...]:
        """The videos of all messages in order, as the task gave them (`mmrl.api.media.clips.Clip` or `VideoFrames`)."""
        return self._shown("video")

    @property
    def sounds(self) -> tuple[Any, ...]:
        """The sounds of all messages in order, as the task gave them (`mmrl.api.media.sounds.SoundClip`, `Waveform` or paths)."""
        return self._shown("audio")

    def without_media(self) -> Prompt:
        """The prompt without its images, videos and sounds."""
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
    """One turn of a conversation: the observation that the policy read, and the tokens that it sampled.

    An episode that its environment truncates ends with a turn that has an observation and no sampled tokens; the critic computes
    the value of the last state from it.
    """

    observed_ids: tuple[int, ...]
    """Token ids that the policy read before this turn; for turn 0 the whole encoded prompt."""
    token_ids: Sequence[int]
    """Token ids of what the policy wrote, the end token included. Training uses these ids; the text is never tokenised again."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id (temperature applied); NaN for ids that weren't sampled: gold ones, a rule's words."""
    text: str
    """The sampled ids decoded, without special tokens; verifiers read this."""
    reward: float = 0.0
    """Reward that the environment gave for this turn; 0 for tasks without an environment."""
    action_rewards: tuple[float, ...] = ()
    """Reward of each action, if the turn is a chunk of several actions; its ids divide evenly among them. The sum is `reward`."""
    terminated: bool = True
    """The episode ended by itself after this turn."""
    truncated: bool = False
    """A limit cut the episode off after this turn."""
    policy_version: int = 0
    """Number of training steps of the weights that sampled this turn; of the oldest if it was interrupted."""
    token_versions: tuple[tuple[int, int], ...] = ()
    """(number of training steps of the weights, number of tokens) of each stretch of sampled ids, in their order, if the turn was
    interrupted by new weights; empty otherwise."""
    messages: tuple[Message, ...] = ()
    """The environment's messages before this turn, for verifiers and people; `observed_ids` are their tokens."""
    state: State | None = None
    """The state in which this turn began, if its environment names its states; see `Environment`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply of an environment to a turn."""

    messages: Sequence[Message] = ()
    """The messages that the policy reads before its next turn, text and images; may be empty at the end."""
    reward: float = 0.0
    """Reward of this turn; the judge's score of the whole episode is added to it."""
    terminated: bool = False
    """The episode is over."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """Results of the episode so far, such as `{"success": 1.0}`; verifiers see those of the last reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(abc.ABC):
    """One episode: the common interface of its two kinds, `Conversation` and `Trajectory` in `mmrl.api.episodes`.

    A target is the unit that has a log-probability and an advantage: a token in a conversation; in a simulator a token, an action
    or a chunk, depending on the stage key `ratio`. L targets of an episode, T calls of the policy (in a conversation its turns).
    """

    prompt: Prompt
    group: int
    """Index of the group: rollouts with the same index answer the same prompt and are compared with each other."""
    status: Status
    is_stub: bool = False
    """Another rank holds this rollout and trains on it; here it only counts in statistics, see `to_stub`."""
    off_policy: bool = False
    """It was sampled from another prompt than it is trained on (such as one with a hint). The loss uses the sampler's
    probabilities for the ratio, and the metric of the gap between sampler and learner leaves the rollout out."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """Results of the episode. In a simulator: `success` (at any time), `success_at_end`, `return`, `steps`, and the maximum of
    each of the simulator's parts. In a conversation: `Reply.outcome` of the last reply."""

    # -- what happened ----------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """Number of sampled tokens over all turns; in a simulator the number of choices that were carried out."""

    @property
    @abc.abstractmethod
    def num_calls(self) -> int:
        """T; 0 for an episode that failed before the first call. A verifier's `Score.steps` has T numbers."""

    @property
    @abc.abstractmethod
    def environment_reward(self) -> float:
        """The sum of the rewards of the environment or the simulator."""

    @property
    @abc.abstractmethod
    def is_demonstration(self) -> bool:
        """Whether it is a gold completion or an expert's episode, and was not sampled."""

    @property
    @abc.abstractmethod
    def completion(self) -> str:
        """The text of the last turn in which something was sampled; empty in a simulator."""

    @property
    @abc.abstractmethod
    def turn_versions(self) -> Sequence[tuple[int, int]]:
        """(policy version that sampled the turn, number of sampled tokens) for each turn; in a simulator for the episode."""

    @property
    def token_versions(self) -> Sequence[tuple[int, int]]:
        """(policy version, number of tokens that it sampled) for each stretch of tokens of one version; a turn has several if new
        weights interrupted it."""
        return self.turn_versions

    @property
    @abc.abstractmethod
    def bootstrap(self) -> float:
        """The value of the last state by the collector's critic, for bootstrapping; 0 without one."""

    # -- credit -----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def num_targets(self, ratio: Ratio) -> int:
        """L, the number of targets."""

    @abc.abstractmethod
    def rewards(self, ratio: Ratio) -> torch.Tensor:
        """float64 [L], on the CPU: the rewards of the environment or the simulator, each at the last target that it is for."""

    @abc.abstractmethod
    def ends(self, ratio: Ratio) -> Sequence[int]:
        """Index of the last target of each call, T numbers."""

    @abc.abstractmethod
    def units(self, ratio: Ratio, credit: Credited) -> torch.Tensor:
        """int64 [L]: index, from 0, of the credit unit that each target belongs to."""

    @property
    @abc.abstractmethod
    def states(self) -> Sequence[State]:
        """The state before each call that has targets, in the order of `units(ratio, "turn")`: the name that an environment gave
        it, or else what the policy saw."""

    @abc.abstractmethod
    def values(self, ratio: Ratio) -> torch.Tensor | None:
        """float32 [L], on the CPU: the values of the collector's critic during the episode; None without one."""

    # -- other forms ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def with_states(self) -> Self:
        """The same, whose stub still knows its `states`."""

    @abc.abstractmethod
    def to_stub(self, prompt: Prompt | None = None) -> Self:
        """A stub for other ranks, without images and model inputs. prompt: the rollout's without media, if it was made."""

    @abc.abstractmethod
    def portable(self) -> Self:
        """A copy for verifiers in other processes: without model inputs, and with its own tensors in main memory."""

    @abc.abstractmethod
    def answering(self, prompt: Prompt, inputs: Any) -> Self:
        """The same episode as an answer to another prompt, to train on it. inputs: that prompt as model inputs."""

    def as_case(self) -> Case:
        """The case that verifiers get."""
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
        """All messages except the policy's last sampled turn; in a simulator the instruction."""

    @property
    @abc.abstractmethod
    def summary(self) -> str:
        """The completion or, in a simulator, the outcome of the episode as text."""

    @property
    @abc.abstractmethod
    def filmed(self) -> TrajectoryData | None:
        """The data of an episode with camera images, for videos; None otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The input of a verifier. It pickles, since verifiers run in other processes."""

    completion: str
    """The text of the policy's last turn, without special tokens."""
    answer: Any = None
    """`Prompt.answer`."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`Prompt.meta`."""
    status: Status = Status.FINISHED
    """How the episode ended; `TRUNCATED_LENGTH` if the completion was cut off."""
    image_sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each original image, in pixels."""
    model_sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each image as the model saw it, in pixels."""
    coordinate_format: CoordinateFormat = CoordinateFormat.PIXELS
    """The format in which this model writes coordinates."""
    media: tuple[Any, ...] = ()
    """The images as the task gave them; filled only for verifiers whose spec has `images=True`."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """`Rollout.outcome`."""
    rollout: Rollout | None = None
    """The whole episode; filled only for verifiers whose spec has `rollout=True`."""

    @property
    def images(self) -> list[Image]:
        """The original images, decoded now."""
        from mmrl.api.media.images import load_image

        return [load_image(m) for m in self.media]


@dataclass(frozen=True, slots=True)
class Score:
    """A verifier's score, or the judge's weighted sum of several."""

    value: float | None
    """The reward; None when the verifier failed (raised, timed out, returned no finite number)."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Name -> unweighted contribution; the judge adds one per verifier id."""
    detail: str = ""
    """One line for people: the reason for this value, or what failed."""
    steps: tuple[float, ...] = ()
    """The share of `value` that each call of the policy (in a conversation each turn) earned, one number per call, given as
    reward at the end of that call. The rest of `value`, without `steps` all of it, is given at the end of the episode."""
    lost: bool = False
    """The episode's environment or simulator failed, so there is nothing to score. This is no failure of a verifier."""

    def __post_init__(self) -> None:
        if self.lost and self.value is not None:
            raise ValueError(f"the score of a lost episode has no value, not {self.value!r}")

    @property
    def failed(self) -> bool:
        return self.value is None

    @property
    def status(self) -> Literal["ok", "failed", "lost"]:
        """`failed` for an answer that could not be scored, `lost` for an episode whose environment or simulator failed."""
        return "lost" if self.lost else "failed" if self.failed else "ok"

    def as_json(self) -> dict[str, Any]:
        """`{"value", "parts", "status", "detail"}`, the format of `mmrl score` and of the run folder; with `steps` if there are
        any."""
        return {
            "value": self.value,
            "parts": dict(self.parts),
            "status": self.status,
            "detail": self.detail,
            **({"steps": list(self.steps)} if self.steps else {}),
        }


def verifier_value(score: Score, verifier: str = "") -> float | None:
    """The value that one verifier gave, or the whole reward if `verifier` is empty; None if it failed or is missing."""
    return score.parts.get(verifier) if verifier and not score.failed else score.value


def add_part(score: Score, part: str, amount: float) -> Score:
    """The score with an amount added as a part of this name; a failed score stays failed. Raises ValueError for an amount that is
    no finite number."""
    if not is_finite(amount):
        raise ValueError(f"{part!r} of a score must be a finite number, not {amount!r:.60}")
    if score.value is None:
        return score
    return replace(score, value=score.value + amount, parts={**score.parts, part: amount})
