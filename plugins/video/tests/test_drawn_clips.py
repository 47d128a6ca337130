"""Clips drawn here: what is said to happen is what can be measured from the pixels of the decoded file, frame by frame."""

import os
import time
from pathlib import Path

import av
import numpy as np
import pytest
from mmrl_video.drawn import films, moves, plots, story
from mmrl_video.drawn.plots import Stage
from mmrl_video.drawn.shapes import COLOURS

from mmrl.api.tasks.image_sources import chance
from mmrl.testing.cases import mostly_slow

STAGES = {"small": Stage(), "middle": Stage(width=224, height=224, rate=4, shortest_s=6, longest_s=8, grid_s=0.5, objects=4)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of its own for the clips of each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    films.folder.cache_clear()
    yield tmp_path / "cache" / "mmrl" / "clips"
    films.folder.cache_clear()


def decoded(path):
    """(the frames of a file, uint8 [F, H, W, 3], its frames a second), read by PyAV alone."""
    with av.open(str(path)) as box:
        rate = box.streams.video[0].average_rate
        frames = [(frame.pts * frame.time_base, frame.to_ndarray(format="rgb24")) for frame in box.decode(video=0)]
    assert [t for t, _ in frames] == [i / rate for i in range(len(frames))]
    return np.stack([f for _, f in frames]), rate


def has(frames, colour):
    """Which pixels have a colour, bool [F, H, W]."""
    apart = np.abs(frames.astype(int) - np.array(COLOURS[colour])).max(-1)
    return apart < 60


def sides(mask):
    """(x1, y1, x2, y2) of what a mask covers."""
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def span(true):
    """(first, after the last) of the frames for which something is true; they must be without a gap."""
    at = np.nonzero(true)[0]
    assert len(at) == at[-1] - at[0] + 1
    return at[0], at[-1] + 1


def measured(one, event, frames):
    """When an event happens, in frames, by the colours of the picture alone."""
    if event.kind == "caption":
        x1, y1, x2, y2 = one.captions[0].band
        dark = (frames[:, y1:y2, x1:x2].max(-1) < 50).mean((1, 2)) > 0.5  # a band,
        light = (frames[:, y1:y2, x1:x2].min(-1) > 120).sum((1, 2)) > 5  # and letters on it
        assert light[dark].all()
        return span(dark)
    actor = one.actors[event.who]
    top, bottom = min(b[1] for b in actor.boxes_F), max(b[3] for b in actor.boxes_F)  # where it moves meets no other
    frames = frames[:, max(0, top - 1) : bottom + 1]
    mask = has(frames, actor.colour)
    area = mask.sum((1, 2))
    there = area > 0.3 * np.median(area[area > 5])
    if event.kind == "colour":
        return span(has(frames, event.more["colour"]).sum((1, 2)) > 0.3 * np.median(area[there]))
    if event.kind == "hide":
        return span(~there)
    if event.kind == "visit":
        return span(area > 0)
    if event.kind == "blink":
        gone = np.nonzero(~there)[0]
        return gone[0], gone[-1] + 1
    if event.kind == "grow":
        return span(area > 1.4 * np.median(np.sort(area)[: len(area) // 2]))
    if event.kind in ("move", "bounce"):  # from one frame to the next
        changed = np.abs(np.diff(frames.astype(int), axis=0)).max(-1) > 40
        return span(np.concatenate([[False], changed.sum((1, 2)) > 2]))
    boxes = np.array([sides(m) for m in mask])
    if event.kind == "touch":
        other = has(frames, one.actors[1].colour)
        return span(np.array([sides(o)[0] for o in other]) - boxes[:, 2] <= 4)
    return span(np.abs(boxes[:, 0] - boxes[0, 0]) > 1)  # it shakes


@pytest.mark.parametrize("size", STAGES)
@pytest.mark.parametrize("kind", mostly_slow(moves.KINDS, everyday=2))
def test_what_happens_is_measured_from_the_pixels_of_the_file(kind, size):
    stage = STAGES[size]
    for seed in range(8 if size == "small" else 2):
        one = plots.eventful(chance(seed, kind), stage, [kind]).story()
        plot = plots.eventful(chance(seed, kind), stage, [kind])
        event = plot.events[0]
        frames, rate = decoded(films.file_of(one))
        assert frames.shape == (one.frames, one.height, one.width, 3) and rate == one.rate
        assert measured(one, event, frames) == (event.start_s * one.rate, event.end_s * one.rate), (seed, event.tells)
        assert 0 < event.start_s < event.end_s <= one.duration_s and not event.start_s % stage.grid_s


@pytest.mark.parametrize("kind", moves.KINDS)
def test_the_measure_sees_an_event_that_is_a_frame_off(kind):
    """A planted fault: everything happens one frame later than it is said."""
    one = plots.eventful(chance(1, kind), Stage(moving=0.0), [kind]).story()
    event = one.events[0]
    late = story.paint(one)
    late[1:] = late[:-1].copy()
    assert measured(one, event, late) == (event.start_s * one.rate + 1, event.end_s * one.rate + 1)


def test_things_are_where_they_are_said_to_be():
    for seed in range(12):
        one = plots.cast(chance(seed, "where"), STAGES["small"]).story()
        frames, _ = decoded(films.file_of(one))
        for who, actor in enumerate(one.actors):
            for frame in range(0, one.frames, 5):
                assert np.abs(np.subtract(sides(has(frames[frame], actor.colour)), one.seen(who, frame))).max() <= 1


def test_no_two_things_of_a_clip_have_a_colour_or_a_place_in_common():
    for seed in range(60):
        one = plots.eventful(chance(seed, "apart"), STAGES["middle"], moves.KINDS).story()
        colours = [{c for c in a.colours_F if c} | {a.colour} for a in one.actors]
        assert sum(map(len, colours)) == len(set().union(*colours))
        for frame in range(one.frames):
            seen = [box for who in range(len(one.actors)) if (box := one.seen(who, frame))]
            for i, a in enumerate(seen):
                assert all(min(a[2], b[2]) - max(a[0], b[0]) <= 0 or min(a[3], b[3]) - max(a[1], b[1]) <= 4 for b in seen[:i])


@pytest.mark.parametrize("kind", ["plain", "texture", "photo"])
@pytest.mark.parametrize("codec", films.CODECS)
def test_colours_survive_on_every_background_and_with_every_encoder(kind, codec, monkeypatch, tmp_path):
    monkeypatch.setattr(films, "_codec", lambda: codec)
    one = plots.cast(chance(4, kind), Stage(backgrounds=(kind,), width=128, height=96)).story()
    painted = story.paint(one)
    films.encode(painted, one.rate, tmp_path / "clip.mp4")
    frames, _ = decoded(tmp_path / "clip.mp4")
    assert np.abs(frames.astype(int) - painted).mean() < 4
    for actor in one.actors:
        x1, y1, x2, y2 = actor.boxes_F[0]
        middle = frames[0, (y1 + y2) // 2, (x1 + x2) // 2].astype(int)
        assert np.abs(middle - COLOURS[actor.colour]).max() < 25


# -- files ------------------------------------------------------------------------------------------------------------------


def test_the_same_story_is_the_same_file_and_is_encoded_once(cache, monkeypatch):
    one = plots.eventful(chance(0, "once"), STAGES["small"], moves.KINDS).story()
    first = films.file_of(one)
    content = Path(first).read_bytes()
    os.utime(first, (1, 1))
    monkeypatch.setattr(films, "encode", lambda *_: pytest.fail("encoded again"))
    assert films.file_of(one) == first and Path(first).stat().st_mtime > 1  # it is noted as used
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "other"))
    films.folder.cache_clear()
    assert films.file_of(one) != first and Path(films.file_of(one)).read_bytes() == content


def test_an_empty_file_is_written_again():
    one = plots.cast(chance(0, "empty"), STAGES["small"]).story()
    path = films.file_of(one)
    content = Path(path).read_bytes()
    Path(path).write_bytes(b"")
    assert films.file_of(one) == path and Path(path).read_bytes() == content


def test_another_background_is_another_file_and_the_same_plot():
    one, other = (plots.cast(chance(0, "x"), Stage(backgrounds=(kind,))).story() for kind in ("plain", "photo"))
    assert one.plot() == other.plot() and one.digest() != other.digest()


def test_half_a_file_is_never_seen(cache, monkeypatch):
    one = plots.cast(chance(0, "half"), STAGES["small"]).story()

    def breaks(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(films.os, "replace", breaks)
    with pytest.raises(KeyboardInterrupt):
        films.file_of(one)
    assert list(cache.iterdir()) == []


def test_the_folder_is_bounded_and_what_was_just_used_stays(tmp_path):
    now = time.time()
    for i in range(6):
        (tmp_path / f"{i}.mp4").write_bytes(bytes(100))
        os.utime(tmp_path / f"{i}.mp4", (now, now - 10_000 + i if i < 4 else now))
    (tmp_path / "mine.txt").write_bytes(bytes(10_000))
    assert films.clear(tmp_path, 350, now) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3.mp4", "4.mp4", "5.mp4", "mine.txt"]
    assert films.clear(tmp_path, 0, now) == 1  # the two that are in use stay


def test_old_clips_are_removed_while_new_ones_are_written(cache, monkeypatch):
    monkeypatch.setattr(films, "LOOK_EVERY", 4)
    monkeypatch.setattr(films, "KEEP_BYTES", 1)
    cache.mkdir(parents=True)
    (cache / "old.mp4").write_bytes(b"1")
    os.utime(cache / "old.mp4", (1, 1))
    paths = [films.file_of(plots.cast(chance(i, "old"), STAGES["small"]).story()) for i in range(4)]
    assert not (cache / "old.mp4").exists() and all(Path(p).exists() for p in paths)


def test_a_file_in_place_of_the_folder_is_no_end(tmp_path, monkeypatch):
    (place := tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    films.folder.cache_clear()
    leave = []
    monkeypatch.setattr(films.atexit, "register", leave.append)
    path = Path(films.file_of(plots.cast(chance(0, "closed"), STAGES["small"]).story()))
    assert path.exists() and place not in path.parents
    leave[0]()
    assert not path.parent.exists()
