"""The decoded media of a prompt, and how processors are given them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mmrl.api.media.clips import VideoFrames
from mmrl.api.media.sounds import Waveform
from mmrl.policies.vlm.limits import video_factor


@dataclass(slots=True)
class PromptMedia:
    """The media of a prompt, decoded, each kind in the order of the messages."""

    images: list[Any] = field(default_factory=list)
    videos: list[VideoFrames] = field(default_factory=list)
    sounds: list[Waveform] = field(default_factory=list)
    """All at the model's rate."""

    def seconds_per_grid(self, frames: int) -> torch.Tensor:
        """float32 [videos]: the time between two patches of so many frames of each video."""
        return torch.tensor([frames / _metadata(video).sampled_fps for video in self.videos])

    def arguments(self, processor: Any, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments of a processor, beside the text. limits: of its image processor, see `limits.pixel_limits`."""
        found: dict[str, Any] = {}
        if hasattr(processor, "image_processor"):
            # one list for the text, as from the chat template: some processors cut only a text's single picture into tiles
            found["images"] = [list(self.images)] if self.images else None
        if self.images and limits:
            found["images_kwargs"] = dict(limits)
        if self.videos:
            found["videos"] = [[_channels_first(v) for v in self.videos]]
            found["videos_kwargs"] = {
                "do_sample_frames": False,
                "return_metadata": True,  # from which a processor writes times; not all ask for it themselves
                "video_metadata": [[_metadata(v) for v in self.videos]],
                **({"do_resize": False} if video_factor(processor) else {}),
                **({"cap_pixels_per_frame": False} if hasattr(processor.video_processor, "cap_pixels_per_frame") else {}),
            }
        if self.sounds:
            found["audio"] = [sound.samples_T for sound in self.sounds]
            found["audio_kwargs"] = {"sampling_rate": self.sounds[0].rate}
        return found


def _channels_first(footage: VideoFrames) -> torch.Tensor:
    """uint8 [T, 3, H, W]; a single frame is repeated, because a processor needs two."""
    frames = torch.from_numpy(footage.frames_THWC.copy()).permute(0, 3, 1, 2)
    return frames.repeat(2, 1, 1, 1) if len(frames) == 1 else frames


def _metadata(footage: VideoFrames) -> Any:
    """Metadata from which transformers' processors read times: frame numbers in milliseconds."""
    from transformers.video_utils import VideoMetadata

    times = [round(1000 * t) for t in footage.times_s]
    total = max(round(1000 * footage.duration_s), 1)
    return VideoMetadata(total_num_frames=total, fps=1000.0, frames_indices=times * (2 if len(times) == 1 else 1))
