"""`video/qa-data` with folders of pictures as clips, as MVBench's episodic reasoning has them."""

import json

import pytest
from mmrl_video.data.qa import QuestionData
from PIL import Image

from broken_rows import faults_of
from mmrl import UserError
from mmrl.api.media.decoding import cached_frames


@pytest.fixture
def ask(tmp_path):
    """The task of some rows about a folder of twelve pictures."""
    folder = tmp_path / "frames" / "friends_s01"
    folder.mkdir(parents=True)
    for n in range(1, 13):
        Image.new("RGB", (32, 24), (20 * n, 0, 0)).save(folder / f"{n:05}.jpg")

    def make(*changes, **options):
        row = {"video": "friends_s01", "question": "Who?", "candidates": ["Joey", "Ross"], "answer": "Ross"}
        (tmp_path / "rows.json").write_text(json.dumps([row | change for change in changes]))
        return QuestionData(path=str(tmp_path / "rows.json"), videos=str(folder.parent), shares={"test": 1}, **options)

    return make


def test_a_folder_is_a_clip_of_so_many_pictures_a_second(ask):
    task = ask({"start": 1, "end": 3}, {}, {"fps": 6}, part=["start", "end"], rate=3, count=3)
    part, whole, fast = sorted(task.prompts("test", 0), key=lambda prompt: prompt.id)
    assert [one.meta["duration"] for one in (part, whole, fast)] == [2.0, 4.0, 2.0]
    assert cached_frames(part.videos[0]).indices == (3, 5, 8) and cached_frames(whole.videos[0]).indices == (0, 5, 11)
    assert cached_frames(whole.videos[0]).times_s == pytest.approx((0, 5 / 3, 11 / 3)), "a second has three pictures"
    assert part.answer == "B" and task.gold(part) == "B"


def test_what_can_not_be_a_clip_is_named(ask, tmp_path):
    (fault,) = faults_of(ask({}))
    assert "rows.json item 0" in fault and "friends_s01 is a folder of pictures: set rate, their number per second" in fault
    (fault,) = faults_of(ask({"start": 3, "end": 9}, part=["start", "end"], rate=3))
    assert "its span from 3 to 9 s is beyond the clip, which has 4.00 s" in fault
    (fault,) = faults_of(ask({"duration": 60}, rate=3))
    assert "its duration is 60 s and the file has 4.00 s: it is another cut" in fault
    (tmp_path / "frames" / "empty").mkdir()
    (fault,) = faults_of(ask({"video": "empty"}, rate=3))
    assert "empty is a folder without pictures: leave it out" in fault


@pytest.mark.parametrize("rate", [0, -3, "3", True, float("nan"), 2000, 1e-320, 10**400])
def test_a_rate_that_can_not_be(ask, rate):
    with pytest.raises(UserError, match=r"rate = .* must be a number from 1e-06 to 1000"):
        ask({}, rate=rate)
