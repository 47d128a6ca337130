"""Folders of pictures in the place of video files, as data sets of clips come that are frames already: TVQA's and GOT-10k's."""

from __future__ import annotations

import os
import re

from mmrl.api.errors import UserError, check_path, display_path, shorten
from mmrl.api.media.images import load_image
from mmrl.api.media.video_files import MAX_PACKETS, VideoInfo

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
    ".avif",
)
"""Suffixes of files with pictures, in small letters."""


def picture_files(folder: str) -> list[str]:
    """The paths of a folder's pictures in the order of their names, numbers in these by their value: `9.jpg` before `10.jpg`.
    Other files are passed over. Raises UserError if there is no such folder, or no picture or too many in it."""
    try:
        names = [name for name in os.listdir(folder) if os.path.splitext(name)[1].lower() in SUFFIXES]
    except FileNotFoundError:
        raise UserError(f"video {display_path(folder)} does not exist: {check_path(folder)}") from None
    except NotADirectoryError:
        raise UserError(f"video {folder} is no folder of pictures: leave out their rate") from None
    except (OSError, ValueError) as error:  # permissions, too long a name, a NUL
        raise UserError(f"video {folder!r:.80} can't be looked up: {shorten(error, 60)}: check the path") from error
    if not names:
        raise UserError(f"video {folder} is a folder without pictures: leave it out")
    if len(names) > MAX_PACKETS:
        raise UserError(f"video {folder} has more than {MAX_PACKETS:,} pictures: leave some of them out")
    return [os.path.join(folder, name) for name in sorted(names, key=_in_order)]


def folder_info(folder: str, rate: float) -> VideoInfo:
    """The facts of a folder of pictures, `rate` of them a second; the size is the first one's, upright. Raises UserError as
    `picture_files` does, and for a first picture that can't be read."""
    files = picture_files(folder)
    return VideoInfo(
        times_s=tuple(n / rate for n in range(len(files))), duration_s=len(files) / rate, size=load_image(files[0]).size
    )


def _in_order(name: str) -> tuple[list[str | int], str]:
    return [int(part) if n % 2 else part for n, part in enumerate(re.split(r"([0-9]+)", name))], name
