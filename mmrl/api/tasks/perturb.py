"""Perturbed prompts: blanked images, silent sounds, videos with shuffled or fewer frames. A perturbation that doesn't change the
answers shows what the policy doesn't use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mmrl.api.media import clips
from mmrl.api.media.clips import Clip, VideoFrames
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.images import load_image
from mmrl.api.media.sounds import silence
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt

GREY = (128, 128, 128)
"""The colour of a blanked image, RGB."""
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


def _with_parts(prompt: Prompt, change: Callable[[Part], Part]) -> Prompt:
    messages = [
        m if isinstance(m["content"], str) else {**m, "content": [change(part) for part in m["content"]]} for m in prompt.messages
    ]
    return replace(prompt, messages=messages)
