"""Perturbed prompts: blanked, masked and noisy images, silent sounds, videos with shuffled or fewer frames. A perturbation that
doesn't change the answers shows what the policy doesn't use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmrl.api.media import clips
from mmrl.api.media.clips import Clip, VideoFrames
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.images import load_image
from mmrl.api.media.sounds import silence
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt

if TYPE_CHECKING:
    import numpy as np

GREY = (128, 128, 128)
"""The colour of a blanked image, RGB."""
NOISE_LEVELS = 1000
"""Levels of noise of `noisy`."""
Part = Mapping[str, Any]


def blanked(prompt: Prompt) -> Prompt:
    """The prompt with each image and video replaced by a grey one of the same size, and each sound by silence of its length."""
    from PIL import Image

    def blank(part: Part) -> Part:
        if part["type"] == "video":
            return {**part, "video": clips.blank_frames(part["video"])}
        if part["type"] == "audio":
            return {**part, "audio": silence(part["audio"])}
        return {**part, "image": Image.new("RGB", load_image(part["image"]).size, GREY)} if part["type"] == "image" else part

    return _with_parts(prompt, blank)


def masked(prompt: Prompt, seed: int, share: float = 0.6, patch: int = 14) -> Prompt:
    """The prompt with black squares in each image, drawn from the seed and the prompt's id. Videos stay.

    share: the chance of each square of a grid from the upper left corner, 0 to 1. patch: side of a square, in pixels. As PAPO
    masks images (Wang et al., Perception-Aware Policy Optimization, arXiv 2507.06448, and its code, `random_patch_blackening`).
    """

    def mask(pixels: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        height, width = pixels.shape[:2]
        black = chance.random((-(-height // patch), -(-width // patch))) < share
        whole = black.repeat(patch, 0).repeat(patch, 1)[:height, :width]
        return pixels * ~whole[..., None]

    return _with_images(prompt, "masked", seed, mask)


def noisy(prompt: Prompt, seed: int, level: int) -> Prompt:
    """The prompt with Gaussian noise in each image, drawn from the seed and the prompt's id. Videos stay.

    level: 0 to 999. Pixels x from 0 to 1 become sqrt(a) x + sqrt(1 - a) e, cut to 0..1, where e is standard Gaussian noise and a
    what this many steps of diffusion and one more leave of a picture. As NoisyRollout distorts images (Liu et al., arXiv
    2504.13055, and its code, `image_aug.py`).
    """
    import numpy as np

    kept = _signal_share(level)

    def distort(pixels: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        noise = chance.standard_normal(pixels.shape, np.float32)
        return ((np.sqrt(kept) * pixels / 255 + np.sqrt(1 - kept) * noise).clip(0, 1) * 255).astype(np.uint8)

    return _with_images(prompt, "noisy", seed, distort)


def _signal_share(level: int) -> float:
    """a of `noisy`: the product of 1 - b over the first `level` + 1 steps, whose b rises from 1e-5 to 5e-3 logistically."""
    import numpy as np

    rise = 1 / (1 + np.exp(-np.linspace(-6, 6, NOISE_LEVELS)))
    return float(np.prod(1 - (rise[: level + 1] * (0.5e-2 - 1e-5) + 1e-5)))


def shuffled(prompt: Prompt, seed: int) -> Prompt:
    """The prompt with the frames of each video in another order, drawn from the seed and the prompt's id. Of a video file only
    the frames that are shown are shuffled."""
    number = iter(range(10**6))

    def shuffle(part: Part) -> Part:
        if part["type"] != "video":
            return part
        drawn = derive(seed, "shuffled", prompt.task, prompt.id, next(number))
        return {**part, "video": clips.shuffle_frames(part["video"], drawn)}

    return _with_parts(prompt, shuffle)


def subsample_frames(prompt: Prompt, count: int) -> Prompt:
    """The prompt with `count` evenly spaced frames of each video, or all if there are fewer. Clips with `indices` stay."""

    def sparse(part: Part) -> Part:
        if part["type"] != "video":
            return part
        video = clips.as_clip(part["video"])
        if isinstance(video, Clip) and video.indices:
            return part
        return {**part, "video": replace(video, fps=None, count=count) if isinstance(video, Clip) else _fewer(video, count)}

    return _with_parts(prompt, sparse)


def _fewer(footage: VideoFrames, count: int) -> VideoFrames:
    return cached_frames(footage, clips.VideoLimits(max_frames=count))


def _with_images(prompt: Prompt, what: str, seed: int, change: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Prompt:
    """The prompt with other pixels. change: from uint8 [H, W, 3] to the same; what, seed: name what is drawn."""
    import numpy as np
    from PIL import Image

    number = iter(range(10**6))

    def changed(part: Part) -> Part:
        if part["type"] != "image":
            return part
        chance = np.random.default_rng(derive(seed, what, prompt.task, prompt.id, next(number)))
        found: Image.Image = Image.fromarray(change(np.asarray(load_image(part["image"])), chance))
        return {**part, "image": found}

    return _with_parts(prompt, changed)


def _with_parts(prompt: Prompt, change: Callable[[Part], Part]) -> Prompt:
    messages = [
        m if isinstance(m["content"], str) else {**m, "content": [change(part) for part in m["content"]]} for m in prompt.messages
    ]
    return replace(prompt, messages=messages)
