"""Chat messages in the form of OpenAI's endpoints: images as data URLs, videos as their frames, sounds as WAV files."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmrl.api.media.clips import VideoLimits
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.images import load_image
from mmrl.api.media.sounds import MAX_SECONDS
from mmrl.api.media.wav import encode_wav
from mmrl.api.types import Message

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEncoder:
    """Encodes messages. Images larger than `max_pixels` are shrunk; a video is shown as frames, each with its time."""

    max_pixels: int | None = None
    video: VideoLimits = field(default_factory=lambda: VideoLimits(fps=1.0, max_frames=16, max_pixels=602_112))

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of an image -> (width, height) as it is sent, in pixels."""
        width, height = size
        if self.max_pixels is None or width * height <= self.max_pixels:
            return size
        scale = (self.max_pixels / (width * height)) ** 0.5
        return max(1, int(width * scale)), max(1, int(height * scale))

    def __call__(self, messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
        """(messages in OpenAI's form, the original size of each image). Raises UserError for media that can't be decoded."""
        sizes: list[tuple[int, int]] = []
        return [{"role": m["role"], "content": self._content(m["content"], sizes)} for m in messages], sizes

    def _content(self, content: Any, sizes: list[tuple[int, int]]) -> Any:
        if isinstance(content, str):
            return content
        parts: list[dict[str, Any]] = []
        for part in content:
            if part["type"] == "image":
                image = load_image(part["image"])
                sizes.append(image.size)
                parts.append(self._image(image))
            elif part["type"] == "video":
                parts += self._video(part)
            elif part["type"] == "audio":
                data = base64.b64encode(encode_wav(part["audio"], MAX_SECONDS)).decode()
                parts.append({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
            else:
                parts.append({"type": "text", "text": part["text"]})
        only_text = len(parts) == 1 and parts[0]["type"] == "text"
        return parts[0]["text"] if only_text else parts

    def _image(self, image: Image) -> dict[str, Any]:
        sent = self.size(image.size)
        return {"type": "image_url", "image_url": {"url": data_url(image if sent == image.size else image.resize(sent))}}

    def _video(self, part: Mapping[str, Any]) -> list[dict[str, Any]]:
        from PIL import Image

        frames = cached_frames(part["video"], self.video)
        parts: list[dict[str, Any]] = []
        for time_s, frame in zip(frames.times_s, frames.frames_THWC, strict=True):
            parts.append({"type": "text", "text": f"<{time_s:.1f} seconds>"})
            parts.append(self._image(Image.fromarray(frame)))
        return parts


def data_url(image: Image) -> str:
    """A PNG of the image as a data URL; no pixel changes."""
    file = io.BytesIO()
    image.save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
