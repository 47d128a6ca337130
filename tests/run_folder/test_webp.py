"""Episodes as animated WebP: every picture at its time, exact where it is small."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from footage import noise, trajectory_data
from mmrl import UserError
from mmrl.run_folder import webp


def played(data):
    """What is seen in each millisecond: a list of (array, ms)."""
    return [(np.asarray(picture), ms) for picture, ms in webp.decode_webp(data)]


def test_small_pictures_are_exact_and_each_call_lasts_as_long_as_its_actions():
    frames = noise(4, 36, 36)
    made = webp.trajectory_video(trajectory_data({"front": frames}, [[1, 1, 1], [1, 1, 1], [1, 0, 0]]))
    assert made.times_ms == (600, 600, 200, 1000)
    found = played(webp.encode_webp(made))
    assert [ms for _, ms in found] == [600, 600, 200, 1000]
    for (picture, _), frame in zip(found, frames, strict=True):
        assert (picture == frame).all()


def test_it_plays_for_ever():
    data = webp.encode_webp(webp.trajectory_video(trajectory_data({"front": noise(2, 8, 8)}, [[1]])))
    with Image.open(io.BytesIO(data)) as file:
        assert file.info["loop"] == 0 and file.n_frames == 2 and file.format == "WEBP"


def test_equal_pictures_become_one_that_lasts():
    frames = noise(4, 16, 16)
    frames[2] = frames[1]
    found = played(webp.encode_webp(webp.trajectory_video(trajectory_data({"front": frames}, [[1]] * 3, step_s=0.1))))
    assert [ms for _, ms in found] == [100, 200, 1000] and (found[1][0] == frames[2]).all()


def test_a_video_in_which_nothing_moves_is_one_picture():
    frames = noise(1, 16, 16).repeat(3, 0)
    ((picture, _),) = played(webp.encode_webp(webp.trajectory_video(trajectory_data({"front": frames}, [[1]] * 2))))
    assert (picture == frames[0]).all()


def test_large_pictures_are_smaller_and_nearly_the_same():
    ramp = np.tile(np.linspace(0, 255, 512).astype(np.uint8), (512, 1))
    frames = np.stack([np.stack([ramp, np.full_like(ramp, 40 * i), ramp.T], 2) for i in (1, 2)])
    found = played(webp.encode_webp(webp.trajectory_video(trajectory_data({"front": frames}, [[1]], step_s=0.05))))
    assert [picture.shape for picture, _ in found] == [(256, 256, 3)] * 2 and [ms for _, ms in found] == [50, 1000]
    for (picture, _), frame in zip(found, frames, strict=True):
        small = np.asarray(Image.fromarray(frame).resize((256, 256)))
        assert np.abs(picture.astype(float) - small).mean() < 4
    assert np.abs(found[0][0].astype(float) - found[1][0]).mean() > 10, "the test would see the wrong picture"


def test_cameras_stand_side_by_side_at_one_height():
    front, wrist = noise(2, 32, 48), noise(2, 16, 8, seed=1)
    made = webp.trajectory_video(trajectory_data({"front": front, "wrist": wrist}, [[1]]))
    assert made.frames_THWC.shape == (2, 32, 64, 3)
    assert (made.frames_THWC[:, :, :48] == front).all()
    assert (made.frames_THWC[:, :, 48:] == wrist.repeat(2, 1).repeat(2, 2)).all()


@pytest.mark.parametrize("calls", [62, 63, 64, 200, 999])
def test_long_episodes_lose_pictures_but_no_time(calls):
    frames = np.zeros((calls + 1, 4, 4, 3), dtype=np.uint8)
    frames[:, 0, 0, 0], frames[:, 0, 0, 1] = np.arange(calls + 1) % 256, np.arange(calls + 1) // 256
    made = webp.trajectory_video(trajectory_data({"front": frames}, [[1]] * calls, step_s=0.1))
    shown = [int(f[0, 0, 0]) + 256 * int(f[0, 0, 1]) for f in made.frames_THWC]
    assert len(shown) == min(calls + 1, webp.PICTURES) and (shown[0], shown[-1]) == (0, calls)
    assert sum(made.times_ms) == 100 * calls + 1000
    starts = np.cumsum([0, *made.times_ms[:-1]])
    assert [100 * number for number in shown] == starts.tolist(), "each picture comes when it was seen"


def test_no_pictures_no_video():
    assert webp.trajectory_video(trajectory_data({}, [[1]])) is None


def test_the_video_keeps_no_hold_on_the_track():
    pictures = torch.as_tensor(noise(2, 8, 8))
    made = webp.trajectory_video(trajectory_data({"front": pictures}, [[1]]))
    before = made.frames_THWC.copy()
    pictures.zero_()
    assert (made.frames_THWC == before).all()


def test_what_is_no_video_is_refused_in_one_line():
    whole = webp.encode_webp(webp.trajectory_video(trajectory_data({"front": noise(3, 64, 64)}, [[1]] * 2)))
    Image.new("RGB", (4, 4)).save(png := io.BytesIO(), "PNG")
    frames = [Image.new("RGB", (4, 4), (i % 256, i // 256, 0)) for i in range(webp.READ_FRAMES + 1)]
    frames[0].save(long := io.BytesIO(), "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    for data in (b"", b"RIFF", png.getvalue(), whole[:100], whole[: len(whole) // 2], long.getvalue()):
        with pytest.raises(UserError, match=r"a\.webp") as told:
            webp.decode_webp(data, "a.webp")
        assert "remove it" in str(told.value) and "\n" not in str(told.value)
