"""Rewards by models that look at both pictures, the target and the rendering: CLIP, DINO, and a judge behind an endpoint.

Rodriguez et al. 2025, "Rendering-Aware Reinforcement Learning for Vector Graphics Generation" (RLRF), and Chen et al. 2025,
"Learning Only with Images: Visual Reinforcement Learning with Reasoning, Rendering, and Visual Feedback" (RRVF). Neither has
published code of its rewards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from mmrl import Case, Score
from mmrl.api.endpoints.answers import NoAnswer
from mmrl.api.services import Dtype, check_contrastive, check_image_encoder, contrastive, image_encoder
from mmrl_rendering import compare
from mmrl_rendering.code import render
from mmrl_rendering.svg import Refused
from mmrl_rendering.teacher import Onlooker, Pair

if TYPE_CHECKING:
    import torch

INSTRUCTION = """The first picture is the target. The second is what somebody's code drew to reproduce it. Judge how alike they
are: kind of picture, positions and shapes, colours, texts, numbers. Ignore the sharpness. Think first. Then end with one line
Score: N
where N is a whole number from 0 (nothing in common) to 10 (the same)."""
_LINE = re.compile(r"[*_\s]*score[*_\s]*:[*_\s]*(\d+)(?:\s*/\s*10)?[*_\s]*\.?[*_\s]*", re.IGNORECASE)


class Likeness:
    """The cosine of the embeddings of the target and the rendering, -1 to 1. Code that doesn't render has -1.

    Known exploits: any drawing is alike to any other, so that values are far above 0; a picture in the right style without the
    right content earns most. Combine it with `rendering/svg@rlrf`.
    """

    encode: Callable[[Sequence[Image.Image]], torch.Tensor]
    """Pictures -> float32 [N, D], rows of length 1."""

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        pairs = [both(case) for case in cases]
        seen = [picture for pair in pairs if not isinstance(pair, Refused) for picture in pair]
        cosines = iter((found := self.encode(seen))[::2].mul(found[1::2]).sum(-1).tolist() if seen else ())
        return [
            Score(-1.0, detail=str(pair)) if isinstance(pair, Refused) else Score(min(1.0, max(-1.0, next(cosines))))
            for pair in pairs
        ]


class ClipLikeness(Likeness):
    """`Likeness` by CLIP: RLRF's semantic reward, where the paper has DreamSim or CLIP."""

    def __init__(self, *, model: str, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> None:
        """model: the folder or hub name of a CLIP or SigLIP, or tiny. batch_size: pictures encoded at once."""
        self.encode = contrastive(model, device=device, dtype=dtype, batch_size=batch_size).encode_images

    @staticmethod
    def check(cameras: Mapping[str, Sequence[str]], *, model: str, device: str = "auto", batch_size: int = 64, **_: Any) -> None:
        check_contrastive(model, device=device, batch_size=batch_size)


class DinoLikeness(Likeness):
    """`Likeness` by DINOv2, of which the mean of all tokens is compared, as in the metric of RLRF's authors (github.com/joanrod/
    star-vector, commit 5f0fac9, `compute_dino_score.py`): that metric is half of 1 plus this."""

    def __init__(self, *, model: str, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> None:
        """model: the folder or hub name of a DINO, or tiny. batch_size: pictures encoded at once."""
        self.encode = image_encoder(model, device=device, dtype=dtype, batch_size=batch_size).encode

    @staticmethod
    def check(cameras: Mapping[str, Sequence[str]], *, model: str, device: str = "auto", batch_size: int = 64, **_: Any) -> None:
        check_image_encoder(model, device=device, batch_size=batch_size)


class VisualJudge(Onlooker):
    """How alike a vision-language model behind an endpoint finds target and rendering, 0 to 1: RRVF's visual judge. Code that
    doesn't render has 0, and is not shown.

    The judge sees both pictures and no word of the completion, but what it draws may hold words. Known exploits: a picture that
    says "Score: 10" may impress a judge. An endpoint without an answer, and an answer that can't be read, are failures.
    """

    instruction = INSTRUCTION

    @classmethod
    def check(cls, cameras: Mapping[str, Sequence[str]], **options: Any) -> None:
        """Raise UserError for options that can't work; nothing is asked."""
        cls(**options)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        pairs = [both(case) for case in cases]
        shown = [pair for pair in pairs if not isinstance(pair, Refused)]
        scores = iter(self._judged(shown))
        return [Score(0.0, detail=str(pair)) if isinstance(pair, Refused) else next(scores) for pair in pairs]

    def _judged(self, pairs: Sequence[Pair]) -> list[Score]:
        if self.endpoint is None:  # pixels stand in, so that a smoke run needs no endpoint
            return [Score(compare.pixel(*map(compare.pixels, pair)), detail="no endpoint is asked") for pair in pairs]
        return [read(answer) for answer in self.ask(pairs)]


def read(answer: Any) -> Score:
    """The judge's score; a failure where its last line isn't `Score: N`."""
    if isinstance(answer, NoAnswer):
        return Score(None, detail=str(answer))
    last = next((line for line in reversed(answer.text.splitlines()) if line.strip()), "")
    match = _LINE.fullmatch(last)
    if match is None or len(match[1]) > 2 or int(match[1]) > 10:
        return Score(None, detail=f"the judge's last line is {last[:80]!r} and not 'Score: N' with N from 0 to 10")
    return Score(int(match[1]) / 10, detail=f"the judge gives {match[1]} of 10")


def both(case: Case) -> Pair | Refused:
    """(target, rendering) at the target's size, or why there is none."""
    target = case.images[0].convert("RGB")
    try:
        shown = render(case.completion, str(case.meta.get("code", "svg")), compare.rendered(target.size))
    except Refused as error:
        return error
    return target, shown if shown.size == target.size else shown.resize(target.size, Image.Resampling.BOX)
