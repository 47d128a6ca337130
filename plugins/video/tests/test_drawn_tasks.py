"""Questions about drawn clips: what is answered is true of the pixels, gold earns the most, splits share no clip, and no answer
is right more often than another."""

from itertools import pairwise

import av
import numpy as np
import pytest
from mmrl_video.drawn import choice as choices
from mmrl_video.drawn import films
from mmrl_video.drawn.choice import Choice
from mmrl_video.drawn.grounded import GroundedChoice
from mmrl_video.drawn.moves import KINDS, MOVES
from mmrl_video.drawn.number import Number
from mmrl_video.drawn.ocr import Reading
from mmrl_video.drawn.open import Telling
from mmrl_video.drawn.regression import Measure
from mmrl_video.drawn.shapes import COLOURS
from mmrl_video.drawn.temporal import Grounding
from mmrl_video.drawn.tracking import Tracking

from mmrl import Case, CoordinateFormat, ImageProcessing, UserError
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.video_files import probe
from mmrl.registry import plugins
from mmrl.testing import check_task
from mmrl.testing.cases import mostly_slow

IDS = {
    **{"choice": Choice, "number": Number, "ocr": Reading, "open": Telling, "regression": Measure, "temporal": Grounding},
    **{"grounded": GroundedChoice, "tracking": Tracking},
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One folder for the clips of all of these tests, and not the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "clips"))
    films.folder.cache_clear()
    yield
    films.folder.cache_clear()


def some(task, n=20, split="train"):
    prompts = task.prompts(split, 0)
    return [prompts[i] for i in range(n)]


def colours(clip, name):
    """(the frames of the clip's file, where they have the colour of `the red circle`)."""
    with av.open(clip.path) as box:
        frames = np.stack([f.to_ndarray(format="rgb24") for f in box.decode(video=0)]).astype(int)
    return frames, np.abs(frames - np.array(COLOURS[name.split()[-2]])).max(-1) < 60


def runs(true):
    """How many stretches of frames are true."""
    return int(np.diff(np.concatenate([[0], np.asarray(true, int)])).clip(0).sum())


# -- what all share ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("style", ["short", "tags"])
def test_gold_earns_the_most_and_has_the_form(id, style):
    spec = plugins.registry().get("tasks", f"video/{id}")
    task = plugins.registry().make_task(f"video/{id}", {"style": style})
    assert type(task) is IDS[id]
    verifiers = [plugins.registry().make_verifier(v) for v in spec.verifiers]
    assert ("video/format" in spec.verifiers) == (id not in ("ocr", "open"))  # of a text alone there is no form
    for prompt in some(task, 25):
        case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
        assert [getattr(v(case), "value", v(case)) for v in verifiers] == pytest.approx([1.0] * len(verifiers)), case.completion


@pytest.mark.parametrize("id", mostly_slow(IDS, everyday=3))
def test_an_item_is_the_same_everywhere_and_splits_share_no_clip(id):
    task, again = IDS[id](objects=2, seed=3), IDS[id](objects=2, seed=3)
    plots = {split: [task.story(split, i).plot() for i in range(60)] for split in task.splits}
    assert plots == {split: [again.story(split, i).plot() for i in range(60)] for split in task.splits}
    seen = [set(found) for found in plots.values()]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2]) and all(len(s) > 50 for s in seen)
    one, two = some(task, 1)[0], some(again, 1)[0]
    assert (one.id, one.text, one.answer, one.videos[0].path) == (two.id, two.text, two.answer, two.videos[0].path)
    other = IDS[id](objects=2, seed=4)
    assert other.story("train", 0).plot() != plots["train"][0]


def test_what_is_shown_is_the_file_that_was_drawn():
    task = Grounding(size="middle", seconds=[6, 8])
    for number in range(3):
        clip, one = some(task, 3)[number].videos[0], task.story("train", number)
        facts = probe(clip.path)
        assert (facts.frames, facts.size, facts.duration_s) == (one.frames, (224, 224), one.duration_s)
        assert len(cached_frames(clip).frames_THWC) == 2 * one.duration_s


def test_a_person_can_say_how_to_answer():
    (prompt,) = some(Number(prompt="Reply with digits."), 1)
    assert prompt.text.endswith("? Reply with digits.")
    (choice,) = some(Choice(prompt="Reply."), 1)
    assert choice.text.endswith("\nReply.")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"size": "huge"}, "size"),
        ({"size": [64]}, "size"),
        ({"size": [65, 64]}, "even"),
        ({"size": [8, 8]}, "size"),
        ({"rate": 3}, "even"),
        ({"rate": 0}, "rate"),
        ({"rate": True}, "rate"),
        ({"fps": 0}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"fps": 4}, "fps"),
        ({"seconds": [9, 8]}, "seconds"),
        ({"seconds": 8}, "seconds"),
        ({"seconds": [1, 8]}, "seconds"),
        ({"grid": 0.7}, "grid"),
        ({"grid": 0}, "grid"),
        ({"grid": 4}, "grid"),
        ({"grid": "fine"}, "grid"),
        ({"objects": 0}, "objects"),
        ({"objects": 5}, "objects"),
        ({"moving": 2}, "moving"),
        ({"others": -1}, "others"),
        ({"backgrounds": []}, "backgrounds"),
        ({"backgrounds": ["sea"]}, "backgrounds"),
        ({"backgrounds": "plain"}, "backgrounds"),
        ({"style": "long"}, "style"),
        ({"prompt": 3}, "prompt"),
        ({"train": 0}, "train"),
        ({"seed": 0.5}, "seed"),
    ],
    ids=str,
)
def test_wrong_options_are_told_in_a_line(options, said):
    with pytest.raises(UserError, match=said) as error:
        Grounding(**options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Grounding(events=["dance"]), "events"),
        (lambda: Grounding(events=[]), "events"),
        (lambda: Grounding(units="hours"), "units"),
        (lambda: Grounding(units="frames", grid=0.5, fps=1), "frames"),
        (lambda: Grounding(units="frames", seconds=[60, 90]), "frames"),
        (lambda: Choice(asks=["why"]), "asks"),
        (lambda: Choice(choices=1), "choices"),
        (lambda: Number(most=9), "most"),
        (lambda: Number(most=5, seconds=[5, 9]), "seconds"),
        (lambda: Reading(captions=0), "captions"),
        (lambda: Reading(letters=[5, 3]), "letters"),
        (lambda: Telling(events=3), "events"),
        (lambda: Measure(asks=["weight"]), "asks"),
        (lambda: GroundedChoice(events=["touch"]), "events"),
        (lambda: Tracking(boxes=0), "boxes"),
        (lambda: Tracking(frame="miles"), "frame"),
        (lambda: Grounding().prompts("validation", 0), "split"),
    ],
)
def test_wrong_options_of_one_task_are_told_in_a_line(make, said):
    with pytest.raises(UserError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize(
    "options", [{"objects": 4}, {"objects": 1}, {"seconds": [7, 7]}, {"grid": 1.5, "seconds": [7, 9]}], ids=str
)
def test_every_mixture_of_options_has_clips(id, options):
    task = IDS[id](**options)
    assert all(task.story("test", i).frames for i in range(25))


# -- when -------------------------------------------------------------------------------------------------------------------


def test_prompts_word_for_word():
    """Whoever changes them changes what models were trained on."""
    task = Grounding(events=["hide"], objects=1)
    name = task.story("train", 0).actors[0].name
    how = {
        "short": "Answer with its start and its end in seconds, as START to END.",
        "tags": "Think in <think> </think> tags, then give its start and its end in seconds, as START to END in <answer> "
        "</answer> tags.",
    }
    for style, said in how.items():
        (prompt,) = some(Grounding(events=["hide"], objects=1, style=style), 1)
        assert prompt.text == f"When is the {name} gone? {said}"
    (frames,) = some(Grounding(events=["hide"], objects=1, units="frames"), 1)
    assert frames.text.endswith("its first frame and the first one after it, counted from 0, as FIRST to LAST.")


@pytest.mark.parametrize("fps", [1.0, 2.0])
def test_frames_are_those_that_are_shown(fps):
    """The true frames of what is gone are those of which the policy's own frames show it gone."""
    task = Grounding(events=["hide"], units="frames", fps=fps, size="middle", seconds=[8, 9])
    for number, prompt in enumerate(some(task, 6)):
        shown = cached_frames(prompt.videos[0]).frames_THWC.astype(int)
        colour = task.story("train", number).actors[0].colour
        there = (np.abs(shown - np.array(COLOURS[colour])).max(-1) < 60).sum((1, 2)) > 20
        gone = np.nonzero(~there)[0]
        assert [gone[0], gone[-1] + 1] == prompt.answer and prompt.meta["unit_s"] == 1 / fps
        assert prompt.meta["duration"] == len(shown)
        seconds = Grounding(events=["hide"], fps=fps, size="middle", seconds=[8, 9]).prompts("train", 0)[number]
        assert [v * fps for v in seconds.answer] == prompt.answer and prompt.meta["spans"] == [tuple(seconds.answer)]


def test_events_of_all_kinds_lengths_and_places_are_asked_for():
    prompts = [Grounding()._drawn("train", i)[1] for i in range(300)]
    assert {p.kind for p in prompts} == set(KINDS)
    starts, lengths = ({round(f(p), 1) for p in prompts} for f in (lambda p: p.answer[0], lambda p: p.answer[1] - p.answer[0]))
    assert len(starts) >= 12 and len(lengths) >= 7
    always = [min(e, 8) - max(s, 4) for s, e in (p.answer for p in prompts)]
    ious = [max(0, c) / (max(e, 8) - min(s, 4)) for c, (s, e) in zip(always, (p.answer for p in prompts), strict=True)]
    assert np.mean(ious) < 0.45  # what one answer to all questions earns


def test_the_figures_of_papers():
    task, prompts = Grounding(), some(Grounding(), 4)
    found = task.summarise(list(zip(prompts, [1.0, 0.6, 0.4, 0.0], strict=True)))
    assert (found["mIoU"], found["R1@0.3"], found["R1@0.5"], found["R1@0.7"]) == (0.5, 0.75, 0.5, 0.25)
    kinds = [p.meta["kind"] for p in prompts]
    if len(set(kinds)) > 1:
        assert {f"kind_{k}" for k in kinds} <= set(found)


# -- the others -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_are_counted_from_the_pixels():
    seen = set()
    for number, prompt in enumerate(some(Number(), 36)):
        asked = prompt.meta["kind"]
        one = Number().story("train", number)
        if asked == "visits":
            wanted = [i for i, a in enumerate(one.actors) if f"How many {a.shape}" in prompt.text]
            found = 0
            for who in wanted:
                _, mask = colours(prompt.videos[0], one.actors[who].name)
                found += runs(mask.sum((1, 2)) > 5)
        else:
            _, mask = colours(prompt.videos[0], one.actors[0].name)
            boxes = one.actors[0].boxes_F
            mask = mask[:, max(0, min(b[1] for b in boxes) - 1) : max(b[3] for b in boxes) + 1]
            area = mask.sum((1, 2))
            if asked == "blinks":
                found = runs(area < 0.3 * np.median(area))
            else:
                low = np.array([np.nonzero(m)[0].max() for m in mask])
                found = runs(low >= low.max() - 1)
        assert found == prompt.answer, (number, prompt.text)
        seen.add(asked)
    assert seen == {"bounces", "blinks", "visits"}


def test_no_number_is_right_more_often_than_another():
    prompts = [Number()._drawn("train", i)[1] for i in range(600)]
    for asked, least in (("bounces", 1), ("blinks", 1), ("visits", 0)):
        answers = [p.answer for p in prompts if p.kind == asked]
        fair = len(answers) / (6 - least)
        assert all(abs(answers.count(n) - fair) < 4 * fair**0.5 for n in range(least, 6)), asked


def test_only_one_option_is_true():
    for number, prompt in enumerate(some(Choice(), 50)):
        options, right = prompt.meta["options"], prompt.meta["options"]["ABCDE".index(prompt.answer)]
        assert 2 <= len(options) == len(set(options)) <= 4
        assert all(f"\n{letter}. {option}" in prompt.text for letter, option in zip("ABCDE", options, strict=False))
        one = Choice().story("train", number)
        if prompt.meta["kind"] == "first":
            assert right == one.events[0].tells and one.events[0].start_s < one.events[1].start_s
            assert set(options) == {e.tells for e in one.events}
        elif prompt.meta["kind"] == "colour":
            name = prompt.text.split("does the ")[1].split(" turn")[0]
            actor = next(a for a in one.actors if a.name == name)
            assert {c for c in actor.colours_F if c} == {actor.colour, right}
            assert not {c for a in one.actors for c in a.colours_F} & (set(options) - {right})
        elif prompt.meta["kind"] == "direction":
            event = next(e for e in one.events if f"the {one.actors[e.who].name}" in prompt.text)
            xs = [box[0] for box, c in zip(one.actors[event.who].boxes_F, one.actors[event.who].colours_F, strict=True) if c]
            rightwards = xs[-1] > xs[0]
            assert right == ("right" if rightwards == (event.kind == "move") else "left")
    answers = [Choice(asks=["what"])._drawn("train", i)[1].answer for i in range(200)]
    assert all(30 < answers.count(letter) < 75 for letter in "ABCD")


def test_a_wrong_option_is_never_true_as_well():
    """Of a thing that goes to and fro, "it moves" is true whatever else it does; what blinks vanishes."""
    for number in range(150):
        task = Choice(asks=["what"], moving=1.0)
        one, posed = task._drawn("train", number)
        event = next(e for e in one.events if one.actors[e.who].name in posed.text)
        wrong = [o for o in posed.meta["options"] if o != posed.meta["options"]["ABCDE".index(posed.answer)]]
        goes = len({b[0] for b in one.actors[event.who].boxes_F}) > 1
        alike = [choices.SAYS[k][0].format("it", "") for k in choices.LIKE.get(event.kind, ())]
        assert not set(alike) & set(wrong)
        if goes and event.kind == "hide":
            assert not {"it moves", "it shakes", "it bounces", "it crosses the picture"} & set(wrong)


def test_texts_are_on_the_picture_while_they_are_said_to_be():
    for number, prompt in enumerate(some(Reading(captions=3), 30)):
        one = Reading(captions=3).story("train", number)
        captions = sorted(one.captions, key=lambda c: c.first)
        assert len({c.text for c in captions}) == len(captions)
        assert all(a.last < b.first for a, b in pairwise(captions))
        wanted = captions[-1 if prompt.meta["kind"] == "last" else 0].text
        assert prompt.answer == wanted and wanted not in prompt.text
        frames, _ = colours(prompt.videos[0], "the black circle")
        x1, y1, x2, y2 = captions[0].band
        band = (frames[:, y1:y2, x1:x2].max(-1) < 50).mean((1, 2)) > 0.5
        assert runs(band) == len(captions)


def test_what_is_told_is_what_happens_and_nothing_else_moves():
    for number, prompt in enumerate(some(Telling(events=2), 40)):
        one = Telling(events=2).story("train", number)
        assert prompt.answer == ", then ".join(e.tells for e in one.events)
        acting = {e.who for e in one.events}
        for who, actor in enumerate(one.actors):
            assert who in acting or (len(set(actor.boxes_F)) == 1 and set(actor.colours_F) == {actor.colour})
        assert all(a.end_s <= b.start_s for a, b in pairwise(one.events))


def test_no_event_of_a_short_clip_looks_like_another_or_like_none():
    """Of a blink of two half seconds nothing would be seen in between, of a bounce of one nothing at all."""
    told, kinds = Telling(events=2, seconds=(3, 4), grid=0.5), set()
    for number in range(40):
        one = told.story("train", number)
        for event in one.events:
            actor, during = one.actors[event.who], slice(round(event.start_s * one.rate), round(event.end_s * one.rate))
            kinds.add(event.kind)
            assert event.end_s <= one.duration_s
            assert event.kind != "blink" or len(set(actor.colours_F[during])) == 2
            assert event.kind != "bounce" or len(set(actor.boxes_F)) > 1
    assert {"blink", "bounce"} <= kinds


def test_measures_are_those_of_the_pixels():
    kinds = set()
    for number, prompt in enumerate(some(Measure(), 24)):
        one = Measure().story("train", number)
        kinds.add(prompt.meta["kind"])
        if prompt.meta["kind"] == "duration":
            assert any(prompt.answer == e.end_s - e.start_s and e.asks in prompt.text for e in one.events)
            continue
        _, mask = colours(prompt.videos[0], one.actors[0].name)
        top, bottom = one.actors[0].boxes_F[0][1], one.actors[0].boxes_F[0][3]
        first, last = (np.nonzero(mask[i, top:bottom])[1].mean() for i in (0, -1))
        assert abs(100 * abs(last - first) / one.width - prompt.answer) < 2
    assert kinds == {"duration", "way"}


@pytest.mark.parametrize("frame", [None, "pixels", "thousandths", "thousandths-yx", "unit"])
@pytest.mark.parametrize("policy_format", [CoordinateFormat.PIXELS, CoordinateFormat.THOUSANDTHS, CoordinateFormat.MODEL_PIXELS])
def test_boxes_are_where_the_pixels_are(frame, policy_format):
    task = Tracking(frame=frame, boxes=6)
    task.image_processing = ImageProcessing(policy_format, lambda size: (size[0] * 2, size[1] // 2))
    verify = plugins.registry().make_verifier("video/tracking")
    for number, prompt in enumerate(some(task, 4)):
        one = task.story("train", number)
        _, mask = colours(prompt.videos[0], one.actors[-1].name)
        for t, box in zip(prompt.meta["times"], prompt.answer, strict=True):
            rows, columns = np.nonzero(mask[round(t * one.rate)])
            seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            thin = one.actors[-1].shape in ("triangle", "diamond")  # at their corners
            assert np.abs(np.subtract(seen, box)).max() <= (5 if thin else 2)
        case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta, coordinate_format=policy_format)
        assert verify(case).value == pytest.approx(1)
        boxes = [[0, 0, 64, 64]] * 6
        assert (
            verify(Case(completion=str(boxes), answer=prompt.answer, meta=prompt.meta, coordinate_format=policy_format)).value
            < 0.3
        )


def test_an_answer_with_its_time():
    task = GroundedChoice(style="tags")
    verify = plugins.registry().make_verifier("video/grounded-choice")
    for prompt in some(task, 12):
        (span,) = prompt.answer["glue"]
        assert prompt.meta["spans"] == [tuple(span)] and prompt.answer["answer"] in "ABCD"
        wrong = "ABCD"[("ABCD".index(prompt.answer["answer"]) + 1) % len(prompt.meta["options"])]
        late = f"<think>x</think><answer>{prompt.answer['answer']}</answer><glue>[(100, 101)]</glue>"
        assert verify(Case(completion=late, answer=prompt.answer, meta=prompt.meta)).value == 0.5
        other = task.gold(prompt).replace(f"<answer>{prompt.answer['answer']}", f"<answer>{wrong}")
        assert verify(Case(completion=other, answer=prompt.answer, meta=prompt.meta)).value == 0
    assert {task._drawn("train", i)[1].kind for i in range(100)} == set(MOVES)


def test_drawn_clips_keep_the_rules_of_tasks():
    """`mmrl check`, of one task on files and of one on footage; the others share their code, and each is checked by hand."""
    for id in ("video/temporal", "video/anomaly"):
        report = check_task(plugins.registry().get("tasks", id), n=4, options={"warm": 8, "train": 8, "test": 8})
        assert report.ok, str(report)


@pytest.mark.parametrize(("name", "wrong"), [("temporal", "0 to 1"), ("grounded", "A 0 to 1")])
def test_times_that_are_said_are_marked(name, wrong):
    task = plugins.registry().make_task(f"video/{name}", {"train": 4})
    for prompt in task.prompts("train", 0):
        ((start, end),), length = prompt.meta["spans"], prompt.meta["duration"]
        (true, said), (_, other) = (task.overlays(prompt, text) for text in (task.gold(prompt), wrong))
        assert (true.source, *true.coordinates) == ("true", start, end, pytest.approx(length))
        assert tuple(said.coordinates[:2]) == (start, end) and said.label == "IoU 1.00"
        assert tuple(other.coordinates[:2]) == (0, 1) and other.source == "said" and other.label != said.label
        assert task.overlays(prompt, "hm") == [true] and task.draw_completion(prompt, task.gold(prompt)) is None


def test_times_in_frames_are_marked_in_seconds():
    task = Grounding(train=4, units="frames", fps=2)
    prompt = task.prompts("train", 0)[0]
    (true, said) = task.overlays(prompt, task.gold(prompt))
    assert tuple(said.coordinates[:2]) == tuple(true.coordinates[:2]) == prompt.meta["spans"][0]


def test_boxes_over_time_are_shown_on_a_strip():
    """Other answers look otherwise, and what says nothing shows nothing."""
    task = plugins.registry().make_task("video/tracking", {"train": 4})
    prompt = task.prompts("train", 0)[2]
    right = task.draw_completion(prompt, task.gold(prompt))
    other = task.draw_completion(prompt, task.gold(task.prompts("train", 0)[3]))
    assert right.size == other.size and right.tobytes() != other.tobytes()
    assert task.draw_completion(prompt, "hm") is None and task.overlays(prompt, task.gold(prompt)) == []
