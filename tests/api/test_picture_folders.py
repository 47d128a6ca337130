"""Folders of pictures as videos."""

import shutil

import numpy as np
import pytest
from PIL import Image

from mmrl import UserError
from mmrl.api.media.clips import Clip, VideoLimits
from mmrl.api.media.content import form_of_part
from mmrl.api.media.decoding import cached_frames, clear_cache, decode, recent_frames
from mmrl.api.media.picture_folders import folder_info, picture_files

SIZE = (32, 24)


@pytest.fixture
def folder(tmp_path):
    """Twelve grey pictures, the darkest first; names without leading zeros, and a file beside them."""
    for n in range(12):
        Image.new("L", SIZE, 20 * n).save(tmp_path / f"{n + 1}.png")
    (tmp_path / "about.txt").write_text("pictures")
    return tmp_path


def shades(clip, limits=VideoLimits()):
    return [round(float(frame.mean()) / 20) for frame in decode(clip, limits).frames_THWC]


def test_pictures_are_frames_in_the_order_of_their_numbers(folder):
    assert [path.rpartition("/")[2] for path in picture_files(str(folder))] == [f"{n}.png" for n in range(1, 13)]
    facts = folder_info(str(folder), 3.0)
    assert (facts.frames, facts.duration_s, facts.size, facts.fps) == (12, 4.0, SIZE, 3.0)
    clip = Clip(path=str(folder), rate=3.0)
    film = decode(clip, VideoLimits(fps=1.0))
    assert film.times_s == (0, 1, 2, 3) and film.duration_s == 4.0 and film.indices == (0, 3, 6, 9)
    assert film.frames_THWC.shape == (4, 24, 32, 3) and shades(clip, VideoLimits(fps=1.0)) == [0, 3, 6, 9]


def test_they_are_selected_as_those_of_a_file_are(folder):
    path = str(folder)
    assert shades(Clip(path=path, rate=3.0, count=3)) == [0, 5, 11]
    assert shades(Clip(path=path, rate=3.0, indices=(5, 1, 5))) == [5, 1, 5]
    part = decode(Clip(path=path, rate=3.0, fps=3.0, start_s=1.0, end_s=2.0), VideoLimits())
    assert part.indices == (3, 4, 5) and part.duration_s == 1.0 and part.times_s == pytest.approx((0, 1 / 3, 2 / 3))
    assert shades(Clip(path=path, rate=3.0, count=3, order=(2, 0, 1))) == [11, 0, 5]
    assert np.unique(decode(Clip(path=path, rate=3.0, blank=True), VideoLimits()).frames_THWC).tolist() == [128]
    small = decode(Clip(path=path, rate=3.0), VideoLimits(max_pixels=16 * 12, max_frames=2))
    assert small.frames_THWC.shape == (2, 12, 16, 3)


def test_they_are_cached_until_the_folder_changes(folder):
    clear_cache()
    clip = Clip(path=str(folder), rate=3.0, count=2)
    first = cached_frames(clip)
    assert cached_frames(clip) is first is recent_frames(clip)
    Image.new("L", SIZE, 255).save(folder / "13.png")
    assert cached_frames(clip).indices == (0, 12)


def test_they_are_told_apart_by_what_they_show(folder, tmp_path_factory):
    """As `mmrl check` compares prompts, and rules that group states."""

    def form(where, rate=3.0):
        return form_of_part({"type": "video", "video": Clip(path=str(where), rate=rate)})

    copied = shutil.copytree(folder, tmp_path_factory.mktemp("other") / "moved")
    assert form(folder) == form(copied) != form(folder, 2.0)
    Image.new("L", SIZE, 255).save(copied / "5.png")
    assert form(folder) != form(copied)


def test_transparent_and_grey_pictures_become_rgb(tmp_path):
    for n, mode in enumerate(("RGBA", "L", "P", "RGB")):
        Image.new(mode, SIZE).save(tmp_path / f"{n}.png")
    assert decode(Clip(path=str(tmp_path), rate=1.0, indices=(0, 1, 2, 3)), VideoLimits()).frames_THWC.shape == (4, 24, 32, 3)


def other_size(folder):
    Image.new("L", (24, 32)).save(folder / "12.png")


def broken(folder):
    (folder / "12.png").write_bytes(b"no picture")


def empty(folder):
    for path in folder.glob("*.png"):
        path.unlink()


@pytest.mark.parametrize(
    "change, message",
    [
        (other_size, r"has pictures of several sizes, 32 x 24 and 24 x 32: make them equal"),
        (broken, r"image .*12\.png is broken"),
        (empty, r"is a folder without pictures: leave it out"),
    ],
)
def test_a_bad_folder_is_named(folder, change, message):
    change(folder)
    with pytest.raises(UserError, match=message) as caught:
        decode(Clip(path=str(folder), rate=3.0, count=12), VideoLimits())
    assert folder.name in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_folder_and_no_rate(folder):
    for path, message in (
        (folder / "gone", "does not exist: check the path"),
        (folder / "1.png", "is no folder of pictures: leave out their rate"),
        (folder / ("a" * 300), "can't be looked up"),
        ("a\0b", "can't be looked up"),
    ):
        with pytest.raises(UserError, match=message):
            decode(Clip(path=str(path), rate=3.0), VideoLimits())
    with pytest.raises(UserError, match="is no file: give the path of one video, or the rate of a folder of pictures"):
        decode(Clip(path=str(folder)), VideoLimits())
    for rate in (0, -1, 1001, float("nan"), float("inf"), 1e-320, 10**400):
        with pytest.raises(UserError, match=r"rate = .* must be a number from 1e-06 to 1000"):
            Clip(path=str(folder), rate=rate)
    for rate in ("3", True):
        with pytest.raises(UserError, match=r"rate = .* must be a number"):
            Clip(path=str(folder), rate=rate)
    with pytest.raises(UserError, match=r"has 4\.00 s: there is no part from 5 to 6 s"):
        decode(Clip(path=str(folder), rate=3.0, start_s=5.0, end_s=6.0), VideoLimits())
