"""People's tables about clips: every form gives the same truth, and a row that can't be used is named by its file and line."""

import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from mmrl_video import answers, kinds, time_r1
from mmrl_video.data import files, published, times
from mmrl_video.data.grounded import GroundedData
from mmrl_video.data.qa import QuestionData
from mmrl_video.data.questions import question
from mmrl_video.data.temporal import TemporalData
from mmrl_video.data.tracking import TrackingData
from mmrl_video.drawn.films import encode
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.filmstrip import SAID, TRUE

ALL = {"test": 1}
CLIPS = [f"c{number}" for number in range(8)]
RATE, FRAMES, SIDE = 4, 24, 32


def span_of(number: int) -> list[float]:
    """When the square of clip `number` is white."""
    return [0.5 + number % 4 * 0.5, 2.5 + number % 4 * 0.75]


def box_of(number: int, frame: int) -> list[int]:
    """Where it is, in pixels."""
    x = (number + frame) % (SIDE - 10)
    return [x, 8, x + 10, 18]


@pytest.fixture(scope="session")
def filmed(tmp_path_factory):
    """The folder of eight clips of six seconds, c0.mp4 to c7.mp4, and below `below/` another, c8.mp4."""
    folder = tmp_path_factory.mktemp("clips")
    (folder / "below").mkdir()
    for number in range(9):
        frames = np.full((FRAMES, SIDE, SIDE, 3), 30 + 20 * number, np.uint8)
        start, end = span_of(number)
        for frame in range(FRAMES):
            x1, y1, x2, y2 = box_of(number, frame)
            white = start <= frame / RATE < end
            frames[frame, y1:y2, x1:x2] = 255 if white else (200, 40, 40)
        encode(frames, RATE, folder / ("below/c8.mp4" if number == 8 else f"c{number}.mp4"))
    return folder


@pytest.fixture
def table(tmp_path):
    """Write a table; its path. Rows are a list or an object for JSON, or the text of a file."""

    def write(name: str, rows) -> str:
        path: Path = tmp_path / name
        if isinstance(rows, str):
            path.write_text(rows)
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            path.write_text(json.dumps(rows))
        return str(path)

    return write


def every(task):
    return [p for split in task.splits for p in task.prompts(split, 0)]


def by_clip(task):
    """Clip -> its prompt."""
    return {p.videos[0].path.rsplit("/", 1)[1].removesuffix(".mp4"): p for p in every(task)}


def refusals(task):
    """What is said of the rows that can't be used, and how many can."""
    rows, said, good = task.prompts("test", 0), [], 0
    for i in range(len(rows)):
        try:
            rows[i]
            good += 1
        except UserError as error:
            said.append(str(error))
    return said, good


# -- when -------------------------------------------------------------------------------------------------------------------


def temporal_tables(table):
    named = [(name, span_of(n), f"The thing {n} is white.") for n, name in enumerate(CLIPS)]
    return {
        "charades": table("sta.txt", "".join(f"{v} {s} {e}##{text}\n" for v, (s, e), text in named)),
        "activitynet": table(
            "anet.json", {v: {"duration": 6.0, "timestamps": [span], "sentences": [text]} for v, span, text in named}
        ),
        "time-r1": table(
            "r1.json", [{"video": f"./{v}.mp4", "timestamp": span, "sentence": text, "duration": 6.0} for v, span, text in named]
        ),
        "tvgbench": table(
            "tvg.jsonl",
            [
                {"path": f"{v}.mp4", "question": text, "answer": f"{s}-{e}", "start": None, "end": None, "duration": 6}
                for v, (s, e), text in named
            ],
        ),
        "columns": table(
            "rows.csv", "video,start,end,query\n" + "".join(f"{v}.mp4,{s},{e},{text}\n" for v, (s, e), text in named)
        ),
        "several": table("moments.json", [{"vid": v, "query": text, "relevant_windows": [span]} for v, span, text in named]),
    }


def test_all_forms_of_times_give_the_same(filmed, table):
    for name, path in temporal_tables(table).items():
        found = by_clip(TemporalData(path=path, videos=str(filmed), shares=ALL))
        assert sorted(found) == CLIPS, name
        for number, clip in enumerate(CLIPS):
            prompt = found[clip]
            assert prompt.answer == span_of(number) and prompt.meta["spans"] == [tuple(span_of(number))], name
            assert prompt.meta["duration"] == 6.0 and f"thing {number} is white" in prompt.text


def test_parts_of_the_clip_and_several_spans(filmed, table):
    rows = [{"video": "c0", "solution": [0.25, 0.5], "sentence": "it is white"}]
    (prompt,) = every(TemporalData(path=table("parts.json", rows), videos=str(filmed), shares=ALL, times="parts"))
    assert prompt.answer == [1.5, 3.0]
    path = table("two.json", [{"video": "c0", "spans": [[1, 2], [4, 5.5]], "sentence": "it is white"}])
    (prompt,) = every(TemporalData(path=path, videos=str(filmed), shares=ALL))
    assert prompt.answer == [[1, 2], [4, 5.5]] and prompt.meta["asks"] == "spans"
    assert TemporalData(path=path, videos=str(filmed), shares=ALL).gold(prompt) == "1 to 2, 4 to 5.5"
    with pytest.raises(UserError, match=r"two\.json item 0: it has 2 spans, and time-r1 needs one"):
        every(TemporalData(path=path, videos=str(filmed), shares=ALL, style="time-r1"))


@pytest.mark.parametrize(
    "row, why",
    [
        ({"video": "gone"}, "there is no clip 'gone' in .*clips"),
        ({"video": "https://host/c0.mp4"}, "is a URL: download it first"),
        ({"video": "twice"}, "its clip 'twice' exists several times"),
        ({"video": 3.5}, "its clip is 3.5 and not the name of a file"),
        ({"video": "x" * 5000}, "its path has 5,000 characters|can't be looked up"),
        ({"video": "nul\0"}, "there is no clip|can't be looked up"),
        ({"video": "text.mp4"}, "video .*text.mp4 is broken or of an unknown kind"),
        ({"video": "empty.mp4"}, "video .*empty.mp4 is empty, 0 bytes"),
        ({"video": "half.mp4"}, "video .*half.mp4 (is broken|was cut off)"),
        ({"duration": 60}, "its duration is 60 s and the file has 6.00 s: it is another cut"),
        ({"duration": "an hour"}, "its duration is 'an hour' and not a number of seconds"),
        ({"duration": 10**400}, "too large"),
        ({"timestamp": [10**400, 3]}, "is not two times in seconds"),
        ({"timestamp": [3, 9]}, "its span from 3 to 9 s is beyond the clip, which has 6.00 s"),
        ({"timestamp": [6.2, 6.8]}, "its span from 6.2 to 6.8 s is beyond the clip"),
        ({"timestamp": [4, 3]}, "its span from 4 to 3 s is reversed"),
        ({"timestamp": [3, 3]}, "its span from 3 to 3 s is empty"),
        ({"timestamp": [-1, 3]}, "its span from -1 to 3 s is negative"),
        ({"timestamp": [1]}, r"its span \[1\] is not two times in seconds"),
        ({"timestamp": [1, float("nan")]}, "is not two times in seconds"),
        ({"timestamp": ["a", "b"]}, "is not two times in seconds"),
        ({"timestamp": [True, 2]}, "is not two times in seconds"),
        ({"timestamp": "soon"}, "its times are 'soon'"),
        ({"timestamp": None}, "it has no times under any of"),
        ({"sentence": ""}, "it has no sentence under any of"),
        ({"sentence": ["a"]}, r"its sentence is \['a'\] and not a text"),
    ],
)
def test_a_row_that_will_not_do_is_named_and_the_others_are_there(filmed, table, tmp_path, row, why):
    folder = tmp_path / "clips"
    shutil.copytree(filmed, folder)
    (folder / "more").mkdir()
    for parent in ("below", "more"):
        shutil.copyfile(filmed / "c1.mp4", folder / parent / "twice.mp4")
    (folder / "text.mp4").write_text("this is no video\n" * 50)
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "half.mp4").write_bytes((filmed / "c0.mp4").read_bytes()[:-600])
    good = {"video": "c0", "timestamp": [1, 2], "sentence": "it is white"}
    path = table("bad.jsonl", [good, {**good, **row}, {**good, "video": "c1.mp4"}])
    said, count = refusals(TemporalData(path=path, videos=str(folder), shares=ALL))
    assert count == 2 and len(said) == 1
    assert "bad.jsonl line 2: " in said[0] and "\n" not in said[0]
    assert re.search(why, said[0]), said[0]


def test_lines_and_captions_that_will_not_do(filmed, table):
    path = table("sta.txt", "c0 1 2##it is white\n\nc1 1##no end\nc2 x 2##no time\nc3 2 3 it has no marks\n")
    said, count = refusals(TemporalData(path=path, videos=str(filmed), shares=ALL))
    assert count == 1 and sorted(s.partition("sta.txt ")[2][:6] for s in said) == ["line 3", "line 4", "line 5"]
    captions = {
        "c0": {"duration": 6, "timestamps": [[1, 2], [2, 3]], "sentences": ["one", "two"]},
        "c1": {"duration": 6, "timestamps": [[1, 2]], "sentences": ["one", "two"]},
        "c2": "none",
    }
    said, count = refusals(TemporalData(path=table("a.json", captions), videos=str(filmed), shares=ALL))
    assert count == 2 and len(said) == 3
    assert sum("it has 1 timestamps and 2 sentences" in s for s in said) == 2 and any(
        "'c2' has no lists of `timestamps` and `sentences`" in s for s in said
    )
    with pytest.raises(UserError, match="videos nowhere does not exist: give the folder of the clips"):
        TemporalData(path=path, videos="nowhere", shares=ALL)
    for name, text in (("none.json", "{}"), ("broken.json", "{1"), ("none.txt", "")):
        with pytest.raises(UserError, match=name):
            TemporalData(path=table(name, text), videos=str(filmed))


def test_a_span_that_is_a_little_outside_is_cut():
    assert times.checked([[5, 7.9]], 6.0) == [(5.0, 6.0)] and times.checked([["0:01", "2s"]], 6.0) == [(1.0, 2.0)]
    assert times.checked([[-0.2, 3]], 6.0) == [(0.0, 3.0)], "as in NExT-GQA"
    with pytest.raises(ValueError, match="beyond"):
        times.checked([[5, 8.01]], 6.0)


def test_no_clip_is_in_two_splits_under_whichever_name(filmed, table):
    rows = [{"video": name, "timestamp": [1, 2], "sentence": f"{i}"} for i, name in enumerate([*CLIPS, *CLIPS])]
    for row in rows[8:]:
        row["video"] = f"./{row['video']}.mp4"
    task = TemporalData(path=table("t.json", rows), videos=str(filmed), shares={"warm": 0.3, "train": 0.3, "test": 0.4}, seed=2)
    seen = {split: {p.videos[0].path.rsplit("/", 1)[1] for p in task.prompts(split, 0)} for split in task.splits}
    assert sum(map(len, seen.values())) == 8 and sum(len(task.prompts(s, 0)) for s in task.splits) == 16
    assert [p.id for p in task.prompts("train", 0)] == [p.id for p in task.prompts("train", 9)]
    own = TemporalData(path=table("t.json", rows), videos=str(filmed), test_path=table("u.json", rows[:3]))
    assert len(own.prompts("train", 0)) == 16 and len(own.prompts("test", 0)) == 3


def test_no_picture_is_in_two_splits(tmp_path):
    """Questions about pictures stand beside those about clips, as in Video-R1's data."""
    for number in range(6):
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [{"image": f"{i % 6}.png", "problem": f"Which {i}?", "solution": "red"} for i in range(36)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = QuestionData(path=str(tmp_path / "q.jsonl"), shares={"train": 0.5, "test": 0.5})
    train, test = ({p.images[0] for p in task.prompts(split, 0)} for split in ("train", "test"))
    assert len(train | test) == 6 and not train & test


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"start": 1.5, "end": 5.5, "duration": 4.0, "answer": "0.5-2"}, (1.5, 5.5)),  # TVGBench
        ({"start": 0, "end": 3, "duration": 3.0, "answer": "0.5-2"}, (0.0, 3.0)),
        ({"video_start": 2.0, "video_end": 6.2, "duration": 4.2, "timestamp": [0.5, 2]}, (2.0, 6.0)),  # Time-R1's training
        ({"video_start": 28.5, "video_end": 34.5, "duration": 6.0, "timestamp": [0.5, 2]}, None),  # its file is the part
        ({"start": None, "end": None, "duration": 6.0, "answer": "0.5-2"}, None),
        ({"start": 0.5, "end": 2, "duration": 6.0, "timestamp": [0.5, 2]}, None),  # an event's own times
        ({"start": 0.5, "end": 2, "duration": 6.0}, None),
    ],
)
def test_the_part_of_a_file_that_a_row_is_about_is_shown(filmed, table, row, part):
    path = table("rows.json", [{"video": "c1", "sentence": "it is white", **row}])
    (prompt,) = every(TemporalData(path=path, videos=str(filmed), shares=ALL))
    (clip,), (start, end) = prompt.videos, part or (0.0, 6.0)
    assert (clip.start_s, clip.end_s or 6.0) == (start, end) and prompt.meta["duration"] == end - start
    assert prompt.answer == [0.5, 2.0] and cached_frames(clip).duration_s == pytest.approx(end - start)


def test_a_clip_in_a_folder_below_is_found_by_its_bare_name(filmed, table):
    rows = [{"video": name, "timestamp": [1, 2], "sentence": "white"} for name in ("c8", "below/c8", "c8.mp4")]
    found = every(TemporalData(path=table("t.json", rows), videos=str(filmed), shares=ALL))
    assert {p.videos[0].path for p in found} == {str(filmed / "below" / "c8.mp4")}
    with pytest.raises(UserError, match="there is no clip 'else/c8'"):
        every(
            TemporalData(
                path=table("t.json", [{"video": "else/c8", "timestamp": [1, 2], "sentence": "a"}]), videos=str(filmed), shares=ALL
            )
        )


def test_listing_opens_no_clip_and_each_is_looked_at_once(filmed, table, monkeypatch):
    rows = [{"video": f"c{i % 8}", "timestamp": [1, 2], "sentence": f"number {i}"} for i in range(30_000)]
    path, opened = table("many.json", rows), []
    real = files.probe
    monkeypatch.setattr(files, "probe", lambda path: opened.append(path) or real(path))
    files._probed.cache_clear()
    begun = time.perf_counter()
    task = TemporalData(path=path, videos=str(filmed), shares={"train": 1})
    prompts = task.prompts("train", 0)
    assert time.perf_counter() - begun < 5 and len(prompts) == 30_000 and not opened
    for i in range(200):
        prompts[i]
    assert len(opened) == len(set(opened)) <= 8


def test_options_are_checked(filmed, table):
    path = temporal_tables(table)["charades"]
    for options, why in (
        ({"style": "loud"}, "style = 'loud' is unknown"),
        ({"times": "frames"}, "times = 'frames' is unknown"),
        ({"fps": 2.0, "count": 8}, "fps and count are both given"),
        ({"fps": 0}, "fps = 0 must be a number from 1e-06 to 1000"),
        ({"fps": True}, "fps = True must be a number"),
        ({"count": 0}, "count = 0 must be a whole number"),
        ({"style": "time-r1", "prompt": "Say."}, "a system's style has its own prompt"),
        ({"shares": {}}, "must give each split a number above 0"),
        ({"shares": {"train": float("inf")}}, "must give each split a number above 0"),
        ({"path": "nowhere.json"}, "nowhere.json does not exist"),
        ({"videos": "a:b"}, "path names 1 tables and videos 2 folders"),
    ):
        with pytest.raises(UserError, match=why):
            TemporalData(**({"path": path, "videos": str(filmed)} | options))
    (prompt, *_) = every(TemporalData(path=path, videos=str(filmed), shares=ALL, count=5))
    assert prompt.videos[0].count == 5 and len(cached_frames(prompt.videos[0]).times_s) == 5
    (prompt, *_) = every(TemporalData(path=path, videos=str(filmed), shares=ALL, fps=1.0))
    assert prompt.videos[0].fps == 1.0 and len(cached_frames(prompt.videos[0]).times_s) == 6


def test_figures_are_those_of_papers(filmed, table):
    task = TemporalData(path=temporal_tables(table)["charades"], videos=str(filmed), shares=ALL)
    results = list(zip(every(task), (1.0, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0), strict=True))
    found = task.summarise(results)
    assert found["mIoU"] == pytest.approx(0.25)
    assert (found["R1@0.3"], found["R1@0.5"], found["R1@0.7"]) == (3 / 8, 2 / 8, 1 / 8)


# -- as published -----------------------------------------------------------------------------------------------------------


def test_prompts_of_systems_word_for_word(filmed, table):
    path = temporal_tables(table)["charades"]
    prompt = by_clip(TemporalData(path=path, videos=str(filmed), shares=ALL, style="time-r1"))["c3"]
    assert prompt.text == (
        'To accurately pinpoint the event "the thing 3 is white" in the video, determine the precise time period of the event.'
        "\n\n"
        "Output your thought process within the <think> </think> tags, including analysis with either specific time ranges "
        "(xx.xx to xx.xx) in <timestep> </timestep> tags.\n\n"
        "Then, provide the start and end times (in seconds, precise to two decimal places) in the format "
        '"start time to end time" within the <answer> </answer> tags. For example: "12.54 to 17.83".'
    )
    assert [part["type"] for part in prompt.messages[0]["content"]] == ["text", "video"]
    zero = by_clip(TemporalData(path=path, videos=str(filmed), shares=ALL, style="timezero"))["c3"]
    assert "with either specific timestamps (xx.xx) or time ranges (xx.xx to xx.xx) in" in zero.text
    own = [{"video": "c0", "timestamp": [1, 2], "sentence": "it is white", "problem": "When is it white?"}]
    (prompt,) = every(TemporalData(path=table("own.json", own), videos=str(filmed), shares=ALL, style="temporal-r1"))
    assert prompt.messages[0] == {"role": "system", "content": published.TEMPORAL_R1_SYSTEM}
    assert prompt.messages[1]["content"][-1]["text"] == "When is it white?"
    rows = [{"path": "c0.mp4", "problem": "How?", "problem_type": "OCR", "solution": "<answer>AB</answer>", "options": []}]
    (prompt,) = every(QuestionData(path=table("v.json", rows), videos=str(filmed), shares=ALL, style="video-r1"))
    assert prompt.text == (
        "How?\nPlease think about this question as if you were a human pondering deeply. Engage in an internal dialogue using "
        "expressions such as 'let me think', 'wait', 'Hmm', 'oh, I see', 'let's break it down', etc, or other natural language "
        "thought expressions It's encouraged to include self-reflection or verification in the reasoning process. Provide your "
        "detailed reasoning between the <think> </think> tags, and then give your final answer between the <answer> </answer> "
        "tags. Please transcribe text from the image/video clearly and provide your text answer within the <answer> </answer> "
        "tags."
    )
    rows = [{"video": "c0", "problem": "Which?\nA. it\nB. that\n", "solution": "<answer>B.</answer>"}]
    (prompt,) = every(QuestionData(path=table("w.json", rows), videos=str(filmed), shares=ALL, style="video-rts"))
    assert prompt.text.endswith(
        "<think> reasoning process here </think><answer> answer here </answer>Which?\nA. it\nB. that\n\n"
        " Please provide only the single option letter (e.g., A, B, C, D, etc.) within the <answer> </answer> tags."
    )


def test_published_rewards_read_what_these_prompts_carry(filmed, table):
    prompt = by_clip(TemporalData(path=temporal_tables(table)["time-r1"], videos=str(filmed), shares=ALL, style="time-r1"))["c0"]
    case = Case(completion="<think>a</think><answer>1.5 to 3.5</answer>", answer=prompt.answer, meta=prompt.meta)
    assert prompt.answer == [0.5, 2.5]
    assert time_r1.tiou(case) == pytest.approx(1 / 3 * (1 - 1 / 6) * (1 - 1 / 6))


# -- questions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, kind, answer, options",
    [
        ({"question": "Q?", "options": ["A. x", "B. y"], "answer": "B"}, "multiple choice", "B", ("x", "y")),
        ({"question": "Q?", "options": ["x", "y"], "answer": "y"}, "multiple choice", "B", ("x", "y")),
        ({"question": "Q?", "options": '["x", "y"]', "answer": "(a)"}, "multiple choice", "A", ("x", "y")),
        ({"question": "Q?", "choices": {"A": "x", "B": "y"}, "answer": "B. y"}, "multiple choice", "B", ("x", "y")),
        ({"question": "Q?", "options": ["A", "B"], "answer": "B"}, "multiple choice", "B", ("A", "B")),
        ({"question": "Q?", "a0": "x", "a1": "y", "a2": "z", "answer": "2"}, "multiple choice", "C", ("x", "y", "z")),
        ({"question": "Q?", "a0": "x", "a1": "y", "a2": "", "answer": "y"}, "multiple choice", "B", ("x", "y")),
        ({"problem": "Q?\n(A) x\n(B) y", "solution": "<answer>A.</answer>"}, "multiple choice", "A", ("x", "y")),
        ({"problem": "Q?\nA) x\nB) y", "solution": "<answer>A.</answer>"}, "multiple choice", "A", ("x", "y")),
        (
            {"question": "Q?", "choice_a": "x", "choice_b": "y", "answer": "y", "golden_choice_idx": "B"},
            "multiple choice",
            "B",
            ("x", "y"),
        ),
        ({"question": "Q?", "answer": 7}, "numerical", "7", ()),
        ({"question": "Q?", "answer": "seven dogs"}, "free-form", "seven dogs", ()),
        ({"problem": "Q?", "solution": "<answer> 1.5 </answer>", "problem_type": "regression"}, "regression", "1.5", ()),
        ({"problem": "Q?", "solution": "STOP", "problem_type": "ocr"}, "OCR", "STOP", ()),
    ],
)
def test_questions_in_every_form(row, kind, answer, options):
    found = question({"video": "c0", **row}, "id", 0)
    assert (found.kind, found.answer, found.options) == (kind, answer, options)


@pytest.mark.parametrize("column, given", [("answer", "1"), ("answer_id", 1), ("right", "<answer>1</answer>")])
def test_a_column_may_have_the_index_of_the_right_option(column, given):
    """Also where options are numbers, of which the index is another one."""
    found = question({"video": "c0", "question": "Q?", "option": ["A. 1", "B. 0"], column: given}, "id", 0, index_column=column)
    assert (found.kind, found.answer, found.options) == ("multiple choice", "B", ("1", "0"))


@pytest.mark.parametrize(
    "given, why",
    [
        ("B", "right is 'B', not the index of an option, from 0"),
        ("-1", "right is '-1', not the index"),
        ("1.0", "right is '1.0', not the index"),
        ("²", "right is '²', not the index"),
        (None, "its answer is None"),
        (True, "its answer is True"),
        (2, "its answer '2' is not one of its 2 options"),
    ],
)
def test_an_index_of_no_option(filmed, table, given, why):
    path = table("q.jsonl", [{"video": "c0", "question": "Q?", "options": ["x", "y"], "right": given}])
    with pytest.raises(UserError, match=why):
        every(QuestionData(path=path, videos=str(filmed), shares=ALL, index_column="right"))
    with pytest.raises(UserError, match="has no key 'wrong'"):
        every(QuestionData(path=path, videos=str(filmed), shares=ALL, index_column="wrong"))
    with pytest.raises(UserError, match="index_column = 3"):
        QuestionData(path=path, videos=str(filmed), shares=ALL, index_column=3)


def test_wrong_answers_are_drawn_around_the_right_one():
    row = {"video": "c0", "question": "Q?", "answer": "right", "negative_answers": ["a", "b", "c", "d", "e"]}
    found = [question(row, str(i), 0) for i in range(60)]
    assert all(len(f.options) == 4 and f.options["ABCD".index(f.answer)] == "right" for f in found)
    assert {f.answer for f in found} == set("ABCD") and {o for f in found for o in f.options} == {"right", *"abcde"}
    assert question(row, "7", 0) == found[7]


@pytest.mark.parametrize(
    "row, why",
    [
        ({"question": ""}, "it has no question"),
        ({"answer": None}, "its answer is None"),
        ({"answer": ["B"]}, r"its answer is \['B'\]"),
        ({"options": ["x", "y"], "answer": "z"}, "its answer 'z' is not one of its 2 options"),
        ({"options": ["x", "y"], "answer": "C"}, "its answer 'C' is not one of its 2 options"),
        ({"options": ["x", "x"], "answer": "A"}, "two of its options are the same"),
        ({"options": ["x"], "answer": "A"}, "has 1: give 2 to 26"),
        ({"options": "x or y", "answer": "A"}, "its options are 'x or y' and not a list"),
        ({"problem_type": "riddle"}, "its problem_type is 'riddle'"),
        ({"problem_type": "numerical", "answer": "many"}, "its answer 'many' is not one number"),
        ({"video": None}, "it names no clip and no picture"),
        ({"video": None, "image": "gone.png"}, "gone.png"),
    ],
)
def test_questions_that_will_not_do(filmed, table, row, why):
    path = table("q.jsonl", [{"video": "c0", "question": "Q?", "answer": "yes", **row}])
    with pytest.raises(UserError, match=why):
        every(QuestionData(path=path, videos=str(filmed), shares=ALL))


def test_an_answer_is_paid_by_its_kind():
    for kind, answer, wrong in (
        ("multiple choice", "B", "A"),
        ("numerical", "12", "13"),
        ("OCR", "EXIT 24", "EXIT 25"),
        ("free-form", "a red dog runs", "a blue dog runs"),
        ("regression", "10", "12"),
    ):
        meta = {"problem_type": kind, "style": "short"}
        assert kinds.answer(Case(completion=answer, answer=answer, meta=meta)).value == 1.0
        case = Case(completion=wrong, answer=answer, meta=meta)
        assert kinds.answer(case).value == kinds.BY_KIND[kind](case).value < 1.0
    graded = Case(completion="12", answer="10", meta={"problem_type": "regression"})
    assert kinds.answer(graded).value == answers.number(graded, graded=True).value > 0
    with pytest.raises(UserError, match="problem_type"):
        kinds.answer(Case(completion="a", answer="a", meta={"problem_type": "riddle"}))


def test_segments_of_next_gqa_are_joined(filmed, table):
    csv = "video_id,question,a0,a1,answer,qid,type\nc0,what?,x,y,y,3,CW\nc1,what?,x,y,0,4,TN\n"  # NExT-QA's own says `video`
    segments = table("gsub.json", {"c0": {"location": {"3": [[1.0, 2.0], [3.0, 4.0]]}, "duration": 6}})
    task = GroundedData(path=table("n.csv", csv), segments=segments, videos=str(filmed), shares=ALL)
    said, count = refusals(task)
    assert count == 1 and "n.csv line 3: segments has no times of video 'c1', qid '4'" in said[0]
    prompt = next(p for i in range(2) if (p := _try(task.prompts("test", 0), i)))
    assert prompt.answer == {"answer": "B", "glue": [[1.0, 2.0], [3.0, 4.0]]} and task.gold(prompt) == "B 1 to 2, 3 to 4"


def _try(prompts, i):
    try:
        return prompts[i]
    except UserError:
        return None


# -- where ------------------------------------------------------------------------------------------------------------------


def test_boxes_in_every_form_are_the_same(filmed, table, tmp_path):
    from PIL import Image

    at = [round(i * (FRAMES - 1) / 7) for i in range(8)]
    boxes = [box_of(2, frame) for frame in at]
    moments = [frame / RATE for frame in at]
    (tmp_path / "pictures").mkdir()
    for frame in range(FRAMES):
        Image.new("RGB", (32, 32), (frame, 9, 9)).save(tmp_path / "pictures" / f"{frame}.png")  # as TrackingNet's, without zeros
    forms = {
        "evenly": ({"video": "c2", "boxes": boxes}, {}),
        "timed": ({"video": "c2", "boxes": [{"time": t, "bbox_2d": b} for t, b in zip(moments, boxes, strict=True)]}, {}),
        "times": ({"video": "c2", "boxes": boxes, "times": moments}, {}),
        "unit": ({"video": "c2", "gt": [[v / 32 for v in b] for b in boxes]}, {}),
        "xywh": ({"video": "c2", "boxes": [[x, y, 10, 10] for x, y, _, _ in boxes]}, {"boxes": "xywh"}),
        "pictures": ({"path": str(tmp_path / "pictures"), "boxes": boxes, "fps": RATE}, {}),
    }
    for name, (row, options) in forms.items():
        path = table(f"{name}.json", [{"object": "the square", **row}])
        (prompt,) = every(TrackingData(path=path, videos=str(filmed), shares=ALL, **options))
        assert prompt.answer == boxes and prompt.meta["times"] == [round(t, 3) for t in moments], name
        assert "Where is the square at 0, 0.75, " in prompt.text and "pixels of the 32 x 32 clip" in prompt.text
    assert prompt.videos[0].frames_THWC[:, 0, 0, 0].tolist() == at and prompt.videos[0].times_s == tuple(moments)
    for fps in (10**400, 1e-320, "6", None):  # no rates: there are ten pictures a second
        path = table("rates.json", [{"object": "the square", **forms["pictures"][0], "fps": fps}])
        (prompt,) = every(TrackingData(path=path, videos=str(filmed), shares=ALL))
        assert prompt.meta["times"] == [round(frame / 10, 3) for frame in at]
    task = TrackingData(
        path=table("r.json", [{"object": "it", **forms["unit"][0]}]), videos=str(filmed), shares=ALL, style="videochat-r1"
    )
    (prompt,) = every(task)
    assert prompt.videos[0].indices == tuple(at) and prompt.answer[0] == [round(v / 32, 3) for v in boxes[0]]
    assert f'initial coordinates "{prompt.answer[0]}"' in prompt.text


@pytest.mark.parametrize(
    "row, why",
    [
        ({"boxes": [[1, 1, 5, 5], [9, 1, 5, 5]]}, "its box .* is reversed"),
        ({"boxes": [[1, 1, 1, 5]]}, "its box .* is empty"),
        ({"boxes": [[1, 1, 500, 5]]}, "is outside its clip of 32 x 32"),
        ({"boxes": [[1, 2, 3]]}, "is not four finite numbers"),
        ({"boxes": [[1, 1, 10**400, 5]]}, r"t\.json item 0: .*too large"),
        ({"boxes": "here"}, "it has no list of 1 to"),
        ({"boxes": [[1, 1, 5, 5]] * 30}, "it has 30 boxes and its clip 24 frames"),
        ({"boxes": [[1, 1, 5, 5]], "times": [9.0]}, "a box at 9 s, and its clip ends after 6.00 s"),
        ({"boxes": [[1, 1, 5, 5]] * 2, "times": [2.0, 1.0]}, "don't increase"),
        ({"boxes": [[1, 1, 5, 5]] * 2, "times": [2.0]}, "need as many times"),
        ({"boxes": [[1, 1, 5, 5]], "object": ""}, "it names no object"),
    ],
)
def test_tracks_that_will_not_do(filmed, table, row, why):
    path = table("t.json", [{"video": "c0", "object": "square", **row}])
    with pytest.raises(UserError, match=why):
        every(TrackingData(path=path, videos=str(filmed), shares=ALL))


# -- what people see --------------------------------------------------------------------------------------------------------


def reach(picture, colour):
    """From where to where a colour is there, in parts of the width, names left out; None where it isn't."""
    near = np.abs(np.asarray(picture).astype(int) - colour).max(-1) < 40
    columns = np.flatnonzero(near.sum(0) > 11)
    return (columns[0] / picture.width, columns[-1] / picture.width) if len(columns) else None


def times_of(task, prompt, completion):
    """(of, start, end, length) of each mark."""
    marks = task.overlays(prompt, completion)
    assert {m.kind for m in marks} <= {"interval"} and {m.image for m in marks} <= {0}
    return [(m.source, *m.coordinates) for m in marks]


def test_the_span_that_is_said_is_marked_beside_the_true_one(filmed, table):
    path = table("t.json", [{"video": "c1", "timestamp": [1.5, 3], "sentence": "it is white"}])
    for style, said in (
        ("short", "3 to 6"),
        ("time-r1", "<think>a</think><answer>3 to 6</answer>"),
        ("temporal-r1", '<think>a</think><answer>{"start_time": "3", "end_time": "6"}</answer>'),
    ):
        task = TemporalData(path=path, videos=str(filmed), shares=ALL, style=style)
        (prompt,) = every(task)
        true = ("true", 1.5, 3.0, 6.0)
        assert times_of(task, prompt, said) == [true, ("said", 3.0, 6.0, 6.0)]
        assert task.overlays(prompt, said)[1].label == "IoU 0.00" and task.draw_completion(prompt, said) is None
        assert task.overlays(prompt, task.gold(prompt))[1].label == "IoU 1.00"
        assert times_of(task, prompt, "I can't say.") == times_of(task, prompt, "") == [true]


def test_the_strip_shows_boxes_and_glue_is_marked(filmed, table):
    path = table("t.json", [{"video": "c1", "object": "square", "boxes": [[2, 2, 12, 12]] * 4}])
    task = TrackingData(path=path, videos=str(filmed), shares=ALL)
    (prompt,) = every(task)
    assert reach(task.draw_completion(prompt, "[[20, 20, 30, 30]]"), SAID) and reach(
        task.draw_completion(prompt, task.gold(prompt)), TRUE
    )
    assert task.draw_completion(prompt, "left") is None and task.overlays(prompt, task.gold(prompt)) == []
    row = {"video": "c1", "question": "Q?", "options": ["x", "y"], "answer": "x", "glue": [[0, 3]]}
    task = GroundedData(path=table("g.json", [row]), videos=str(filmed), shares=ALL, style="videochat-r1")
    (prompt,) = every(task)
    said = "<think>a</think><answer>B</answer><glue>[(3.0, 4.5)]</glue>"
    assert times_of(task, prompt, said) == [("true", 0.0, 3.0, 6.0), ("said", 3.0, 4.5, 6.0)]


def test_a_set_that_is_evaluated_in_part_is_in_no_figure(table, filmed):
    """Also one that only the name of its table tells from another."""
    rows = [{"video": "c0", "question": f"Which is {n}?", "options": ["a", "b"], "answer": "a"} for n in range(2)]
    path = f"{table('one.json', rows)}:{table('two.json', rows[:1])}"
    task = QuestionData(path=path, videos=str(filmed), shares=ALL, sets={"all": ["video", "table"]})
    first, second, other = sorted(every(task), key=lambda p: p.id)
    assert task.summarise([(first, 1.0), (second, 0.0), (other, 1.0)])["all"] == 0.5
    assert task.summarise([(first, 1.0), (other, 0.0)])["all"] == 0.0
    drawn = dict(zip((p.id for p in every(task)), task.prompt_sets("test", 0), strict=True))
    assert drawn[first.id] == drawn[second.id] != drawn[other.id]


def test_no_set_is_in_two_splits(table, filmed):
    """Sets of two clips with two rows each."""
    row = {"options": ["a", "b"], "answer": "a"}
    rows = [{**row, "video": f"c{n // 2}", "question": f"Which is {n}?", "of": str(n // 4)} for n in range(16)]
    path = table("rows.json", rows)
    for sets, whole in ({}, False), ({"all": ["of"]}, True):
        shares = {"train": 0.5, "test": 0.5}
        task = QuestionData(path=path, videos=str(filmed), shares=shares, groups=["of"], sets=sets)
        train, test = ([p.meta["groups"]["of"] for p in task.prompts(split, 0)] for split in shares)
        assert len(train) + len(test) == 16 and min(len(train), len(test)) >= 4
        assert ({*train}.isdisjoint(test)) == whole


def test_a_column_of_groups_or_sets_that_is_not_there_is_told(table, filmed):
    row = {"video": "c0", "question": "Which is it?", "options": ["a", "b"], "answer": "a"}
    path = f"{table('one.json', [{**row, 'kind': 'x'}])}:{table('two.json', [row])}"
    options = {"videos": str(filmed), "shares": ALL}
    assert QuestionData(path=path, groups=["table"], **options).prompts("test", 0)[0].meta["groups"]
    with pytest.raises(UserError, match=r"^'kind' of groups, sets or figures: .*two\.json has no such column, but .*"):
        QuestionData(path=path, sets={"all": ["kind"]}, **options)
