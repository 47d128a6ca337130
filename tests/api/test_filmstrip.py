"""A clip as one picture, and as a film in a report: what people see of what a policy is shown."""

import numpy as np
import pytest

import footages
from mmrl.api.media.clips import Clip, VideoFrames
from mmrl.api.media.filmstrip import SAID, TRUE, TimeSpan, filmstrip
from mmrl.api.tasks.overlays import Overlay
from mmrl.api.types import Prompt, user_message
from mmrl.run_folder.webp import clip_video, decode_webp, encode_webp
from mmrl.ui.report.contact_sheet import contact_sheet


@pytest.fixture
def footage():
    return VideoFrames(frames_THWC=footages.frames(10), times_s=tuple(float(n) for n in range(10)), duration_s=10.0)


def reach(sheet, colour):
    """(first, last) column with this colour."""
    columns = np.nonzero((np.asarray(sheet) == colour).all(2).any(0))[0]
    return (int(columns[0]), int(columns[-1])) if len(columns) else None


def test_spans_lie_where_they_are_in_time(footage):
    spans = [TimeSpan(name="", start_s=2.0, end_s=5.0), TimeSpan(name="", start_s=-1.0, end_s=99.0, colour=SAID)]
    sheet = filmstrip(footage, spans, width=1001)
    bar = np.asarray(sheet)[-30:]  # without the text beside it the bar alone has whole columns
    full = np.nonzero((bar == TRUE).all(2).sum(0) >= 10)[0]
    assert (full.min(), full.max()) == (200, 500)
    assert reach(sheet, SAID) == (0, 1000), "cut at the clip's ends"
    assert reach(filmstrip(footage), TRUE) is None and filmstrip(footage).height < sheet.height


def test_moments_are_spread_from_the_first_to_the_last(footage):
    sheet = np.asarray(filmstrip(footage, width=4 * 64 + 3 * 4, most=4, across=4))
    shown = [int(sheet[30, k * 68 + 48, 0]) for k in range(4)]
    assert shown == [footages.grey(n) for n in (0, 3, 6, 9)]
    assert filmstrip(footage, most=9, across=3).height > 2 * filmstrip(footage, most=3, across=3).height


def test_a_clip_plays_as_long_as_it_is(footage, tmp_path):
    made = clip_video(footage)
    assert made.times_ms == (1000,) * 10 and len(decode_webp(encode_webp(made))) == 10
    path = footages.write(tmp_path / "a.mp4", footages.frames(20), fps=10)
    assert sum(clip_video(Clip(path=str(path), count=5)).times_ms) == pytest.approx(2000, abs=2)
    long = VideoFrames(frames_THWC=np.zeros((300, 8, 8, 3), np.uint8), times_s=tuple(range(300)), duration_s=300.0)
    assert len(clip_video(long).times_ms) == 64 and sum(clip_video(long).times_ms) == 300_000


def test_sheets_show_clips(footage):
    asked = [Prompt(id="a", messages=[user_message("When?", *shown)], answer="3 to 4") for shown in ([footage], [])]
    film, none = ({tuple(p) for p in np.asarray(contact_sheet([p], "t", "")).reshape(-1, 3)} for p in asked)
    assert (footages.grey(9),) * 3 in film - none, "its last frame"


def test_a_sheet_has_the_true_times_below_the_clip(footage):
    asked = [Prompt(id="a", messages=[user_message("When?", footage)], answer="3 to 4")]
    marks = [Overlay(kind="interval", coordinates=(2.0, 5.0, 10.0), source=of) for of in ("true", "said")]
    plain, true, said = (np.asarray(contact_sheet(asked, "t", marks=[own])) for own in ([], marks[:1], marks[1:]))
    assert (plain == said).all() and (true == TRUE).all(2).sum() > 10 + (plain == TRUE).all(2).sum()
