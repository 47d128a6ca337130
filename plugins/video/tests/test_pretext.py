"""What a clip asks about itself: the disturbed frames, the shapes that were put in and the order of the parts are found again in
what is shown; on drawn clips and on a folder of clips."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mmrl_video.drawn import films
from mmrl_video.drawn.shapes import COLOURS
from mmrl_video.pretext import disturb, sources
from mmrl_video.pretext.anomaly import Anomaly
from mmrl_video.pretext.counting import Counting
from mmrl_video.pretext.disturb import KINDS
from mmrl_video.pretext.jigsaw import Jigsaw
from mmrl_video.pretext.task import Pretext
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.media.decoding import cached_frames
from mmrl.api.tasks.image_sources import chance
from mmrl.registry import plugins

ALL = (Anomaly, Counting, Jigsaw)
TEMPORAL = ("slow", "fast", "shuffle", "stutter")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One folder for the clips of all of these tests, and not the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "clips"))
    films.folder.cache_clear()
    yield
    films.folder.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve clips of 4 s of a patch of noise that drifts over another, in two folders, and files that are none."""
    root = tmp_path_factory.mktemp("mine")
    (root / "more").mkdir()
    for number in range(12):
        grain = np.random.default_rng(number)
        frames = np.repeat(grain.integers(0, 255, (1, 48, 96, 3), dtype=np.uint8) // 4, 40, axis=0)
        patch = np.asarray(Image.fromarray(grain.integers(0, 255, (4, 4, 3), dtype=np.uint8)).resize((30, 30)))
        for i, frame in enumerate(frames):
            frame[8:38, i : i + 30] = patch
        films.encode(frames, 10, root / ("more" if number % 2 else ".") / f"clip {number}.mp4")
    (root / "notes.txt").write_text("no clip")
    (root / ".hidden.mp4").write_text("no clip")
    return root


def some(task, n=20, split="train"):
    prompts = task.prompts(split, 0)
    return [prompts[i] for i in range(min(n, len(prompts)))]


def shown(prompt):
    """The frames of each clip of a prompt."""
    return [cached_frames(v).frames_THWC for v in prompt.videos]


# -- what all share ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["anomaly", "counting", "jigsaw"])
@pytest.mark.parametrize("options", [{}, {"style": "tags"}, {"path": None}], ids=["short", "tags", "folder"])
def test_gold_earns_the_most_and_has_the_form(id, options, folder):
    options = {k: str(folder) if k == "path" else v for k, v in options.items()}
    spec = plugins.registry().get("tasks", f"video/{id}")
    task = plugins.registry().make_task(f"video/{id}", options)
    for prompt in some(task, 12):
        case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
        for verifier in {*spec.verifiers, spec.metric}:
            assert plugins.registry().make_verifier(verifier)(case).value == pytest.approx(1), (verifier, case.completion)


@pytest.mark.parametrize("id", ["anomaly", "counting", "jigsaw"])
def test_gold_earns_the_most_as_published(id):
    spec = plugins.registry().get("tasks", f"video/{id}@videossr")
    assert spec.options["frames"] == 48 and list(spec.verifiers) == [f"video/{id}@videossr"]
    task = plugins.registry().make_task(spec.id, {"size": "small"})
    verify = plugins.registry().make_verifier(f"video/{id}@videossr")
    for prompt in some(task, 6):
        assert sum(map(len, shown(prompt))) == 48
        assert verify(Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)) == pytest.approx(1)
    if id == "jigsaw":
        assert [len(part) for part in shown(prompt)] == [8] * 6


@pytest.mark.parametrize("make", ALL)
def test_an_item_is_the_same_everywhere_and_splits_share_no_clip(make):
    task, again = make(seed=3), make(seed=3)
    for a, b in zip(some(task, 4), some(again, 4), strict=True):
        assert (a.id, a.text, a.answer, a.meta) == (b.id, b.text, b.answer, b.meta)
        assert all((x == y).all() for x, y in zip(shown(a), shown(b), strict=True))
    plots = [{task.source.story(split, i).plot() for i in range(80)} for split in task.splits]
    assert not (plots[0] & plots[1] or plots[0] & plots[2] or plots[1] & plots[2])


@pytest.mark.parametrize("make", ALL)
def test_times_begin_at_0_and_rise_evenly(make):
    """Those of the file would tell the order of the parts, and where a clip goes slower."""
    for prompt in some(make(), 6):
        for clip in prompt.videos:
            assert clip.times_s[0] == 0 and np.diff(clip.times_s) == pytest.approx(clip.duration_s / len(clip.times_s))
        unit_s = prompt.meta.get("unit_s", 1.0)
        assert prompt.meta["duration"] * unit_s == pytest.approx(sum(clip.duration_s for clip in prompt.videos))


def test_clips_of_a_folder_fall_to_splits_by_their_names(folder):
    task = Jigsaw(path=str(folder), frames=12)
    assert task.splits == ("train", "test")
    assert sorted([*task.source.ids["train"], *task.source.ids["test"]]) == sorted(
        f"{'more/' if n % 2 else ''}clip {n}.mp4" for n in range(12)
    )
    (prompt,) = some(task, 1)
    assert prompt.videos[0].frames_THWC.shape == (4, 48, 96, 3)
    assert prompt.videos[0].duration_s * 3 == pytest.approx(0.9 * 4)
    small = Jigsaw(path=str(folder), frames=12, pixels=1024)
    height, width = some(small, 1)[0].videos[0].frames_THWC.shape[1:3]
    assert height * width <= 1024 and width / height == pytest.approx(2, rel=0.1)
    assert len(Jigsaw(path=str(folder), each=3).prompts("train", 0)) == 3 * len(task.prompts("train", 0))


def test_a_clip_that_is_broken_or_short_is_named(folder, tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.mp4").write_bytes((folder / f"clip {number - number % 2}.mp4").read_bytes()[:900])
    with pytest.raises(UserError, match=r"\d\.mp4"):
        some(Anomaly(path=str(tmp_path)), 1)
    with pytest.raises(UserError, match=r"clip \d+\.mp4 has 40 frames, too few for 60") as error:
        some(Anomaly(path=str(folder), frames=60), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda f: Anomaly(path=str(f / "nowhere")), "does not exist"),
        (lambda f: Anomaly(path=str(f / "notes.txt")), "is a file"),
        (lambda f: Anomaly(path=3), "path"),
        (lambda f: Anomaly(kinds=["explosion"]), "kinds"),
        (lambda f: Anomaly(units="years"), "units"),
        (lambda f: Anomaly(frames=2), "frames"),
        (lambda f: Anomaly(frames=500, seconds=[3, 4]), "frames"),
        (lambda f: Anomaly(pixels=0), "pixels"),
        (lambda f: Anomaly(size="tiny"), "size"),
        (lambda f: Anomaly(ways=["up"]), "ways"),
        (lambda f: Anomaly(each=0), "each"),
        (lambda f: Anomaly(path=str(f)).prompts("warm", 0), "warm"),
        (lambda f: Anomaly(path=str(f), kinds=["swap"]), "swap needs two"),
        (lambda f: Counting(shapes=["star"]), "shapes"),
        (lambda f: Counting(shapes=[]), "shapes"),
        (lambda f: Counting(shapes=["circle", "circle"]), "has a repeated value: give each once"),
        (lambda f: Counting(places=0), "places"),
        (lambda f: Counting(together=9), "together"),
        (lambda f: Jigsaw(parts=1), "parts"),
        (lambda f: Jigsaw(parts=5), "parts"),
        (lambda f: Jigsaw(parts=6, frames=6), "parts"),
        (lambda f: Jigsaw(shown="sideways"), "shown"),
    ],
)
def test_wrong_options_are_told_in_a_line(make, said, folder):
    with pytest.raises(UserError, match=said) as error:
        make(folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_an_empty_folder_is_told(tmp_path):
    with pytest.raises(UserError, match="has no clips"):
        Jigsaw(path=str(tmp_path))


# -- anomaly grounding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("slow", "fast")])
def test_the_disturbed_frames_are_those_of_the_answer(kind):
    task = Anomaly(kinds=[kind], units="frames", frames=24)
    for index, prompt in enumerate(some(task, 4)):
        plain, _ = sources.sampled(task.source.path("train", index), 24, 65536)
        (after,) = shown(prompt)
        apart = np.nonzero((after != plain).any((1, 2, 3)))[0]
        first, last = prompt.answer
        assert first <= apart[0] and apart[-1] < last and 4 <= last - first <= 8
        if kind not in ("shuffle", "stutter"):  # of which some frames stay where they are
            assert list(apart) == list(range(first, last))
        assert KINDS[kind] in prompt.text and prompt.meta["kind"] == kind


@pytest.mark.parametrize("kind, pace", [("slow", 0.5), ("fast", 2.0)])
def test_a_stretch_goes_slower_or_faster(kind, pace):
    """How far the thing that crosses the picture goes from frame to frame."""
    task = Anomaly(kinds=[kind], units="frames", frames=24, objects=1, ways=["right"], backgrounds=["plain"], size="middle")
    for index, prompt in enumerate(some(task, 4)):
        (frames,) = shown(prompt)
        colour = COLOURS[task.source.story("train", index).actors[0].colour]
        apart = np.abs(frames.astype(int) - np.array(colour)).max(-1) < 60
        places = np.array([np.nonzero(a)[1].mean() for a in apart])
        steps, (first, last) = np.diff(places), prompt.answer
        inside, outside = steps[first : last - 1], np.concatenate([steps[: max(0, first - 1)], steps[last:]])
        assert inside.mean() / outside.mean() == pytest.approx(pace, rel=0.15)


def test_each_kind_does_what_it_says():
    draw, grain = chance(0, "kinds"), np.random.default_rng(0)
    plain = grain.integers(0, 255, (8, 20, 30, 3), dtype=np.uint8)

    def done(kind):
        return disturb.disturbed(draw, kind, plain, 2, 6, plain[::-1].copy())[2:6]

    part = plain[2:6]
    assert (done("mirror") == part[:, :, ::-1]).all() and (done("rotate-180") == part[:, ::-1, ::-1]).all()
    assert (done("channel-swap") == part[..., [2, 1, 0]]).all() and (done("invert") == 255 - part).all()
    assert (done("swap") == plain[::-1][2:6]).all()
    assert np.ptp(done("grayscale"), axis=-1).max() == 0
    assert 25 < (done("noise").astype(int) - part).std() < 75
    assert np.abs(np.diff(done("blur").astype(int), axis=2)).mean() < 0.3 * np.abs(np.diff(part.astype(int), axis=2)).mean()
    assert np.ptp(done("saturation").astype(int), axis=-1).mean() > 1.2 * np.ptp(part.astype(int), axis=-1).mean()
    out = done("zoom-out")
    assert (out[:, 0] == 0).all() and (out[:, :, 0] == 0).all() and out[:, 8:12, 12:18].any()
    shuffled = done("shuffle")
    assert sorted(f.tobytes() for f in shuffled) == sorted(f.tobytes() for f in part)
    assert (shuffled[0] != part[0]).any() and (shuffled[-1] != part[-1]).any()
    held = [f.tobytes() for f in done("stutter")]
    assert set(held) <= {f.tobytes() for f in part} and len(set(held)) < 4
    square = plain[:, :, :20]
    turned = disturb.disturbed(draw, "rotate-90", square, 0, 8)
    assert (turned == np.rot90(square, -1, (1, 2))).all()
    assert (disturb.disturbed(draw, "rotate-270", square, 0, 8) == np.rot90(square, 1, (1, 2))).all()
    middle = np.zeros((1, 40, 40, 3), np.uint8)
    middle[:, 15:25, 15:25] = 255
    assert 1.2**2 < (disturb.disturbed(draw, "zoom-in", middle, 0, 1) > 127).sum() / (middle > 127).sum() < 1.7**2
    assert (plain == np.random.default_rng(0).integers(0, 255, (8, 20, 30, 3), dtype=np.uint8)).all()  # it is a copy


def test_what_nobody_can_see_is_not_asked_for(folder):
    """Red and blue of a grey clip can be swapped as one likes; a still clip has no order."""
    grey = np.repeat(np.arange(0, 240, 6, dtype=np.uint8)[:, None, None, None], 48, 1).repeat(64, 2).repeat(3, 3)
    root = folder.parent / "grey"
    root.mkdir(exist_ok=True)
    for number in range(8):
        films.encode(np.roll(grey, number, 0), 10, root / f"{number}.mp4")
    with pytest.raises(UserError, match="channel-swap is visible"):
        some(Anomaly(path=str(root), kinds=["channel-swap"]), 1)
    assert some(Anomaly(path=str(root), kinds=["channel-swap", "zoom-out"]), 1)[0].meta["kind"] == "zoom-out"
    still = folder.parent / "still"
    still.mkdir(exist_ok=True)
    for number in range(8):
        films.encode(np.full((40, 48, 64, 3), 20 * number, np.uint8), 10, still / f"{number}.mp4")
    for make in (Jigsaw, lambda **o: Anomaly(kinds=["shuffle", "slow"], **o)):
        with pytest.raises(UserError, match=r"\d\.mp4"):
            some(make(path=str(still)), 1)


@pytest.fixture
def quick(monkeypatch):
    """Noise in place of clips, for tests of what is drawn at random."""
    noise = np.random.default_rng(0).integers(0, 255, (48, 8, 8, 3), dtype=np.uint8)
    monkeypatch.setattr(Pretext, "read", lambda self, split, index, count=0: (noise[: count or self.frames], 4.0))


def test_spans_are_as_long_and_as_far_as_the_paper_has_them(quick):
    task = Anomaly(frames=48, units="frames", size="small")
    spans = [p.answer for p in some(task, 200)]
    lengths = {last - first for first, last in spans}
    assert min(lengths) >= 8 and max(lengths) <= 16 and len(lengths) >= 7
    assert min(s for s, _ in spans) < 6 and max(e for _, e in spans) > 42
    seconds = some(Anomaly(), 1)[0]
    assert seconds.meta["spans"][0] == pytest.approx(seconds.answer, abs=0.051)


# -- counting ---------------------------------------------------------------------------------------------------------------


def pieces(mask):
    """How many connected pieces of at least four pixels a mask has."""
    left, found = mask.copy(), 0
    while left.any():
        todo, size = [tuple(np.argwhere(left)[0])], 0
        left[todo[0]] = False
        while todo:
            y, x = todo.pop()
            size += 1
            for a, b in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= a < left.shape[0] and 0 <= b < left.shape[1] and left[a, b]:
                    left[a, b] = False
                    todo.append((a, b))
        found += size >= 4
    return found


@pytest.mark.parametrize("shape", ["circle", "square", "triangle"])
def test_shapes_are_counted_from_the_pixels(shape):
    task = Counting(shapes=[shape], backgrounds=["plain"], size="middle")
    for index, prompt in enumerate(some(task, 5)):
        plain, _ = sources.sampled(task.source.path("train", index), 16, 65536)
        (after,) = shown(prompt)
        found = [pieces(np.abs(a.astype(int) - p).max(-1) > 8) for a, p in zip(after, plain, strict=True)]
        assert sum(found) == prompt.answer[shape] and 1 <= sum(n > 0 for n in found) <= 3 and max(found) <= 3
        at = [i for i, n in enumerate(found) if n]
        assert all(b - a > 2 for a, b in pairwise(at))  # 8 of 48 frames


def test_the_answer_has_all_shapes_in_their_order():
    for prompt in some(Counting(shapes=["triangle", "circle"]), 6):
        assert list(prompt.answer) == ["triangle", "circle"] and "How many triangles, circles are there" in prompt.text
        assert prompt.meta["said"] == f"{prompt.answer['triangle']},{prompt.answer['circle']}"
        assert all(1 <= n <= 9 for n in prompt.answer.values())


def test_the_clips_themselves_show_no_shape_that_is_counted():
    task = Counting()
    for index in range(20):
        assert {a.shape for a in task.source.story("train", index).actors} == {"cross"}


# -- the jigsaw -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parts", "whole"])
@pytest.mark.parametrize("parts, frames", [(3, 12), (2, 4), (6, 48)])
def test_the_answer_puts_the_parts_in_order(kind, parts, frames):
    task = Jigsaw(parts=parts, frames=frames, shown=kind)
    for index, prompt in enumerate(some(task, 5)):
        plain, _ = sources.sampled(task.source.path("train", index), frames, 65536)
        placed = shown(prompt) if kind == "parts" else np.split(shown(prompt)[0], parts)
        assert len(prompt.videos) == (parts if kind == "parts" else 1)
        again = np.concatenate([placed[int(digit) - 1] for digit in prompt.answer])
        assert (again == plain).all()


def test_every_order_is_shown_as_often(quick):
    answers = [p.answer for p in some(Jigsaw(frames=6), 240)]  # 40 of each
    assert len(set(answers)) == 6 and all(20 < answers.count(a) < 64 for a in set(answers))


def test_only_whole_orders_are_exact():
    task = Jigsaw()
    found = task.summarise(list(zip(some(task, 4), [1.0, 1 / 3, 1.0, 0.0], strict=True)))
    assert found["exact"] == 0.5


def test_the_parts_are_named_by_their_place():
    (prompt,) = some(Jigsaw(), 1)
    content = prompt.messages[0]["content"]
    assert [p["type"] for p in content] == ["text", "video"] * 3 + ["text"]
    assert [p["text"] for p in content if p["type"] == "text"][:3] == ["Clip 1:", "Clip 2:", "Clip 3:"]
    assert Path(films.folder()).exists()
