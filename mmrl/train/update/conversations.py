"""A memory of whole conversations as the model reads them, so that a policy can learn from them again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.types import Prompt, Status, Turn
from mmrl.policies.turn_states import TurnStates
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vision_cache import GRIDS, numbered
from mmrl.train.update.digested import read, write


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A conversation, and what critics of turns saw of it."""

    rollout: Conversation
    """Each turn's reward has its part of the score, and nothing else of the score is kept."""
    states: TurnStates

    def __len__(self) -> int:
        """Number of answers."""
        return len(self.states.said_TH)

    def observation(self, number: int) -> PromptInputs:
        """What the policy read before its answer of this number."""
        rollout = self.rollout
        turn = [k for k, t in enumerate(rollout.turns) if t.token_ids][number]
        first: PromptInputs = rollout.inputs
        if not turn:
            return first
        read = sum(len(t.token_ids) + len(after.observed_ids) for t, after in pairwise(rollout.turns[: turn + 1]))
        return _until(rollout.final_inputs, len(first.ids) + read, rollout.media_rows[turn])


def remembered(rollout: Conversation, states: TurnStates, rewards_T: torch.Tensor) -> Remembered:
    """What is kept of an episode. rewards_T: what each answer was paid, its part of the score included."""
    paid = iter(rewards_T.tolist())
    turns = [replace(t, reward=next(paid) if t.token_ids else 0.0, action_rewards=(), messages=()) for t in rollout.turns]
    prompt = Prompt(id=rollout.prompt.id, task=rollout.prompt.task, messages=[])
    kept = replace(rollout, prompt=prompt, turns=tuple(turns), off_policy=True, outcome={}, routes=None)
    return Remembered(rollout=kept, states=states)


class Conversations:
    """The newest conversations of a run."""

    def __init__(self, capacity: int) -> None:
        """capacity: answers; older conversations are dropped as a whole."""
        self.capacity, self.kept = capacity, deque[Remembered]()

    def __len__(self) -> int:
        """Number of answers."""
        return sum(map(len, self.kept))

    def add(self, episode: Remembered) -> None:
        self.kept.append(episode)
        while len(self.kept) > 1 and len(self) > self.capacity:
            self.kept.popleft()

    def save(self, path: Path) -> None:
        """Write the memory to a file, atomically."""
        tensors: dict[str, torch.Tensor] = {}
        told = []
        for n, episode in enumerate(self.kept):
            rollout = episode.rollout
            tensors |= {f"{n}/{name}": x.contiguous().clone() for name, x in _plain(episode).items()}
            seen = [dict(rows) for rows in rollout.media_rows]
            told.append([rollout.prompt.task, rollout.prompt.id, rollout.status.value, len(rollout.turns), seen])
        write(path, tensors, {"told": json.dumps(told), "capacity": str(self.capacity)})

    def load(self, path: Path) -> None:
        """Go on with what `save` wrote. Raises UserError for a file that is torn, or of another capacity."""
        marks, tensors = read(path, "file of conversations", f"runs/NAME/checkpoints/step-.../{path.name}")
        if int(marks["capacity"]) != self.capacity:
            raise UserError(f"{path} has capacity = {marks['capacity']}, and this run {self.capacity}: make them equal")
        own: dict[str, dict[str, torch.Tensor]] = {}
        for name, x in tensors.items():
            number, _, rest = name.partition("/")
            own.setdefault(number, {})[rest] = x
        self.kept.clear()
        for n, (task, id, status, count, seen) in enumerate(json.loads(marks["told"])):
            prompt = Prompt(id=id, task=task, messages=[])
            episode = _episode(prompt, Status(status), count, own[str(n)])
            self.kept.append(replace(episode, rollout=replace(episode.rollout, media_rows=tuple(seen))))


def _plain(episode: Remembered) -> dict[str, torch.Tensor]:
    rollout, states = episode.rollout, episode.states
    found = {"seen": states.seen_TH, "said": states.said_TH}
    for k, turn in enumerate(rollout.turns):
        found |= {
            f"turn/{k}/observed": torch.tensor(turn.observed_ids, dtype=torch.int64),
            f"turn/{k}/tokens": torch.tensor(list(turn.token_ids), dtype=torch.int64),
            f"turn/{k}/logprobs": torch.tensor(turn.logprobs, dtype=torch.float64),
            f"turn/{k}/reward": torch.tensor(turn.reward, dtype=torch.float64),
        }
    for name, inputs in (("inputs", rollout.inputs), ("final_inputs", rollout.final_inputs)):
        if inputs is not None:
            found |= {f"{name}/ids": inputs.ids} | ({} if inputs.positions is None else {f"{name}/positions": inputs.positions})
            found |= {f"{name}/media/{key}": x for key, x in inputs.media.items()}
            found |= {f"{name}/types/{key}": x for key, x in inputs.token_types.items()}
            found |= {f"{name}/clocks/{key}": x for key, x in inputs.clocks.items()}
    return found


def _episode(prompt: Prompt, status: Status, count: int, tensors: Mapping[str, torch.Tensor]) -> Remembered:
    turns = [
        Turn(
            observed_ids=tuple(tensors[f"turn/{k}/observed"].tolist()),
            token_ids=tensors[f"turn/{k}/tokens"].tolist(),
            logprobs=tuple(tensors[f"turn/{k}/logprobs"].tolist()),
            text="",
            reward=float(tensors[f"turn/{k}/reward"]),
        )
        for k in range(count)
    ]
    first, final = (_inputs(_under(tensors, f"{name}/")) for name in ("inputs", "final_inputs"))
    told: dict[str, Any] = {"prompt": prompt, "group": 0, "status": status, "turns": tuple(turns), "off_policy": True}
    rollout = Conversation(**told, inputs=first, final_inputs=final)
    return Remembered(rollout=rollout, states=TurnStates(seen_TH=tensors["seen"], said_TH=tensors["said"]))


def _inputs(tensors: Mapping[str, torch.Tensor]) -> PromptInputs | None:
    if not tensors:
        return None
    return PromptInputs(
        ids=tensors["ids"],
        positions=tensors.get("positions"),
        media=(media := _under(tensors, "media/")),
        pictures=numbered(media),
        token_types=_under(tensors, "types/"),
        clocks=_under(tensors, "clocks/"),
    )


def _until(inputs: PromptInputs, length: int, rows: Mapping[str, int]) -> PromptInputs:
    """The first `length` tokens of a conversation, with what had been seen by then. rows: the `media_rows` of that time."""
    return PromptInputs(
        ids=inputs.ids[:length],
        positions=None if inputs.positions is None else inputs.positions[:, :length],
        media={name: x[: rows[name]] for name, x in inputs.media.items() if rows.get(name)},
        pictures=inputs.pictures[: rows.get(GRIDS, 0)],
        token_types={name: x[:length] for name, x in inputs.token_types.items()},
        clocks={name: x[: rows[name]] for name, x in inputs.clocks.items() if rows.get(name)},
    )


def _under(tensors: Mapping[str, torch.Tensor], start: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(start): x for name, x in tensors.items() if name.startswith(start)}
