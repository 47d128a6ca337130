"""`[policy]` of a run file: the model, and the tables inside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.values import Free, Positive, Rate, Section, Source

SMOKE_PIXELS = 12544
"""Largest number of pixels of an image in a smoke run."""


class LoraConfig(Section):
    """`[policy.lora]`: train low-rank adapters (Hu et al., LoRA) and freeze the model's own weights."""

    rank: Positive = 16
    """Rank of the added matrices."""
    alpha: Rate = 32.0
    """The adapters' output is scaled by alpha / rank."""
    use_rslora: bool = False
    """Scale it by alpha / sqrt(rank), so that it doesn't fade as the rank grows (Kalajdzievski, rsLoRA, arXiv 2312.03732)."""
    use_dora: bool = False
    """Also train the length of each row of the adapted weights, while the matrices turn it (Liu et al., DoRA, arXiv 2402.09353).
    It takes more time, and vLLM serves it only after `mmrl export --merge`."""
    target_modules: Annotated[list[str], Field(min_length=1)] = ["language"]
    """Linear layers that get an adapter: `vision`, `projector`, `language`, or patterns of their names, such as `*.q_proj`."""
    nf4: list[str] = []
    """Linear layers whose frozen weights are kept in 4 bits (Dettmers et al., QLoRA), named in the same way."""


class VideoConfig(Section):
    """`[policy.video]`: number and size of a video's frames as the model sees them."""

    fps: Annotated[float, Field(gt=0, le=1000)] = 2.0
    """Frames per second, for clips whose task sets no rate."""
    max_frames: Annotated[int, Field(ge=1, le=4096)] = 128
    """Largest number of frames of a clip; of a longer clip this many are used, evenly spaced."""
    max_pixels: Positive = 602_112
    """Largest width times height of a frame; larger frames are shrunk. The default is 768 tokens of Qwen2.5-VL."""
    total_pixels: Positive = 2**24
    """Largest number of pixels of all frames of a clip together; if there are many frames, each is smaller."""

    def smaller(self) -> VideoConfig:
        return self.at_most(max_frames=8, max_pixels=SMOKE_PIXELS)


class PolicyConfig(Section):
    """`[policy]`: the model that is trained."""

    model: Source
    """A folder or hub name of a transformers checkpoint, or `tiny:FAMILY` (see `mmrl.policies.vlm.tiny`) for a small random
    one."""
    kind: str = "vlm"
    """Id of the policy, see `mmrl list policies`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of weights and activations; log-probabilities and losses are always float32. `float16` rounds eight times
    finer than `bfloat16`, so that the sampler and the learner differ less, but large activations overflow, and some models have
    them; it is for the policies `vlm`, `reward` and `vla`."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`."""
    attn_implementation: Literal["auto", "sdpa", "eager", "flex_attention"] = "auto"
    """Implementation of attention. `flex_attention` skips pairs of tokens that don't see each other. `auto` takes it on a GPU,
    and on a CPU for rows of more than 1,024 tokens, if it is exact for the model. `sdpa` and `eager` make a mask of all pairs;
    `eager` is slow and easy to inspect. Policies that act have short rows, and take `sdpa` unless this is `eager`."""
    batch_invariant: bool = False
    """Compute each token's numbers alike whatever else is in a pass, so that mmrl's own sampler and the learner have the same
    log-probabilities, bit for bit, in any dtype. It is slower. For the policy `vlm`, models without windows or states, and
    `attn_implementation = "auto"`."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint. Switch it on only if you trust the code's author."""
    chat_template: str | None = None
    """A Jinja file in the place of the model's own chat template; checkpoints have it too. For the policies `vlm`, `reward`."""
    chat_template_kwargs: Free = {}
    """Variables that the model's chat template reads, such as `{enable_thinking = false}` of Qwen3.5 and Gemma 4."""
    shown_tokens: list[str] = []
    """Special tokens that are text of answers, such as `["<|channel>", "<channel|>"]`, between which Gemma 4 thinks, or
    `["[THINK]", "[/THINK]"]` of Mistral: verifiers see them, and given answers may have them. Others are left out of texts."""
    frame: Literal["pixels", "model-pixels", "thousandths", "unit", "thousandths-yx", "location-tokens"] | None = None
    """Numbers in which the model writes points and boxes: pixels of the picture, or of the picture as the processor resizes it
    (`model-pixels`), thousandths or shares (`unit`) of its width and height, thousandths with y before x (`thousandths-yx`), or
    PaliGemma's location tokens. Needed for a model whose family isn't known; by default the family's."""
    min_pixels: Positive | None = None
    """The processor enlarges smaller images to this many pixels; by default its own limit."""
    max_pixels: Positive | None = None
    """The processor shrinks larger images to this many pixels; by default its own limit."""
    video: VideoConfig = VideoConfig()
    """Number and size of a video's frames as the model sees them."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the model's own weights."""
    options: Free = {}
    """Keyword arguments of this kind of policy, see `mmrl list policies KIND`."""

    @property
    def dense_attention(self) -> Literal["sdpa", "eager"]:
        """transformers' implementation where attention is under a dense mask."""
        return "eager" if self.attn_implementation == "eager" else "sdpa"

    @property
    def bytes_per_weight(self) -> int:
        """Of weights and activations in `dtype`."""
        return 4 if self.dtype == "float32" else 2

    def smaller(self) -> PolicyConfig:
        """The same model on a CPU, with short videos; `mmrl.train.smoke` chooses the model of a smoke run."""
        return self.model_copy(update={"device": "cpu", "video": self.video.smaller()})

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> PolicyConfig:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels = {self.min_pixels} is above max_pixels = {self.max_pixels}: lower it")
        return self
