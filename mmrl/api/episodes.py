"""The two kinds of rollout: `Conversation` has turns, `Trajectory` has actions in a simulator. `mmrl.api.types.Rollout` defines
their common interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.media.content import State, text_and_media
from mmrl.api.simulators import layout
from mmrl.api.simulators.layout import Credited, Ratio
from mmrl.api.types import Case, Message, Prompt, Rollout, Turn, user_message

if TYPE_CHECKING:  # torch would make `import mmrl` slow
    import torch

    from mmrl.api.simulators.types import TrajectoryData

SAID = "said"
"""The key in `Prompt.meta` of a text that is appended to a simulator's instruction."""
GUIDED = "guided"
"""The key in `Prompt.meta` of the weight by which that text guides what the policy does; 1 if it isn't there."""


def plain_instruction(instruction: str, prompt: Prompt) -> str:
    """An instruction without the text of `SAID`."""
    said = prompt.meta.get(SAID, "")
    return instruction.removesuffix(f" {said}") if said else instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation(Rollout):
    """A prompt and the turns that followed; a single answer is one turn. Its targets are the sampled tokens, so `ratio` is
    always "token"."""

    turns: tuple[Turn, ...]
    inputs: Any = None
    """The prompt as model inputs (`mmrl.policies`). The whole group shares it, so media are processed once."""
    final_inputs: Any = None
    """Model inputs of everything before the last turn, images included; None if nothing was observed after the prompt."""
    media_rows: tuple[Mapping[str, int], ...] = ()
    """For each turn of an episode with an environment, the rows of each tensor of media in the model inputs before it."""
    routes: Any = None
    """The experts that its tokens went through when they were sampled (`mmrl.policies.vlm.routes`); None if they aren't known."""

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
        return any(t.logprobs for t in self.turns) and all(math.isnan(p) for t in self.turns for p in t.logprobs)

    @property
    def completion(self) -> str:
        return next((t.text for t in reversed(self.turns) if t.token_ids), "")

    @property
    def turn_versions(self) -> Sequence[tuple[int, int]]:
        return [(t.policy_version, len(t.token_ids)) for t in self.turns]

    @property
    def token_versions(self) -> Sequence[tuple[int, int]]:
        return [s for t in self.turns for s in t.token_versions or ((t.policy_version, len(t.token_ids)),)]

    @property
    def bootstrap(self) -> float:
        """0, since the update computes the values of tokens itself."""
        return 0.0

    def num_targets(self, ratio: Ratio) -> int:
        _check_tokens(ratio)
        return self.length

    def rewards(self, ratio: Ratio) -> torch.Tensor:
        """A turn's tokens are divided evenly among its actions, and each action's reward is at the last token of its part. The
        reward of a turn in which nothing was sampled is at the token before it."""
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

    @property
    def states(self) -> Sequence[State]:
        return [self._state(k) for k, turn in enumerate(self.turns) if turn.token_ids]

    def _state(self, k: int) -> State:
        """That of a turn; the first one's messages are the prompt's."""
        known = self.turns[k].state
        return text_and_media(self.turns[k].messages if k else self.prompt.messages) if known is None else known

    def values(self, ratio: Ratio) -> None:
        _check_tokens(ratio)

    def with_states(self) -> Conversation:
        return replace(self, turns=tuple(replace(turn, state=self._state(k)) for k, turn in enumerate(self.turns)))

    def to_stub(self, prompt: Prompt | None = None) -> Conversation:
        unsampled = (math.nan,) if self.is_demonstration else ()
        turns = tuple(_counted(turn, unsampled) for turn in self.turns)
        return replace(
            self,
            prompt=prompt or self.prompt.without_media(),
            turns=turns,
            inputs=None,
            final_inputs=None,
            routes=None,
            is_stub=True,
        )

    def portable(self) -> Conversation:
        return replace(self, inputs=None, final_inputs=None, routes=None)

    def answering(self, prompt: Prompt, inputs: Any) -> Conversation:
        if self.is_stub:
            return replace(self, prompt=prompt, off_policy=True)
        first = replace(self.turns[0], observed_ids=tuple(inputs.ids.tolist()))
        told = replace(self, prompt=prompt, inputs=inputs, turns=(first, *self.turns[1:]), routes=None, off_policy=True)
        if self.final_inputs is None:
            return told
        final = self.final_inputs.with_prompt(self.inputs, inputs)
        return replace(told, final_inputs=final, media_rows=tuple(map(self._moved(inputs), self.media_rows)))

    def _moved(self, inputs: Any) -> Callable[[Mapping[str, int]], Mapping[str, int]]:
        """What turns `media_rows` into those under a prompt with these inputs."""
        before, after = self.inputs.media_rows, inputs.media_rows

        def moved(rows: Mapping[str, int]) -> Mapping[str, int]:
            counts = {k: rows.get(k, 0) - before.get(k, 0) + after.get(k, 0) for k in {**after, **rows}}
            return {k: n for k, n in counts.items() if n}

        return moved

    def as_case(self) -> Case:
        read = self.final_inputs or self.inputs
        return replace(
            Rollout.as_case(self),
            image_sizes=getattr(read, "image_sizes", ()),
            model_sizes=getattr(read, "model_sizes", ()),
            coordinate_format=getattr(self.inputs, "coordinate_format", CoordinateFormat.PIXELS),
        )

    @property
    def messages(self) -> Sequence[Message]:
        messages = [*self.prompt.messages]
        last_sampled = max((k for k, turn in enumerate(self.turns) if turn.token_ids), default=0)
        for k, turn in enumerate(self.turns):
            messages += turn.messages
            if k < last_sampled:
                messages.append({"role": "assistant", "content": turn.text})
        return messages

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
    """The steps of the episode; None if the simulator failed, so that there is nothing to train on or to show."""
    version: int = 0
    """The policy version that acted."""

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
        return self.data is not None and not self.corrected and bool(self.data.logprobs_TKC.isnan().any())

    @property
    def corrected(self) -> bool:
        """Whether an expert or a person acted in the policy's place at some call."""
        return self.data is not None and self.data.corrected_T is not None and bool(self.data.corrected_T.any())

    @property
    def completion(self) -> str:
        return ""

    @property
    def turn_versions(self) -> Sequence[tuple[int, int]]:
        return ((self.version, self.data.length),) if self.data else ()

    @property
    def bootstrap(self) -> float:
        return self.data.bootstrap if self.data else 0.0

    def num_targets(self, ratio: Ratio) -> int:
        return layout.num_targets(self.data, ratio) if self.data else 0

    def rewards(self, ratio: Ratio) -> torch.Tensor:
        """Each action's reward at its last target; for chunks the sum of their actions' rewards."""
        import torch

        return layout.target_rewards(self.data, ratio).double().cpu() if self.data else torch.zeros(0, dtype=torch.float64)

    def ends(self, ratio: Ratio) -> Sequence[int]:
        return layout.call_ends(self.data, ratio).tolist() if self.data else ()

    def units(self, ratio: Ratio, credit: Credited) -> torch.Tensor:
        import torch

        return layout.credit_units(self.data, ratio, credit) if self.data else torch.zeros(0, dtype=torch.int64)

    def values(self, ratio: Ratio) -> torch.Tensor | None:
        data = self.data
        if data is None or data.values_TU is None:
            return None
        choices = data.logprobs_TKC.shape[-1]
        return layout.values_per_target(data.values_TU, data.valid_TK, choices, ratio, tokens_S=data.tokens_T).cpu()

    @property
    def states(self) -> Sequence[State]:
        if self.data is None:
            return ()
        return self.data.states or layout.states_of_calls(self.data)

    def with_states(self) -> Trajectory:
        return replace(self, data=self.data and replace(self.data, states=tuple(self.states)))

    def to_stub(self, prompt: Prompt | None = None) -> Trajectory:
        return replace(self, prompt=prompt or self.prompt.without_media(), data=self.data and self.data.stub, is_stub=True)

    def portable(self) -> Trajectory:
        return replace(self, data=self.data and self.data.portable)

    def answering(self, prompt: Prompt, inputs: Any) -> Trajectory:
        """Replaces the text that was appended to the instruction by the new prompt's, see `SAID`."""
        if self.data is None:
            return replace(self, prompt=prompt)

        def retold(text: str) -> str:
            return f"{plain_instruction(text, self.prompt)} {prompt.meta.get(SAID, '')}".strip()

        return replace(self, prompt=prompt, data=self.data.retold(retold))

    @property
    def messages(self) -> Sequence[Message]:
        return [user_message(self.data.script)] if self.data else []

    @property
    def summary(self) -> str:
        return outcome_text(self.outcome) if self.data else ""

    @property
    def filmed(self) -> TrajectoryData | None:
        return self.data if self.data and self.data.images else None


def outcome_text(outcome: Mapping[str, float]) -> str:
    """The outcome of an episode in a simulator in words; empty for one that was lost."""
    if not outcome:
        return ""
    end = "succeeded" if outcome.get("success") else "failed"
    return f"{end} after {outcome['steps']:.0f} steps, return {outcome['return']:.3g}"


def _check_tokens(ratio: Ratio) -> None:
    if ratio != "token":
        raise ValueError(f'a conversation has one target per token and no ratio = "{ratio}": use "token"')


def _counted(turn: Turn, logprobs: tuple[float, ...]) -> Turn:
    """The turn as other ranks need it: its text and length, without the ids, which would be most of what a step sends."""
    return replace(turn, observed_ids=(), token_ids=range(len(turn.token_ids)), logprobs=logprobs, messages=())
