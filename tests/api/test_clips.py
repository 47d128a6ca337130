"""Videos from files: which frames, when, upright; and files that are broken in every way, told by name in one line."""

import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import footages
from mmrl import UserError
from mmrl.api.media import clips, decoding, video_files
from mmrl.api.media.clips import Clip, VideoFrames, VideoLimits
from mmrl.api.media.decoding import _KEPT, Count, Scaler, cached_frames, clear_cache, frame_indices
from mmrl.api.media.video_files import VideoInfo, probe

COUNT, RATE = 50, 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clips")


@pytest.fixture(scope="module")
def good(folder):
    """Two seconds, 64 x 48, a key frame every ten."""
    return footages.write(folder / "good.mp4", footages.frames(COUNT), RATE, crf="10", g="10")


def numbers(footage):
    """Which frame each is, read from its pixels."""
    return [round((float(f[f.shape[0] // 2 :, f.shape[1] * 3 // 4 :].mean()) - 5) / 5) for f in footage.frames_THWC]


def altered(good, name, change):
    path = good.parent / name
    path.write_bytes(change(bytearray(good.read_bytes())))
    return str(path)


# -- which frames -------------------------------------------------------------------------------------------------------------


CODECS = {
    **{"a.mp4": "libx264", "a.mkv": "libx264", "a.webm": "libvpx-vp9", "a.avi": "mpeg4", "a.txt.mp4": "mpeg4"},
    **{"a.ts": "libx264", "b.avi": "libx264"},  # one that can't be rewound exactly, and one without times of presentation
}
FINE = {"qmin": "1", "qmax": "1"}
"""Of MPEG-4: greys come out as they went in."""


@pytest.mark.parametrize("name", CODECS)
def test_the_frames_that_were_asked_for_are_shown(folder, name):
    codec = CODECS[name]
    options = {"libx264": {"crf": "10", "g": "10"}, "mpeg4": FINE}.get(codec, {})
    path = footages.write(folder / name, footages.frames(COUNT), RATE, codec, **options)
    facts = probe(path)
    assert (facts.frames, facts.size) == (COUNT, (64, 48))
    assert facts.duration_s == pytest.approx(2.0, abs=0.01) and facts.fps == pytest.approx(RATE, rel=0.01)
    found = cached_frames(Clip(path=str(path), count=8))
    assert found.indices == (0, 7, 14, 21, 28, 35, 42, 49) and numbers(found) == list(found.indices)
    assert found.times_s == pytest.approx([i / RATE for i in found.indices], abs=0.002)
    again = cached_frames(Clip(path=str(path), indices=(40, 3, 3, 41)))
    assert numbers(again) == [40, 3, 3, 41]
    part = cached_frames(Clip(path=str(path), fps=5, start_s=1.0, end_s=1.6))
    assert numbers(part) == list(part.indices) == [25, 30, 35] and part.duration_s == pytest.approx(0.6)
    assert part.times_s[0] == pytest.approx(0.0, abs=0.01), "counted from where the part begins"


def test_all_of_it_where_more_is_asked_for(good):
    assert cached_frames(Clip(path=str(good), count=500)).indices == tuple(range(COUNT))
    assert len(cached_frames(Clip(path=str(good), fps=1000), VideoLimits(max_frames=7)).indices) == 7
    assert cached_frames(Clip(path=str(good))).indices == (0, 12, 25, 37), "two a second unless somebody says otherwise"


def test_the_order_may_be_changed_and_the_times_stay(good):
    straight = cached_frames(Clip(path=str(good), count=4))
    mixed = cached_frames(Clip(path=str(good), count=4, order=(2, 0, 3, 1)))
    assert numbers(mixed) == [numbers(straight)[k] for k in (2, 0, 3, 1)] and mixed.times_s == straight.times_s


def test_frames_are_shuffled_by_a_seed_and_blanked_as_they_are_seen(good):
    clip, seen = Clip(path=str(good)), VideoLimits(fps=4.0, max_frames=6)
    straight, mixed, other = (
        cached_frames(c, seen) for c in (clip, clips.shuffle_frames(clip, 1), clips.shuffle_frames(clip, 2))
    )
    assert sorted(numbers(mixed)) == numbers(straight) != numbers(mixed) != numbers(other) and mixed.times_s == straight.times_s
    assert numbers(mixed) == [numbers(straight)[i] for i in (1, 4, 0, 5, 3, 2)], "the same on every machine"
    grey = cached_frames(clips.blank_frames(clip), seen)
    assert (grey.times_s, grey.frames_THWC.shape) == (straight.times_s, straight.frames_THWC.shape) and len(grey.times_s) == 6
    assert set(grey.frames_THWC.ravel().tolist()) == {128}


def test_variable_rates_are_sampled_by_time(folder):
    """Ten frames in the first second, then two in nine: evenly in time is mostly the late ones."""
    times = [n / 10 for n in range(10)] + [1.0, 6.0, 10.0]
    path = footages.write(folder / "varies.mp4", footages.frames(13), codec="libx264", times=times, crf="10")
    facts = probe(path)
    assert facts.times_s == pytest.approx(times, abs=0.002)
    found = cached_frames(Clip(path=str(path), count=3))
    assert numbers(found) == [0, 11, 12] and found.times_s == pytest.approx([0, 6, 10], abs=0.002)
    assert cached_frames(Clip(path=str(path), fps=2, end_s=2.0)).indices == (0, 5, 10, 10)


@pytest.mark.parametrize(("name", "kept_from", "begins", "moved"), [("cut.mp4", 10, 17, 17), ("cut.mkv", 19, 24, 0)])
def test_frames_that_no_player_shows_are_not_counted(good, folder, name, kept_from, begins, moved):
    """A file that was cut without encoding it again: an edit list hides the frames from the key frame to the cut; or the file
    begins in the middle of a group, whose rest can't be decoded."""
    with av.open(str(good)) as whole, av.open(str(folder / name), "w", options={"avoid_negative_ts": "disabled"}) as cut:
        stream = whole.streams.video[0]
        copy, earlier = cut.add_stream_from_template(stream), round(moved / RATE / stream.time_base)
        for packet in [p for p in whole.demux(stream) if p.dts is not None][kept_from:]:
            packet.pts, packet.dts, packet.stream = packet.pts - earlier, packet.dts - earlier, copy
            cut.mux(packet)
    facts, found = probe(folder / name), cached_frames(Clip(path=str(folder / name), count=4))
    assert facts.frames == COUNT - begins and facts.duration_s == pytest.approx((COUNT - begins) / RATE, abs=0.002)
    assert numbers(found) == [begins + i for i in found.indices] and found.indices[-1] == facts.frames - 1
    assert found.times_s == pytest.approx([i / RATE for i in found.indices], abs=0.002)


TURNED = {
    "right": ((0, 1, -1, 0), lambda f: np.rot90(f, -1, (1, 2))),  # an upright phone's
    "about": ((-1, 0, 0, -1), lambda f: np.rot90(f, 2, (1, 2))),
    "left": ((0, -1, 1, 0), lambda f: np.rot90(f, 1, (1, 2))),
    "mirrored": ((-1, 0, 0, 1), lambda f: f[:, :, ::-1]),
    "upside-down": ((1, 0, 0, -1), lambda f: f[:, ::-1]),
    "left-mirrored": ((0, 1, 1, 0), lambda f: f.transpose(0, 2, 1, 3)),
    "right-mirrored": ((0, -1, -1, 0), lambda f: np.rot90(f, 2, (1, 2)).transpose(0, 2, 1, 3)),
}
"""The matrix a, b, c, d of a file, by which x, y is displayed at a x + c y, b x + d y; and what it makes of the frames."""


@pytest.mark.parametrize("how", TURNED)
def test_turned_clips_stand_upright(good, how):
    (a, b, c, d), stands = TURNED[how]

    def turn(data):
        at = data.index(b"tkhd") + 4 + 40
        data[at : at + 36] = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
        return data

    straight = cached_frames(Clip(path=str(good), count=2)).frames_THWC
    turned = cached_frames(Clip(path=altered(good, f"{how}.mp4", turn), count=2)).frames_THWC
    assert turned.shape == (2, *((48, 64) if a else (64, 48)), 3)
    assert np.abs(stands(straight).astype(int) - turned).mean() < 2


def test_what_is_transparent_is_white_as_in_images(folder):
    picture = np.zeros((48, 64, 4), np.uint8)
    picture[:, :32], picture[:, 32:] = (200, 0, 0, 255), (0, 0, 200, 51)  # a fifth of blue
    with av.open(str(folder / "clear.mov"), "w") as container:
        stream = container.add_stream("qtrle", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "argb"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgba")))
        container.mux(stream.encode())
    shown = cached_frames(Clip(path=str(folder / "clear.mov"))).frames_THWC[0]
    assert shown[24, 8].tolist() == [200, 0, 0] and shown[24, 56].tolist() == [204, 204, 244]


def test_ten_bits_and_both_ranges_give_the_same_colours(folder):
    """BT.709 and BT.2020, limited and full, in ten bits: the file says which, and the picture is the same."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, :32], picture[:, 32:] = (200, 60, 40), (40, 60, 200)
    for matrix in (1, 9):
        for span in (1, 2):
            path = folder / f"ten{matrix}{span}.mp4"
            with av.open(str(path), "w") as container:
                stream = container.add_stream("libx264", rate=10, options={"crf": "4"})
                stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p10le"
                stream.codec_context.colorspace, stream.codec_context.color_range = matrix, span
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                made = frame.reformat(format="yuv420p10le", dst_colorspace=matrix, dst_color_range=span)
                container.mux(stream.encode(made))
                container.mux(stream.encode())
            shown = cached_frames(Clip(path=str(path))).frames_THWC[0]
            for x, colour in ((8, (200, 60, 40)), (56, (40, 60, 200))):
                assert shown[24, x].tolist() == pytest.approx(colour, abs=4), (matrix, span)


@given(st.integers(1, 400), st.floats(0.5, 60), st.integers(1, 64), st.data())
def test_what_is_chosen_lies_in_order_within_the_part(frames, rate, count, data):
    facts = VideoInfo(times_s=tuple(n / rate for n in range(frames)), duration_s=frames / rate, size=(8, 8))
    start = data.draw(st.floats(0, facts.duration_s * 0.99))
    end = data.draw(st.floats(start, facts.duration_s).filter(lambda e: e > start))
    found = frame_indices(Clip(path="x", count=count, start_s=start, end_s=end), facts, VideoLimits(max_frames=32))
    assert 1 <= len(found) <= min(count, 32) and list(found) == sorted(set(found))
    assert all(start - 1 / rate - 1e-6 <= facts.times_s[i] <= end for i in found)
    sampled = frame_indices(Clip(path="x", fps=data.draw(st.floats(0.1, 60)), start_s=start, end_s=end), facts, VideoLimits())
    assert sampled and list(sampled) == sorted(sampled)
    assert all(start - 1 / rate - 1e-6 <= facts.times_s[i] <= end for i in sampled)
    whole = frame_indices(Clip(path="x", count=count), facts, VideoLimits(max_frames=count))
    assert len(whole) == min(count, frames)
    assert count == 1 or len(whole) == 1 or (whole[0], whole[-1]) == (0, frames - 1)


# -- once, and within bounds --------------------------------------------------------------------------------------------------


def test_a_clip_is_decoded_once(good):
    clear_cache()
    before = Count.files
    for _ in range(5):
        cached_frames(Clip(path=str(good), count=5))
    assert Count.files == before + 1
    good.touch()
    cached_frames(Clip(path=str(good), count=5))
    assert Count.files == before + 2, "the file may have changed"


def test_what_is_kept_has_a_bound(good, monkeypatch):
    clear_cache()
    one = cached_frames(Clip(path=str(good), count=5))
    monkeypatch.setattr(decoding, "KEPT_BYTES", int(2.5 * one.frames_THWC.nbytes))
    for start in range(9):
        cached_frames(Clip(path=str(good), indices=tuple(range(start, start + 5))))
        assert sum(f.frames_THWC.nbytes for f in _KEPT.values()) <= decoding.KEPT_BYTES
    assert len(_KEPT) == 2
    with pytest.raises(ValueError, match="read-only"):
        one.frames_THWC[0] = 0


def test_frames_have_the_size_that_is_looked_at(good):
    found = cached_frames(Clip(path=str(good), count=4), VideoLimits(factor=28, max_pixels=28 * 28 * 2))
    assert found.frames_THWC.shape == (4, 28, 28, 3)
    shared = cached_frames(Clip(path=str(good), count=50), VideoLimits(factor=2, total_pixels=50 * 16 * 12))
    assert shared.frames_THWC.shape == (50, 12, 16, 3)


# -- files that are broken ----------------------------------------------------------------------------------------------------


def without_sound(folder):
    path = folder / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        for _ in range(20):
            frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
            frame.rate = 44100
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def with_cover(path, codec, rate, frames):
    """A file with a stream of `frames` and the picture of its cover in magenta."""
    with av.open(str(path), "w", format="matroska" if path.suffix == ".mkv" else "mp4") as container:
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 32, 32, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        stream = container.add_stream(codec, rate=rate)
        if codec == "libx264":
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        magenta = av.VideoFrame.from_ndarray(np.full((32, 32, 3), (255, 0, 255), np.uint8), format="rgb24")
        container.mux([*cover.encode(magenta), *cover.encode()])
        for frame in frames:
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def test_a_cover_is_no_clip(folder):
    sound = [av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo") for _ in range(9)]
    for frame in sound:
        frame.rate = 44100
    with pytest.raises(UserError, match=r"song\.m4a holds no pictures, only sound: leave it out"):
        probe(with_cover(folder / "song.m4a", "aac", 44100, sound))
    pictures = [av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in footages.frames(9)]
    for name in ("covered.mp4", "covered.mkv"):  # Matroska doesn't say that the first stream is one
        found = cached_frames(Clip(path=with_cover(folder / name, "libx264", 9, pictures), count=3))
        assert numbers(found) == list(found.indices) == [0, 4, 8]


BROKEN = {
    "zero": (lambda d: b"", "is empty, 0 bytes"),
    "text": (lambda d: b"this is no video\n" * 100, "broken or of an unknown kind"),
    "list": (lambda d: b"ffconcat version 1.0\nfile good.mp4\n", r"of an unknown kind \(Invalid argument\)"),
    "start": (lambda d: b"\0" * 700 + d[700:], "broken or of an unknown kind"),
    "half": (lambda d: d[: len(d) // 2], "broken or of an unknown kind"),
    "middle": (lambda d: scrambled(d, 0.3, 0.6), "is broken"),
    "end": (lambda d: scrambled(d, 0.8, 0.99), "is broken"),
    "fast": (lambda d: ticks(d, 2**31 - 1), r"has impossible times, 50 frames in .* s"),
    "coding": (lambda d: d.replace(b"avc1", b"zzzz"), "is broken, or coded in a way that can't be read"),
}


def scrambled(data, first, last):
    """The pictures between these shares of the file's data replaced by noise."""
    at = data.index(b"mdat") + 4
    length = struct.unpack(">I", data[at - 8 : at - 4])[0] - 8
    a, b = at + int(first * length), at + int(last * length)
    data[a:b] = np.random.RandomState(0).randint(0, 256, b - a, dtype=np.uint8).tobytes()
    return data


def ticks(data, rate):
    """Every track has so many units of time a second."""
    for at in [i for i in range(len(data)) if data[i : i + 4] == b"mdhd"]:
        data[at + 16 : at + 20] = struct.pack(">I", rate)
    return data


@pytest.mark.parametrize("how", BROKEN)
def test_broken_files_are_named(good, how):
    change, why = BROKEN[how]
    path = altered(good, f"{how}.mp4", change)
    with pytest.raises(UserError, match=why) as told:
        cached_frames(Clip(path=path, count=COUNT))
    assert path in str(told.value) and "\n" not in str(told.value)


def test_frames_that_are_too_narrow_are_told_by_their_file(folder):
    path = footages.write(folder / "narrow.mkv", footages.frames(2, 1024, 4), 8, "mpeg4")
    with pytest.raises(UserError, match=r"^video .*narrow\.mkv: its frames of 1024 x 4 are too narrow: crop or pad them$"):
        cached_frames(Clip(path=str(path)))


def test_a_file_that_ends_too_early(folder):
    path = footages.write(folder / "long.mkv", footages.frames(COUNT), 5, crf="10", g="5")
    cut = folder / "cut.mkv"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"cut\.mkv was cut off: it ends after \d\.\d of 10\.0 s"):
        probe(cut)


def test_metadata_is_not_believed(folder):
    """An AVI file that says it has 10^9 frames at no rate at all."""
    path = footages.write(folder / "lies.avi", footages.frames(20), 10, "mpeg4", **FINE)
    data = bytearray(path.read_bytes())
    frames = data.index(b"avih") + 8 + 16
    data[frames : frames + 4] = struct.pack("<I", 10**9)
    length = data.index(b"strh") + 8 + 32
    data[length : length + 4] = struct.pack("<I", 10**9)
    path.write_bytes(data)
    found = cached_frames(Clip(path=str(path), count=4))
    assert numbers(found) == [0, 6, 13, 19] and probe(path).frames == 20
    scale = data.index(b"strh") + 8 + 20
    data[scale : scale + 8] = struct.pack("<II", 1, 0)
    path.write_bytes(data)
    assert probe(path).frames == 20


def test_time_and_size_are_bounded(folder, good, monkeypatch):
    large = footages.write(folder / "large.mp4", footages.frames(2, 160, 120), RATE)
    monkeypatch.setattr(video_files, "MAX_FRAME_PIXELS", 128 * 96)
    with pytest.raises(UserError, match=r"large\.mp4 is (too large, 160 x 120|broken)"):
        cached_frames(Clip(path=str(large)))
    assert len(cached_frames(Clip(path=str(good), count=3)).indices) == 3
    monkeypatch.setattr(video_files, "MAX_SECONDS", -1.0)
    with pytest.raises(UserError, match=r"good\.mp4 takes more than -1 s to decode"):
        cached_frames(Clip(path=str(good), count=4))


def test_the_frames_of_a_clip_are_in_memory_once(good):
    tracemalloc.start()
    try:
        found = decoding.decode(Clip(path=str(good), shuffled=3), VideoLimits(max_frames=COUNT, fps=RATE, min_pixels=2**18))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.indices) == COUNT and peak < 1.3 * found.frames_THWC.nbytes


def test_long_clips_are_sampled(folder):
    with av.open(str(folder / "10000.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        for n in range(10_000):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((16, 16, 3), n % 200, np.uint8), format="rgb24")))
        container.mux(stream.encode())
    found = cached_frames(Clip(path=str(folder / "10000.mp4")), VideoLimits(max_frames=16))
    assert len(found.indices) == 16 and found.indices[-1] == 9999 and found.duration_s == pytest.approx(333.3, abs=0.1)


def test_one_frame(folder):
    path = footages.write(folder / "one.mp4", footages.frames(1), 25)
    found = cached_frames(Clip(path=str(path)))
    assert numbers(found) == [0] and found.times_s == (0.0,) and found.duration_s > 0


def test_other_things_than_videos(folder, good):
    (folder / "list.m3u8").write_text(f"#EXTM3U\n#EXTINF:10,\n{good}\n#EXT-X-ENDLIST\n")
    (folder / "list.ffconcat").write_text(f"ffconcat version 1.0\nfile {good}\n")
    cases = {
        without_sound(folder): "holds no pictures, only sound",
        str(folder): "is no file",
        str(folder / "none.mp4"): "does not exist",
        "https://example.org/a.mp4": "is a URL",
        str(folder / "list.m3u8"): "broken or of an unknown kind",
        str(folder / "list.ffconcat"): "broken or of an unknown kind",
        "/dev/zero": "is no file",
    }
    for path, why in cases.items():
        with pytest.raises(UserError, match=why):
            cached_frames(Clip(path=path))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"fps": 1, "count": 2}, "fps and count are both given"),
        ({"fps": 0}, "from 1e-06 to 1000"),
        ({"fps": float("nan")}, "from 1e-06 to 1000"),
        ({"fps": 1e9}, "from 1e-06 to 1000"),
        ({"count": 0}, "must be 1 to"),
        ({"start_s": 3, "end_s": 2}, "give 0 <= start_s < end_s"),
        ({"start_s": -1}, "give 0 <= start_s < end_s"),
        ({"order": (0, 2)}, "no permutation"),
        ({"count": 2.5}, r"count = 2\.5 must be a whole number"),
        ({"fps": "x"}, "fps = 'x' must be a number"),
        ({"end_s": True}, "end_s = True must be a number"),
        ({"indices": (1.5,)}, "must be whole numbers"),
        ({"indices": (3, 50)}, "has 50 frames: there is no frame 50"),
        ({"start_s": 2.5}, r"has 2\.00 s: there is no part from 2\.5"),
        ({"end_s": 30.0}, "there is no part from 0 to 30 s"),
        ({"count": 4, "order": (1, 0)}, "order has 2 numbers, and 4 frames are shown"),
    ],
)
def test_what_cant_be_shown(good, keys, why):
    with pytest.raises(UserError, match=why) as told:
        cached_frames(Clip(path=str(good), **keys))
    assert "good.mp4" in str(told.value)


@pytest.mark.parametrize("path", ["a\0b.mp4", "x" * 5000, 5])
def test_paths_that_nothing_could_have(path):
    with pytest.raises(UserError, match=r"can't be looked up|must be a text|a\?b\.mp4 does not exist") as told:
        cached_frames(Clip(path=path))
    assert len(str(told.value)) < 300 and "\0" not in str(told.value)


def test_footage_that_is_none():
    fine = VideoFrames(frames_THWC=np.zeros((2, 8, 8, 3), np.uint8), times_s=(0.0, 1.0), duration_s=2.0, name="mine")
    for wrong in (
        replace(fine, frames_THWC=np.zeros((2, 8, 8), np.uint8)),
        replace(fine, frames_THWC=np.zeros((2, 8, 8, 3))),
        replace(fine, times_s=(0.0,)),
        replace(fine, frames_THWC=np.zeros((0, 8, 8, 3), np.uint8), times_s=()),
    ):
        with pytest.raises(UserError, match="video mine"):
            cached_frames(wrong)
    few = cached_frames(
        replace(fine, frames_THWC=np.zeros((9, 8, 8, 3), np.uint8), times_s=tuple(range(9))), VideoLimits(max_frames=3)
    )
    assert few.times_s == (0, 4, 8)


def test_files_are_closed(good):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        probe(good)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_one_scaler_for_a_clip_gives_the_pixels_of_one_for_each_frame():
    draw, scaler = np.random.default_rng(0), Scaler()
    for height, width, size in ((48, 64, (64, 48)), (48, 64, (32, 24)), (90, 60, (32, 24)), (48, 64, (100, 80))):
        frame = av.VideoFrame.from_ndarray(draw.integers(0, 256, (height, width, 3), np.uint8), format="rgb24").reformat(
            format="yuv420p"
        )
        alone = frame.to_ndarray(format="rgb24", width=size[0], height=size[1], interpolation="BICUBIC")
        assert (scaler(frame, *size) == alone).all()
