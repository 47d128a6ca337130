"""Rewards from two contrasting goals in language, and from how a car drives (Huang et al., VLM-RL: A Unified Vision Language
Models and Reinforcement Learning Framework for Safe Autonomous Driving, section 4, arXiv 2412.15544; the figures are those of
clip/clip_rewarded_sac.py of zihaosheng/VLM-RL @48dbb27).

T calls, D numbers of an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmrl import Case, Score, Trajectory, UserError
from mmrl.api.services import Dtype, check_contrastive, contrastive
from mmrl_robotics.looking import asked, check_cameras, formatted, pictures

COLUMNS = 3
"""Numbers of the state that are read: speed, how well the way is kept, the simulator's own reward."""


class Contrast:
    """How fast the pictures say that the car may drive, and how near to that it drives; the value is the sum over the calls of
    the policy."""

    def __init__(
        self,
        *,
        model: str,
        goal: str = "an empty road without any accident",
        avoid: str = "an accident of two cars on a road",
        alpha: float = 1.0,
        beta: float = 1.0,
        low: float = -0.03,
        high: float = 0.0,
        columns: Sequence[int] = (0, 1, 2),
        camera: str = "",
        device: str = "auto",
        dtype: Dtype = "auto",
        batch_size: int = 64,
    ) -> None:
        """model: the folder or hub name of a CLIP, or tiny. goal: description of a picture in which all is well; {instruction}
        is the call's. avoid: description of a picture of what must not be. alpha, beta: weights of the similarity to
        the goal and to what is to be avoided. low, high: their difference at which the car should stand, and drive at its target
        speed. columns: where in the simulator's state are the speed in units of the target speed, how well the car keeps its way
        from 0 to 1, and the simulator's own reward. camera: its name; the first when empty. device: auto, cpu, cuda. dtype:
        auto, float32, bfloat16 or float16. batch_size: pictures encoded at once."""
        self.check(
            {},
            model=model,
            goal=goal,
            avoid=avoid,
            alpha=alpha,
            beta=beta,
            low=low,
            high=high,
            columns=columns,
            camera=camera,
            device=device,
            batch_size=batch_size,
        )
        self.goals, self.weights, self.bounds = (goal, avoid), (float(alpha), float(beta)), (float(low), float(high))
        self.columns, self.camera = list(columns), camera
        self.model = contrastive(model, device=device, dtype=dtype, batch_size=batch_size)

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        goal: str = "goal",
        avoid: str = "avoid",
        alpha: float = 1.0,
        beta: float = 1.0,
        low: float = -0.03,
        high: float = 0.0,
        columns: Sequence[int] = (0, 1, 2),
        camera: str = "",
        device: str = "auto",
        batch_size: int = 64,
        **others: Any,
    ) -> None:
        check_contrastive(model, device=device, batch_size=batch_size)
        check_cameras(cameras, camera)
        for name, text in (("goal", goal), ("avoid", avoid)):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{name} = {text!r:.60} must be a text: describe a picture")
            formatted(name, text)
        if goal == avoid:
            raise UserError("goal and avoid are the same: change one")
        for name, value in (("alpha", alpha), ("beta", beta), ("low", low), ("high", high)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1000:
                raise UserError(f"{name} = {value!r} must be a number")
        if alpha < 0 or beta < 0:
            raise UserError(f"alpha = {alpha:g} and beta = {beta:g} must be 0 or more")
        if low >= high:
            raise UserError(f"low = {low:g} must be less than high = {high:g}")
        whole = isinstance(columns, list | tuple) and all(
            isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in columns
        )
        if not whole or len(set(columns)) != COLUMNS:
            raise UserError(f"columns = {columns!r} must be {COLUMNS} different places in the state, from 0")

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        driven = [self._driven(case) for case in cases]
        seen = [pictures(case, self.camera)[1:] for case in cases]
        pictures_MD = self.model.encode_images([picture for shown in seen for picture in shown])
        scores, start = [], 0
        for case, shown, state in zip(cases, seen, driven, strict=True):
            own_TD = pictures_MD[start : start + len(shown)]
            start += len(shown)
            steps: list[float] = []
            for said, begin, end in asked(case):
                goals_2D = self.model.encode_texts([formatted("goal", text, said) for text in self.goals])
                allowed_T = allowed(own_TD[begin:end], goals_2D, self.weights, self.bounds)
                steps += driving_reward(allowed_T, *state[begin:end].unbind(1)).tolist()
            scores.append(Score(sum(steps), steps=tuple(steps)))
        return scores

    def _driven(self, case: Case) -> torch.Tensor:
        """float32 [T, 3]: the columns of the state after each call."""
        data = case.rollout.data if isinstance(case.rollout, Trajectory) else None
        if data is None or data.state is None or data.state.shape[1] <= max(self.columns):
            numbers = 0 if data is None or data.state is None else data.state.shape[1]
            raise UserError(f"columns = {self.columns}: the simulator's state has {numbers} numbers; name columns that it has")
        return data.state[1:, self.columns].cpu().float()


def allowed(
    pictures_TD: torch.Tensor, goals_2D: torch.Tensor, weights: tuple[float, float], bounds: tuple[float, float]
) -> torch.Tensor:
    """float32 [T], 0 to 1: the share of the target speed that the pictures allow. goals_2D: embeddings of the goal and of what
    is to be avoided, of length 1."""
    pictures_TD = pictures_TD / pictures_TD.norm(dim=-1, keepdim=True)
    goal_T, avoid_T = (pictures_TD @ goals_2D.T).unbind(1)
    low, high = bounds
    return ((weights[0] * goal_T - weights[1] * avoid_T).clamp(low, high) - low) / (high - low)


def driving_reward(allowed_T: torch.Tensor, speed_T: torch.Tensor, kept_T: torch.Tensor, own_T: torch.Tensor) -> torch.Tensor:
    """float32 [T]: 1 less the distance from the allowed speed, times how well the way is kept; where the simulator's own reward
    is below 0, as after a collision, that instead. Speeds are in units of the target speed."""
    allowed_T = allowed_T.to(speed_T)
    return torch.where(own_T < 0, own_T, (1 - (speed_T - allowed_T).abs()) * kept_T)
