"""Rewards from CLIP: the similarity of each picture of an episode to a text (Rocamonde et al., Vision-Language Models are
Zero-Shot Reward Models for Reinforcement Learning).

T calls, M pictures, D numbers of an embedding.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmrl import Case, Score, UserError
from mmrl.api.services import Dtype, check_contrastive, contrastive
from mmrl_robotics.looking import asked, check_cameras, formatted, pictures


class Closeness:
    """The `closeness` of the picture after each call of the policy to the goal, -1 to 1; the value is the sum."""

    def __init__(
        self,
        *,
        model: str,
        goal: str | Sequence[str] = "{instruction}",
        baseline: str | Sequence[str] = "",
        alpha: float = 0.0,
        camera: str = "",
        device: str = "auto",
        dtype: Dtype = "auto",
        batch_size: int = 64,
    ) -> None:
        """model: the folder or hub name of a CLIP, or tiny. goal: description of a picture at the goal, one text or several that
        are averaged; {instruction} is the call's. baseline: description of a picture before the goal. alpha: 0 to 1,
        strength of the projection onto the line from baseline to goal, which removes unrelated differences between pictures.
        camera: its name; the first when empty. device: auto, cpu, cuda. dtype: auto, float32, bfloat16 or float16. batch_size:
        pictures encoded at once."""
        self.check(
            {}, model=model, goal=goal, baseline=baseline, alpha=alpha, camera=camera, device=device, batch_size=batch_size
        )
        self.goal, self.baseline, self.alpha, self.camera = _texts(goal), _texts(baseline), alpha, camera
        self.model = contrastive(model, device=device, dtype=dtype, batch_size=batch_size)
        self.embedding = functools.lru_cache(maxsize=4096)(self._embedding)

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        goal: str | Sequence[str] = "{instruction}",
        baseline: str | Sequence[str] = "",
        alpha: float = 0.0,
        camera: str = "",
        device: str = "auto",
        batch_size: int = 64,
        **others: Any,
    ) -> None:
        check_contrastive(model, device=device, batch_size=batch_size)
        check_cameras(cameras, camera)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
            raise UserError(f"alpha = {alpha!r} must be a number from 0 to 1")
        for name, texts in (("goal", _texts(goal)), ("baseline", _texts(baseline))):
            for text in texts:
                formatted(name, text)
        if not _texts(goal):
            raise UserError("goal is empty: describe a picture at the goal, such as {instruction}")
        if alpha and not _texts(baseline):
            raise UserError(f"alpha = {alpha:g} needs a baseline: describe a picture before the goal is reached")
        if alpha and _texts(baseline) == _texts(goal):
            raise UserError("goal and baseline are the same: change one")

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        seen = [pictures(case, self.camera)[1:] for case in cases]
        states_MD = self.model.encode_images([picture for shown in seen for picture in shown])
        scores, start = [], 0
        for case, shown in zip(cases, seen, strict=True):
            own_TD = states_MD[start : start + len(shown)]
            start += len(shown)
            steps: list[float] = []
            for said, begin, end in asked(case):
                goal_D = self.embedding(self.goal, said)
                baseline_D = self.embedding(self.baseline, said) if self.baseline else None
                steps += closeness(own_TD[begin:end], goal_D, baseline_D, self.alpha).tolist()
            scores.append(Score(sum(steps), steps=tuple(steps)))
        return scores

    def _embedding(self, texts: tuple[str, ...], said: str) -> torch.Tensor:
        """float32 [D]: the mean of the embeddings of these texts, each of length 1 (the mean is shorter)."""
        return self.model.encode_texts([formatted("goal", text, said) for text in texts]).mean(0)


def closeness(states_TD: torch.Tensor, goal_D: torch.Tensor, baseline_D: torch.Tensor | None, alpha: float) -> torch.Tensor:
    """float32 [T]: 1 - |alpha proj(s) + (1 - alpha) s - g|^2 / 2, where proj is onto the line through goal and baseline
    (Rocamonde et al., definition 1).

    With alpha 0 and a goal of length 1 that is the cosine; with alpha 1 only the position along that line counts."""
    away_TD = states_TD - goal_D
    if baseline_D is not None and alpha:
        line_D = goal_D - baseline_D
        length = line_D.square().sum()
        if not float(length):
            raise UserError("goal and baseline have the same embedding: change one")
        along_TD = (away_TD @ line_D / length)[:, None] * line_D
        away_TD = alpha * along_TD + (1 - alpha) * away_TD
    return 1 - away_TD.square().sum(-1) / 2


def _texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    """The nonempty texts."""
    if not isinstance(texts, str) and not (isinstance(texts, list | tuple) and all(isinstance(t, str) for t in texts)):
        raise UserError(f"{texts!r:.60} must be a text or a list of texts")
    return tuple(text for text in ((texts,) if isinstance(texts, str) else texts) if text.strip())
