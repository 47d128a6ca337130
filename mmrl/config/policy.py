"""`[policy]` of a run file: the model, and the tables inside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.values import Free, Positive, Rate, Section

SMOKE_PIXELS = 12544
"""Pixels of a picture in a smoke run, at most."""


class LoraConfig(Section):
    """`[policy.lora]`: train low-rank adapters (Hu et al., LoRA) and leave the model's own weights as they are."""

    rank: Positive = 16
    """Rank of the added matrices."""
    alpha: Rate = 32.0
    """The adapters' output is scaled by alpha / rank."""
    target_modules: list[str] = ["language"]
    """Which linear layers get one: `vision`, `projector`, `language`, or patterns of their names, such as `*.q_proj`."""


class VideoConfig(Section):
    """`[policy.video]`: how much of a video the model looks at."""

    fps: Annotated[float, Field(gt=0, le=1000)] = 2.0
    """Frames a second, of a clip whose task doesn't say."""
    max_frames: Annotated[int, Field(ge=1, le=4096)] = 128
    """Of one clip; of a longer one as many, evenly."""
    max_pixels: Positive = 602_112
    """Width times height of a frame; larger ones are shrunk. 768 tokens of Qwen2.5-VL."""
    total_pixels: Positive = 2**24
    """Of all frames of a clip together: with many of them, each is smaller."""

    def smaller(self) -> VideoConfig:
        return self.at_most(max_frames=8, max_pixels=SMOKE_PIXELS)


class PolicyConfig(Section):
    """`[policy]`: the model that is trained."""

    model: str
    """A folder or hub name of a transformers checkpoint, or `tiny:FAMILY` (see `mmrl.policies.vlm.tiny`) for a small random
    one."""
    kind: str = "vlm"
    """Id of the policy, see `mmrl list policies`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; log-probabilities and losses are float32 whatever this says."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`."""
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    """How attention is computed; `eager` is slow and transparent. Others can't express a shared prompt."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint. Off unless you know whose code it is."""
    min_pixels: Positive | None = None
    """Images below this are enlarged by the processor; its own limit when unset."""
    max_pixels: Positive | None = None
    """Images above this are shrunk by the processor; its own limit when unset."""
    video: VideoConfig = VideoConfig()
    """How much of a video the model looks at."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the model's own weights."""
    options: Free = {}
    """Keyword arguments of this kind of policy; see `mmrl list policies KIND`."""

    def smaller(self) -> PolicyConfig:
        """The same model on a CPU, with short videos; which model a smoke run takes is for `mmrl.train.smoke` to say."""
        return self.model_copy(update={"device": "cpu", "video": self.video.smaller()})

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> PolicyConfig:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels = {self.min_pixels} is above max_pixels = {self.max_pixels}: lower it")
        return self
