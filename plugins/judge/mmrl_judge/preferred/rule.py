"""The sampling rule `judge/preferred`: pictures of the step's episodes are compared by a model, a reward is learned from that,
and it pays the episodes (Wang et al., RL-VLM-F: Reinforcement Learning from Vision Language Foundation Model Feedback, 2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch

from mmrl import SamplingRule, Trajectory, UserError
from mmrl.api.endpoints.judges import judge_endpoint
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.endpoints.options import EndpointOptions
from mmrl.api.sampling import Group, StepSampler
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import Observation
from mmrl.api.specs import Bounds
from mmrl.api.types import Score
from mmrl_judge.preferred.asking import Verdicts, compare
from mmrl_judge.preferred.reward import Ensemble

PART = "preferred"
ENOUGH = 0.97
"""Accuracy on the pairs from which learning stops until there are new ones."""
SAME = 1e-3
"""Pictures that differ by less are one picture, and aren't compared."""


Number = Annotated[int, Bounds(low=1, high=10_000_000)]


@dataclass(kw_only=True)
class PreferredOptions(EndpointOptions):
    goal: str = ""
    """What the pictures are compared by. Empty: the instruction of the call that led to them, and then only pictures of one
    instruction are compared."""
    camera: str = ""
    """Name of a camera. Empty: the first one."""
    every: Number = 1
    """Steps between two rounds of comparisons."""
    after: Annotated[int, Bounds(low=0, high=10_000_000)] = 0
    """Steps before the first round, such as those that explore."""
    pairs: Number = 40
    """Pairs of pictures in a round."""
    questions: Annotated[int, Bounds(low=1, high=2)] = 1
    """For each pair 1, or 2: the model describes the pictures, and then says by its description alone which is nearer to the
    goal."""
    most: Number = 20_000
    """Comparisons of the whole run."""
    remembered: Number = 5000
    """Pictures among which pairs are drawn, and pairs that are learned from, the newest."""
    members: Number = 3
    """Networks of the ensemble."""
    learning_rate: Annotated[float, Bounds(above=0, high=1)] = 3e-4
    """Of Adam."""
    batch_size: Number = 128
    """Pairs of a batch."""
    epochs: Number = 5
    """Passes over the pairs after a round, at most."""
    weight: Annotated[float, Bounds(low=-1e30, high=1e30)] = 1.0
    """Weight of the learned reward."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the networks are."""
    max_tokens: Number = 1024
    """Most tokens of an answer, its thoughts included."""


class Preferred(SamplingRule):
    """Pays each call of the policy for the picture that it led to, by a reward that is learned from comparisons of pictures."""

    rewards: ClassVar[bool] = True

    options_class = PreferredOptions

    def __init__(self, **options: Any) -> None:
        """options: see `PreferredOptions`."""
        own = PreferredOptions(**options)
        if own.device == "cuda" and not torch.cuda.is_available():
            raise UserError("device = 'cuda': use cpu, or cuda where there is a GPU")
        # in one line, as the state has one goal a line
        self.goal, self.camera, self.every, self.after = " ".join(own.goal.split()), own.camera, own.every, own.after
        self.pairs, self.most, self.remembered, self.members = own.pairs, own.most, own.remembered, own.members
        self.learning_rate, self.batch_size, self.epochs = own.learning_rate, own.batch_size, own.epochs
        self.weight, self.device, self.questions = own.weight, torch.device(own.device), own.questions
        self.max_tokens, self.encoder, self.endpoint = own.max_tokens, ChatEncoder(), judge_endpoint(own)
        self.ensemble: Ensemble | None = None
        self.seen: list[tuple[torch.Tensor, str]] = []
        """Pictures uint8 [H, W, 3] and what the calls that led to them were asked for, the newest last."""
        self.compared: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """Pairs and their labels, the newest last."""
        self.steps = self.asked = 0
        self.revision: int = 0
        self.figures: dict[str, float] = {}

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise UserError("the rule judge/preferred learns in one process: use one learner")
        shown = [[self._pictures(rollout) for rollout in group.rollouts] for group in groups]
        found = [frames for frames in (f for own in shown for f in own) if frames is not None]
        if not found:
            return groups
        if self.ensemble is None:
            self.ensemble = self._made(found[0].shape[1:3], sample.seed)
            self.revision += 1
        for group, own in zip(groups, shown, strict=True):
            for rollout, frames in zip(group.rollouts, own, strict=True):
                if frames is not None:
                    self.seen += zip(frames, self._goals(rollout), strict=True)
        self.seen = self.seen[-self.remembered :]
        self.figures = {}
        since = self.steps - self.after
        if since >= 0 and since % self.every == 0 and self.asked < self.most:
            self._round(torch.Generator().manual_seed(derive(sample.seed, "preferred")))
        self.steps += 1
        for group, own in zip(groups, shown, strict=True):
            group.scores = [self._paid(score, frames) for score, frames in zip(group.scores, own, strict=True)]
        return groups

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return {f"preferred/{name}": value for name, value in self.figures.items()}

    def _made(self, shape: Sequence[int], seed: int) -> Ensemble:
        height, width = shape
        return Ensemble(self.members, height, width, learning_rate=self.learning_rate, seed=seed, device=self.device)

    def _pictures(self, rollout: Any) -> torch.Tensor | None:
        """uint8 [T, H, W, 3]: what each call of the policy led to; None of an episode that failed."""
        data = rollout.data if isinstance(rollout, Trajectory) else None
        return None if data is None else self._shown(data.images)[1:].cpu()

    def _goals(self, rollout: Any) -> list[str]:
        """What each call of the policy was asked for."""
        return [self.goal or " ".join(text.split()) for text in rollout.data.told[:-1]]

    def _shown(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """uint8 [T, H, W, 3]: the pictures of the rule's camera."""
        if not images or (self.camera and self.camera not in images):
            known = ", ".join(images) or "none"
            raise UserError(f"camera = {self.camera!r}: the episode has {known}; the rule judge/preferred compares pictures")
        return images[self.camera or next(iter(images))]

    def pay_for(self, after: Observation) -> torch.Tensor:
        if self.ensemble is None:  # nothing was seen of any episode
            return torch.zeros(len(after))
        return self.weight * self.ensemble.reward(self._shown(after.images))

    def _round(self, generator: torch.Generator) -> None:
        """Have pairs compared, and learn from all of them."""
        drawn = [pair for pair in self._drawn(generator) if (pair[0].float() - pair[1].float()).norm() >= SAME]
        drawn = drawn[: self.most - self.asked]
        said = Verdicts([], 0)
        if drawn:
            pairs, goals = [(a, b) for a, b, _ in drawn], [goal for *_, goal in drawn]
            said = compare(self.endpoint, self.encoder, pairs, goals, self.max_tokens, self.questions)
        self.asked += len(drawn)
        new = [(a, b, label) for (a, b, _), label in zip(drawn, said.labels, strict=True) if label >= 0]
        self.compared = (self.compared + new)[-self.remembered :]
        self.figures = {"asked": float(self.asked), "taken": float(len(new)), "failed": float(said.failed)}
        if self.compared:
            self.figures["accuracy"] = self._learn(generator)

    def _drawn(self, generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor, str]]:
        """Two pictures with one goal each, at random with repetition, and the goal."""
        places: dict[str, list[int]] = {}
        for place, (_, goal) in enumerate(self.seen):
            places.setdefault(goal, []).append(place)
        drawn = []
        for first, second in torch.rand(self.pairs, 2, generator=generator, dtype=torch.float64).tolist():
            picture, goal = self.seen[int(first * len(self.seen))]
            others = places[goal]
            drawn.append((picture, self.seen[others[int(second * len(others))]][0], goal))
        return drawn

    def _learn(self, generator: torch.Generator) -> float:
        """Passes over the pairs until they are told apart; the accuracy of the last one."""
        assert self.ensemble is not None
        first, second, labels = zip(*self.compared, strict=True)
        pairs, better, accuracy = (torch.stack(first), torch.stack(second)), torch.tensor(labels), 0.0
        for _ in range(self.epochs):
            orders = [torch.randperm(len(better), generator=generator) for _ in range(self.members)]
            accuracy = self.ensemble.epoch(pairs, better, orders, self.batch_size)
            if accuracy > ENOUGH:
                break
        self.revision += 1
        return accuracy

    def _paid(self, score: Score, frames: torch.Tensor | None) -> Score:
        """The score with the learned reward of each picture at the end of its call."""
        if score.value is None or frames is None:
            return score
        assert self.ensemble is not None
        rewards = [self.weight * r for r in self.ensemble.reward(frames).tolist()]
        before = score.steps or (0.0,) * len(rewards)
        steps = tuple(own + new for own, new in zip(before, rewards, strict=True))
        total = math.fsum(rewards)
        return replace(score, value=score.value + total, parts={**score.parts, PART: total}, steps=steps)

    # -- resume -----------------------------------------------------------------------------------------------------------

    def state(self) -> Mapping[str, torch.Tensor]:
        if self.ensemble is None:
            return {}
        optimizer = self.ensemble.optimizer.state_dict()["state"]
        found = {f"net/{name}": x for name, x in self.ensemble.state_dict().items()}
        found |= {f"adam/{place}/{name}": torch.as_tensor(x) for place, own in optimizer.items() for name, x in own.items()}
        texts = sorted({goal for _, goal in self.seen})
        told = "\n".join(texts).encode()
        found |= {
            "goals": torch.tensor(list(told), dtype=torch.uint8),
            "counts": torch.tensor([self.steps, self.asked, self.revision]),
        }
        found |= {"seen": torch.stack([p for p, _ in self.seen]), "of": torch.tensor([texts.index(g) for _, g in self.seen])}
        if self.compared:
            first, second, labels = zip(*self.compared, strict=True)
            found |= {"first": torch.stack(first), "second": torch.stack(second), "labels": torch.tensor(labels)}
        return found

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.ensemble = self._made(tensors["seen"].shape[1:3], 0)
        self.ensemble.load_state_dict({name[4:]: x for name, x in tensors.items() if name.startswith("net/")})
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, x in tensors.items():
            if name.startswith("adam/"):
                _, place, key = name.split("/")
                moments.setdefault(int(place), {})[key] = x
        groups = self.ensemble.optimizer.state_dict()["param_groups"]
        self.ensemble.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        texts = bytes(tensors["goals"].tolist()).decode().split("\n")
        self.seen = [(picture, texts[n]) for picture, n in zip(tensors["seen"], tensors["of"].tolist(), strict=True)]
        self.compared = []
        if "labels" in tensors:
            rows = zip(tensors["first"], tensors["second"], tensors["labels"].tolist(), strict=True)
            self.compared = [(a, b, int(label)) for a, b, label in rows]
        self.steps, self.asked, self.revision = (int(n) for n in tensors["counts"])
