"""The two kinds of episode: `Conversation`, of turns, and `Trajectory`, of actions in a simulator. `mmrl.api.types.Rollout` says
what the engine asks of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.simulators import layout
from mmrl.api.simulators.layout import Credited, Ratio
from mmrl.api.types import Case, Message, Prompt, Rollout, Turn, user_message

if TYPE_CHECKING:  # torch would make `import mmrl` slow
    import torch

    from mmrl.api.simulators.types import TrajectoryData

SAID = "said"
"""The key in `Prompt.meta` of a text that follows the instruction of a simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation(Rollout):
    """A prompt and the turns that followed; of a single answer one turn. Its targets are the sampled tokens, so that `ratio` is
    always "token"."""

    turns: tuple[Turn, ...]
    inputs: Any = None
    """The prompt as the model reads it (`mmrl.policies`), shared by the whole group: media are processed once."""
    final_inputs: Any = None
    """The same of all that came before the last turn, in an episode whose later turns were observed; it has their pictures."""

    @property
    def length(self) -> int:
        return sum(len(t.token_ids) for t in self.turns)

    @property
    def num_calls(self) -> int:
        return len(self.turns)

    @property
    def environment_reward(self) -> float:
        return sum(t.reward for t in self.turns)

    @property
    def is_demonstration(self) -> bool:
        return any(math.isnan(p) for t in self.turns for p in t.logprobs)

    @property
    def completion(self) -> str:
        return next((t.text for t in reversed(self.turns) if t.token_ids), "")

    @property
    def turn_versions(self) -> Sequence[tuple[int, int]]:
        return [(t.policy_version, len(t.token_ids)) for t in self.turns]

    @property
    def bootstrap(self) -> float:
        """0: values of tokens are measured in the update's own passes."""
        return 0.0

    def num_targets(self, ratio: Ratio) -> int:
        _check_tokens(ratio)
        return self.length

    def rewards(self, ratio: Ratio) -> torch.Tensor:
        """Those of a turn's actions stand at the last token of each, the tokens divided evenly among them; what is paid for a
        turn in which nothing was sampled stands at the token before it."""
        import torch

        paid, end = [0.0] * self.num_targets(ratio), 0
        for turn in self.turns if paid else ():
            size, steps = len(turn.token_ids), turn.action_rewards or (turn.reward,)
            for k, reward in enumerate(steps, 1):
                paid[max(end - (-size * k // len(steps)) - 1, 0)] += reward
            end += size
        return torch.tensor(paid, dtype=torch.float64)

    def ends(self, ratio: Ratio) -> Sequence[int]:
        _check_tokens(ratio)
        ends, end = [], 0
        for turn in self.turns:
            end += len(turn.token_ids)
            ends.append(max(end - 1, 0))
        return ends

    def units(self, ratio: Ratio, credit: Credited) -> torch.Tensor:
        import torch

        if credit == "token":
            return torch.arange(self.num_targets(ratio))
        units: list[int] = []
        for turn in self.turns:
            size, first = len(turn.token_ids), units[-1] + 1 if units else 0
            pieces = max(len(turn.action_rewards), 1) if credit == "action" else 1
            units += [first + t * pieces // size for t in range(size)]
        return torch.tensor(units, dtype=torch.int64)

    def values(self, ratio: Ratio) -> None:
        _check_tokens(ratio)

    def to_stub(self, prompt: Prompt | None = None) -> Conversation:
        turns = tuple(_counted(turn) for turn in self.turns)
        return replace(
            self, prompt=prompt or self.prompt.without_media(), turns=turns, inputs=None, final_inputs=None, is_stub=True
        )

    def portable(self) -> Conversation:
        return replace(self, inputs=None, final_inputs=None)

    def answering(self, prompt: Prompt, inputs: Any) -> Conversation:
        if self.is_stub:
            return replace(self, prompt=prompt, off_policy=True)
        first = replace(self.turns[0], observed_ids=tuple(inputs.ids.tolist()))
        return replace(self, prompt=prompt, inputs=inputs, turns=(first, *self.turns[1:]), off_policy=True)

    def as_case(self) -> Case:
        read = self.final_inputs or self.inputs
        return replace(
            Rollout.as_case(self),
            image_sizes=getattr(read, "image_sizes", ()),
            model_sizes=getattr(read, "model_sizes", ()),
            coordinate_format=getattr(self.inputs, "frame", CoordinateFormat.PIXELS),
        )

    @property
    def messages(self) -> Sequence[Message]:
        found = [*self.prompt.messages]
        said = max((k for k, turn in enumerate(self.turns) if turn.token_ids), default=0)
        for k, turn in enumerate(self.turns):
            found += turn.messages
            if k < said:
                found.append({"role": "assistant", "content": turn.text})
        return found

    @property
    def summary(self) -> str:
        return self.completion

    @property
    def filmed(self) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(Rollout):
    """An episode in a simulator."""

    data: TrajectoryData | None
    """What happened; None where the simulator was lost, so that there is nothing to learn from and nothing to see."""

    @property
    def length(self) -> int:
        return self.data.length if self.data else 0

    @property
    def num_calls(self) -> int:
        return len(self.data.valid_TK) if self.data else 0

    @property
    def environment_reward(self) -> float:
        return self.data.reward if self.data else 0.0

    @property
    def is_demonstration(self) -> bool:
        return self.data is not None and bool(self.data.logprobs_TKC.isnan().any())

    @property
    def completion(self) -> str:
        return ""

    @property
    def turn_versions(self) -> Sequence[tuple[int, int]]:
        return ()

    @property
    def bootstrap(self) -> float:
        return self.data.bootstrap if self.data else 0.0

    def num_targets(self, ratio: Ratio) -> int:
        return layout.num_targets(self.data, ratio) if self.data else 0

    def rewards(self, ratio: Ratio) -> torch.Tensor:
        """Each action's at its last target; of a chunk the sum."""
        import torch

        return layout.target_rewards(self.data, ratio).double().cpu() if self.data else torch.zeros(0, dtype=torch.float64)

    def ends(self, ratio: Ratio) -> Sequence[int]:
        return layout.call_ends(self.data, ratio).tolist() if self.data else ()

    def units(self, ratio: Ratio, credit: Credited) -> torch.Tensor:
        import torch

        return layout.credit_units(self.data, ratio, credit) if self.data else torch.zeros(0, dtype=torch.int64)

    def values(self, ratio: Ratio) -> torch.Tensor | None:
        track = self.data
        if track is None or track.values_TU is None:
            return None
        return layout.values_per_target(track.values_TU, track.valid_TK, track.logprobs_TKC.shape[-1], ratio).cpu()

    def to_stub(self, prompt: Prompt | None = None) -> Trajectory:
        return replace(self, prompt=prompt or self.prompt.without_media(), data=self.data and self.data.stub, is_stub=True)

    def portable(self) -> Trajectory:
        return replace(self, data=self.data and self.data.portable)

    def answering(self, prompt: Prompt, inputs: Any) -> Trajectory:
        """The instruction ends as the prompt says."""
        if self.data is None:
            return replace(self, prompt=prompt)
        plain = self.data.instruction.removesuffix(f" {self.prompt.meta.get(SAID, '')}")
        said = f"{plain} {prompt.meta.get(SAID, '')}".strip()
        return replace(self, prompt=prompt, data=replace(self.data, instruction=said))

    @property
    def messages(self) -> Sequence[Message]:
        return [user_message(self.data.instruction)] if self.data else []

    @property
    def summary(self) -> str:
        if self.data is None:
            return ""
        end = "succeeded" if self.outcome.get("success") else "failed"
        return f"{end} after {self.outcome['steps']:.0f} steps, return {self.outcome['return']:.3g}"

    @property
    def filmed(self) -> TrajectoryData | None:
        return self.data if self.data and self.data.images else None


def _check_tokens(ratio: Ratio) -> None:
    if ratio != "token":
        raise ValueError(f'a conversation has a target for each token, and no ratio = "{ratio}"')


def _counted(turn: Turn) -> Turn:
    """A turn of which others need its text and how long it was: its ids would be most of what a step sends."""
    unsampled = (math.nan,) if any(math.isnan(p) for p in turn.logprobs) else ()
    return replace(turn, observed_ids=(), token_ids=range(len(turn.token_ids)), logprobs=unsampled, messages=())
